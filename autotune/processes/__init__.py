"""Child processes: isolation, memory limits and signals."""
