"""The names of the samplers, for a command line that loads no NumPy."""

SAMPLERS = ("greedy", "adaptive")
