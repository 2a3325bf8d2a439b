"""The parts of model_zoo.py."""
