"""Networks that are run on other CPUs."""

from ..quantised_nets import quantised, written  # noqa: F401
