"""Operators as tensor expressions and kernels."""
