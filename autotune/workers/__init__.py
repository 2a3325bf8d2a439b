"""Processes that do the work of stages, imports and exports, and how the daemon talks to them."""
