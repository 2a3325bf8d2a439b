"""A baseline: all jobs run their own loops at once, like several tuners side by side, and distort times."""

from __future__ import annotations

from autotune.planning.policy import Policy


class Uncoordinated(Policy):
    """Without leases, CPUs and devices are over-committed."""

    name = "uncoordinated"
    leases = False
    rounds_per_job = 1
