"""What a worker has found out about its machine: whether TVM is as it was loaded, and which targets work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.errors import MachineProblem
from autotune.tvm_backend.load import Installation

if TYPE_CHECKING:
    from autotune.stages.stage import Stage


@dataclass
class Fitness:
    """What one worker knows of its machine.

    A stage runs in a forked child, which inherits the targets that are `known` to work here, and hands the one that
    it tried out itself, `tried`, back to its worker.
    """

    installed: Installation = field(default_factory=Installation.now)
    known: set[str] = field(default_factory=set)
    tried: str = ""

    def check_installation(self) -> None:
        """Ask whether the TVM that this worker has loaded is still the one on the disk.

        Raises:
            MachineProblem: it is not, so that its parts no longer fit together in memory; the worker has to go.
        """
        if Installation.now() != self.installed:
            raise MachineProblem("TVM was changed while its worker was running; a new worker is started")

    def check_stage(self, stage: Stage) -> None:
        """Ask whether a stage may run here, and try its device out, unless that was done before.

        Raises:
            MachineProblem: its job was submitted elsewhere, or what is compiled for it cannot be built or run here.
        """
        bench = stage.bench
        bench.check_job()
        if bench.fitness_key not in self.known:
            bench.check()
            self.tried = bench.fitness_key
