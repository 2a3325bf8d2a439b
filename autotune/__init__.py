"""autotune: tune neural networks for the hardware they run on, many jobs on one machine."""

__version__ = "0.1.0"
