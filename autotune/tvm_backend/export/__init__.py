"""Compile, verify and time a whole model, and write what its users need."""
