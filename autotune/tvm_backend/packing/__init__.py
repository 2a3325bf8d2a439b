"""Keep the tensors of a network in packed forms: in which form each is computed, and what changes between forms."""
