"""CUDA: where its libraries and compilers are, what they compile, and how TVM is made to use them."""
