"""From a model file to a Relax module."""
