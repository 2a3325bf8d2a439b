"""Quantised networks in integers: the graph, the kernels, their schedules and the instructions that they use."""
