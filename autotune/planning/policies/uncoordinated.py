"""All jobs run their own loops at once, like several tuners started side by side."""

from __future__ import annotations

from autotune.planning.policy import Policy


class Uncoordinated(Policy):
    """The second of the two baselines. Without leases, CPUs and devices are over-committed and times distorted."""

    name = "uncoordinated"
    leases = False
    rounds_per_job = 1
