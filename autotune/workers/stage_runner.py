"""The seam between the daemon and whatever runs its stages: this machine, or a cluster.

`autotune.workers.worker_pool` runs stages on this machine, `autotune.workers.cluster.runner` on the nodes of a cluster.
The tests that every implementation must pass are `autotune.testing.StageRunnerContract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator

from autotune.planning.view import MachineResources
from autotune.processes.messages import RunStage, StageReport
from autotune.storage.daemon_info import ClusterNode
from autotune.storage.formats import Kind

# How long a stage waits for its leases. A measurement on the CPU needs all of its CPUs free; while it waits, its
# turnstile lock keeps newcomers out.
LEASE_WAIT_S: dict[Kind, float] = {
    "search": 0.5,
    "build": 0.5,
    "measure": 30.0,
    "train": 0.5,
    "compile": 0.5,
    "confirm": 30.0,
}


class StageRunner(ABC):
    """Runs stages for the daemon, side by side, and reports what became of each.

    An implementation guarantees:

    - Every stage handed to `run` is reported by `reports` exactly once, under its `id`, whatever becomes of it: one
      that is killed, hangs beyond its limit or whose process dies included. Only `stop` leaves stages unreported.
    - What a stage wrote is in the workspace, durably, before the stage is reported: its trials in their tuning log,
      each candidate once, and its stage file. That holds for a stage that failed, too.
    - A stage that is reported has ended. No process of it runs on, so that its CPUs and files are free; one that has
      its device open may wait for the next stage on it, idle. The one exception is `lost`: the stage may run on where
      nobody reaches it. From then on it changes no file of its job, and of what it still measures only trials of new
      candidates enter the log.
    - The CPUs and devices of a stage are leased on the machine that it runs on, in the lock folder of that machine,
      while it runs. It is reported as `busy` if somebody else has them.
    - `run`, `kill_stage` and `reports` do not wait for stages. `descriptors` is how the daemon waits.
    - `stop` leaves no process behind on any machine that can be reached.

    The daemon guarantees that it calls all of it from one thread, that `reports` is called at least every few seconds,
    which is when an implementation may look at its limits, and that a stage gets CPUs and a device of `machine`.
    """

    @abstractmethod
    def run(self, kind: str, request: RunStage) -> None:
        """Hand over a stage.

        Args:
            kind: The kind of its job's target: `llvm`, `cuda` or `simulated`.
            request: The stage and what it may use; its `id` comes back in the report.

        Raises:
            DiskProblem, MachineProblem: The stage was not taken, and will not be reported.
        """

    @abstractmethod
    def kill_stage(self, id: int) -> None:
        """Kill one stage, if it still runs; it is reported as crashed. An unknown `id` is ignored."""

    @abstractmethod
    def descriptors(self) -> list[int]:
        """File descriptors that become readable when a report may be there; none for a runner that has none."""

    @abstractmethod
    def reports(self, readable: Collection[int]) -> Iterator[StageReport]:
        """Yield the reports that are there, without waiting.

        Args:
            readable: Those of `descriptors` that are known to be readable. May be empty.
        """

    @abstractmethod
    def stop(self) -> None:
        """Kill everything that runs. Nothing is reported any more; may be called twice."""

    def machine(self) -> MachineResources | None:
        """What stages may run on now: the same object until it changes. None: the CPUs and devices of this machine."""
        return None

    def nodes(self) -> tuple[ClusterNode, ...]:
        """The nodes of a cluster; none for this machine. The same object until one changes."""
        return ()

    def trouble(self) -> str:
        """Why no stage can run now; empty if that is not known or not so."""
        return ""
