"""What all devices that exist have in common: TVM searches, builds and times for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.stages import cost_model_file, proposals
from autotune.stages.bench import Bench
from autotune.storage.confirmation import EntryTimes
from autotune.storage.formats import Candidate
from autotune.storage.scratch import check_executable

if TYPE_CHECKING:
    from autotune.tvm_backend.kernels.time_kernel import Timing
    from autotune.tvm_backend.kernels.verify import Reference, Verifier


@dataclass(frozen=True)
class OpenTvmDevice:
    """A device that a `Runner` of TVM times libraries on.

    Attributes:
        verifier: What compares with the reference; None where there is none.
        folder: Where the libraries are.
    """

    runner: Any
    verifier: Verifier | None
    folder: Path

    @classmethod
    def of(cls, runner: Any, truth: Reference | None, folder: Path) -> OpenTvmDevice:
        """Return the open device of a runner. A reference that could not be made has a problem, and is not used."""
        from autotune.tvm_backend.kernels.verify import Verifier

        verifier = None if truth is None or truth.problem else Verifier(truth, runner.device)
        return cls(runner, verifier, folder)

    def time(self, candidate: Candidate, best_us: float | None) -> list[float]:
        """Time a candidate; see `Runner.time`."""
        times: list[float] = self.runner.time(self.folder / candidate.library, candidate.args, best_us)
        return times

    def verify(self, candidate: Candidate) -> float:
        """Verify a candidate; see `Verifier.check`."""
        if self.verifier is None:
            return 0.0
        started = time.perf_counter()
        self.verifier.check(self.runner.load(self.folder / candidate.library)["main"])
        return time.perf_counter() - started


class TvmBench(Bench):
    """A device that exists. A kind of its own says how it is checked, opened and guarded."""

    def check_job(self) -> None:
        """Ask also whether what is built can be loaded from the workspace."""
        check_executable(self.stage.paths.folder)
        self.check_device()

    def check_device(self) -> None:
        """Ask whether the job's times belong to the device that is here now.

        Raises:
            MachineProblem: They do not, or the device is gone.
        """
        self.device.check_here(self.stage.spec.target_key, self.stage.spec.machine)

    def propose(
        self, pending: Sequence[Candidate], excluded: Collection[str]
    ) -> tuple[list[Candidate], dict[str, int]]:
        return proposals.propose(self.stage, pending, excluded)

    def builder(self) -> Callable[[Candidate], str]:
        from autotune.tvm_backend.kernels.build_kernel import build_candidate

        stage = self.stage

        def build(candidate: Candidate) -> str:
            name = f"{candidate.hash}.so"
            build_candidate(candidate, stage.program, stage.target, stage.artifacts / name)
            return name

        return build

    def timing(self) -> Timing:
        """How candidates are timed, as a `Runner` is told."""
        from autotune.tvm_backend.kernels.time_kernel import Timing

        measure = self.stage.config.measure
        return Timing(measure.warmup, measure.repeats, measure.min_repeat_ms)

    def take(self) -> None:
        """Set what TVM's runtime reads when it starts in this process: its threads, and the device to use.

        By default it would use half of the CPUs. It binds threads to cores counted from zero, which is right only where
        the stage may use all CPUs.
        """
        os.environ["TVM_NUM_THREADS"] = str(self._threads)
        if len(self.stage.cpus) != os.cpu_count():
            os.environ["TVM_BIND_THREADS"] = "0"

    @property
    def _threads(self) -> int:
        return self.stage.config.measure.threads or len(self.stage.cpus)

    def compile_model(self, library: Path) -> None:
        from autotune.tvm_backend.export.early_timing import compile_early

        stage = self.stage
        settings = stage.config.export
        compile_early(
            stage.workspace,
            stage.paths,
            stage.spec,
            library,
            cuda_graph=settings.cuda_graph,
            kept_bytes=settings.kept_bytes,
        )

    def time_model(self, library: Path, tasks_ms: Sequence[float], processes: int, reference: bool) -> list[EntryTimes]:
        from autotune.tvm_backend.export.early_timing import EarlyTiming, time_early

        self.take()
        stage = self.stage
        timing = EarlyTiming(self._threads, processes, reference)
        times: list[EntryTimes] = time_early(stage.paths, stage.spec, library, tasks_ms, timing)
        return times

    def learn(self) -> int:
        return cost_model_file.update_model(self.stage)
