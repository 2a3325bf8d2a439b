"""Instruction sets: a file each, with what the engines need of it as values; `instruction_sets.py` lists them."""
