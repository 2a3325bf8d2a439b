"""Elementary functions as arithmetic on whole vectors, where LLVM would call the C library for each element."""
