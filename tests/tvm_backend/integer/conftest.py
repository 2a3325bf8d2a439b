"""Quantised networks, for CPUs of each kind."""

from ..quantised_nets import cpu, here, quantised, quantised_dynamically, written  # noqa: F401
