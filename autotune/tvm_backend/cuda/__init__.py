"""CUDA: its libraries and compilers wherever they are installed, what they compile, and whether all of it works here."""
