"""Verify a whole model: how far its outputs are from those of its reference, and how far they may be."""
