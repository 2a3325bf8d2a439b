"""The threads of compiled kernels: the pool that a library brings along, and what its parallel loops tell it."""
