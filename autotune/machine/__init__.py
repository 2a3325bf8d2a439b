"""The hardware of this machine, and leases on it."""
