"""CUDA C on a CPU: what TVM generates for a GPU is compiled by g++, and its kernels run thread by thread.

`translate.py` turns CUDA C into C++, `ptx.py` its inline assembly. `device.h` and the headers that it includes are the
language: types, elementary functions, warps, fragments of matrices. `block.cc` runs a block: a fiber for each thread.
`image.py` packs what g++ made as a cubin, which the stand-in's driver (`../execute.c`) loads and launches,
and `nvcc` is the compiler that TVM calls. `check.py` runs a single kernel under a sanitizer.

This shows that kernels compute what they should, reach no memory that is not theirs, and wait for each other where they
have to. It shows nothing about time, registers, ptxas, the driver, or the order in which real tensor cores add.
"""
