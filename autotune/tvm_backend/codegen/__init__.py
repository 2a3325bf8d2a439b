"""Lower one scheduled tensor program to what LLVM or CUDA compiles: vectors, prefetches, offsets, and the passes."""
