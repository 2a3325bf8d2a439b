"""Time a whole model, and its kernels, beside other runtimes."""
