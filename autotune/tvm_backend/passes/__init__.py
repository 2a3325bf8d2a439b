"""From a Relax module to fused tensor programs."""
