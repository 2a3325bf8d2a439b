"""Verify a whole model, and time it and its kernels beside other runtimes."""
