"""Elementary functions as arithmetic on whole vectors, where LLVM would call the C library for each element.

A public function of `exponential`, `logarithm` and `trigonometric` takes a `Formula` and one or two float32
vectors with its number of lanes, and returns such a vector. It binds what it needs to the formula and computes
nothing. Infinities and not-a-number give what the C library gives.
`tests/tvm_backend/vector_math` holds each function to its error in units of the last place (ulp), which its docstring
gives.
"""
