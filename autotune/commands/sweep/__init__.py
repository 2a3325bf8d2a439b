"""Tune models in several ways and compare the results: the suite, the command, and the results."""
