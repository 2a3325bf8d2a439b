"""CPUs: those of this machine, and those of another model, for which this machine only searches and builds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.config import load_config
from autotune.errors import AutotuneError
from autotune.machine.disturbance import Quiet
from autotune.stages.guard import Guard, Watch
from autotune.stages.tvm_bench import OpenTvmDevice, TvmBench
from autotune.storage.formats import Candidate
from autotune.storage.paths import Workspace

if TYPE_CHECKING:
    from autotune.tvm_backend.kernels.verify import Reference


class CpuBench(TvmBench):
    """The CPUs of this machine."""

    @classmethod
    def load(cls, workspace: Workspace) -> None:
        from autotune.tvm_backend.load import load_for_tuning

        load_for_tuning("llvm", _triples(workspace))
        from autotune.tvm_backend.kernels.build_kernel import compile_once

        with contextlib.suppress(OSError):  # a stage says what is wrong with the disk
            compile_once()

    @property
    def fitness_key(self) -> str:
        return json.dumps(self.stage.spec.target, sort_keys=True)

    def check(self, candidates: Sequence[Candidate] = ()) -> None:
        from autotune.tvm_backend.kernels.machine_check import check_machine

        check_machine(self.stage.spec.target)

    @property
    def reference_target(self) -> Mapping[str, Any] | None:
        return self.stage.spec.target

    def open(self, truth: Reference | None) -> OpenTvmDevice:
        from autotune.tvm_backend.kernels.cache_state import Context
        from autotune.tvm_backend.kernels.time_kernel import Runner, open_device

        self.take()
        held = self.device.held_by(self.stage.spec.target_key)
        context = Context(held, self.stage.task.constants) if held else None
        runner = Runner(open_device("llvm"), self.timing(), context)
        return OpenTvmDevice.of(runner, truth, self.stage.artifacts)

    def guard(self, quiet: Quiet) -> Guard:
        measure = self.stage.config.measure
        cpus = self.stage.cpus
        return Guard(lambda: Watch.begin(cpus, quiet), measure.disturbed_again, measure.timeout_s / 2)


class BuildOnlyBench(CpuBench):
    """CPUs that need not be here: this machine searches and builds for them, and need not run what it builds."""

    @property
    def fitness_key(self) -> str:
        return json.dumps(["build only", self.stage.spec.target], sort_keys=True)

    def check(self, candidates: Sequence[Candidate] = ()) -> None:
        """Compile and link the kernel only."""
        from autotune.tvm_backend.kernels.machine_check import check_cross_build

        check_cross_build(self.stage.spec.target)


class OtherCpuBench(BuildOnlyBench):
    """The CPUs of other nodes of a cluster, of another model than those of this one."""

    def check_device(self) -> None:
        """Pass: it is checked where it is measured."""

    @property
    def reference_target(self) -> Mapping[str, Any] | None:
        return None


def _triples(workspace: Workspace) -> list[str]:
    """Return the triples of the boards, for which workers for CPUs build, too.

    There are none where the settings cannot be read, which each stage says.
    """
    with contextlib.suppress(AutotuneError):
        return [str(board.description.get("mtriple") or "") for board in load_config(workspace.config).boards.values()]
    return []
