"""Recurrent operators that are compiled."""

from ...recurrent_nets import compiled  # noqa: F401
