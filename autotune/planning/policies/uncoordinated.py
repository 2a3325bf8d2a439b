"""Every job runs its own loop at once, and nobody waits for anybody: several tuners started side by side."""

from __future__ import annotations

from autotune.planning.policy import Policy


class Rule(Policy):
    """The second of the two baselines. It takes no leases: CPUs and devices are over-committed, times distorted."""

    name = "uncoordinated"
    leases = False
    rounds_per_job = 1
