"""Convolutions and products in bfloat16: the graph, the kernels, and what an element is."""
