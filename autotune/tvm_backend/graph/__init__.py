"""From a model file to fused tensor programs."""
