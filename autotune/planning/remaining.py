"""How much work a job still has, in expected stage times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemainingWork:
    """The work that is left of a job, in milliseconds.

    The numbers are whole, because sums of them are updated by differences and must not drift.

    Attributes:
        cpu_ms: CPU time of all stages that are left.
        device_ms: Time on the device of all measurements that are left.
        ready_ms: The part of `device_ms` whose batches are built.
        begun_ms: The part of `device_ms` that belongs to rounds which have begun.
        chain_ms: The length of the longest chain of stages that must run one after another. The job ends no sooner,
            even with the machine to itself.
    """

    cpu_ms: int = 0
    device_ms: int = 0
    ready_ms: int = 0
    begun_ms: int = 0
    chain_ms: int = 0
