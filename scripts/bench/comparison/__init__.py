"""The parts of compare_strategies.py."""
