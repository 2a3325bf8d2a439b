"""Rewrite the graph of a network: constants, order, what is fused, where activations lie."""
