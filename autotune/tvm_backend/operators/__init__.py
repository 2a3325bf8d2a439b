"""Operators as tensor expressions and programs: what a kernel computes, in which form of its tensors."""
