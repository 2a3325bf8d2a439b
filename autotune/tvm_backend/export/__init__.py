"""Compile, verify and compare a whole model."""
