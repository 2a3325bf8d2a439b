"""What the stages ask of a kind of device: to check, search, build, time and verify, and whom to blame for a failure.

This half of a device may load TVM, when a stage runs; `autotune.devices` is the half that never does. Each kind has one
file: `on_cpu.py`, `on_gpu.py`, `on_board.py`, `on_simulated.py` and `on_command.py`; `benches.py` lists them. The
promises below are tested by `autotune.testing.DeviceContract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from autotune.devices import Device
from autotune.machine.disturbance import Quiet
from autotune.processes.children import ItemResult, ResultKind
from autotune.processes.isolate import isolated
from autotune.stages.context import StageContext
from autotune.stages.guard import Guard
from autotune.storage.confirmation import EntryTimes
from autotune.storage.formats import Candidate, GpuNeeds
from autotune.storage.paths import Workspace
from autotune.storage.seals import LIBRARY, file_digest, is_sealed

if TYPE_CHECKING:
    from autotune.tvm_backend.kernels.verify import Reference

Timer = Callable[[Candidate], dict[str, Any]]

# A candidate may suffer from what an earlier one did to their process.
_RETRIED: tuple[ResultKind, ...] = ("crash", "timeout", "memory", "wrong")


class OpenDevice(Protocol):
    """A device that this process has opened to measure a round's candidates on."""

    def time(self, candidate: Candidate, best_us: float | None) -> list[float]:
        """Time a candidate that was built; return some times of a run, in microseconds.

        Args:
            candidate: What to time.
            best_us: The best time of the task so far, so that a slow candidate may be given up early; None if unknown.
        """

    def verify(self, candidate: Candidate) -> float:
        """Compare what a candidate computes with the task's reference.

        Returns:
            The seconds that took; 0 where nothing is compared.

        Raises:
            WrongResult: It computes something else.
        """


@dataclass(frozen=True)
class Bench(ABC):
    """A kind of device, as the stages of one job use it.

    An implementation guarantees:

    - `check_job` and `check` raise a `MachineProblem` where this machine or the device is at fault. While they raise
      none, a failure is the candidate's.
    - `propose` returns no candidate whose hash is excluded or pending, and none twice.
    - `builder` and `results` run each candidate apart from this process, which survives whatever it does.
    - `results` yields each candidate once, in order, with what became of it.

    Attributes:
        stage: The stage that runs.
        suspect: The kinds of results of `results` for which the machine may be to blame, until `check` has passed.
        stays_fit: Whether one `check` that has passed clears the machine for the whole stage.
        stays_open: Whether one process opens the device for the measurements of many stages, where that takes long.
        candidates_can_kill: Whether a candidate may end the process of its stage, so that it has to be noted which one
            the stage works on.
    """

    stage: StageContext

    suspect: ClassVar[tuple[ResultKind, ...]] = ("error", "crash", "timeout")
    stays_fit: ClassVar[bool] = True
    stays_open: ClassVar[bool] = False
    candidates_can_kill: ClassVar[bool] = True

    @property
    def device(self) -> Device:
        """The half of the device that knows no TVM."""
        return self.stage.job_device

    @classmethod
    @abstractmethod
    def load(cls, workspace: Workspace) -> None:
        """Import what the stages of a worker need, before it forks for the first of them.

        Raises:
            UnsupportedVersion: The installed TVM is not one that was tested.
        """

    @abstractmethod
    def check_job(self) -> None:
        """Ask whether the job may run here: whether its times belong to the device that is here now.

        Raises:
            MachineProblem: They do not, or the device is gone.
        """

    @property
    @abstractmethod
    def fitness_key(self) -> str:
        """What `check` tries out here. It is tried once by each worker, before its first stage."""

    @abstractmethod
    def check(self, candidates: Sequence[Candidate] = ()) -> None:
        """Run a kernel that is known to be good, to find out whether the machine or the device makes candidates fail.

        Args:
            candidates: Those that failed; the device must have memory for what they work on.

        Raises:
            MachineProblem: That kernel fails as well.
        """

    def check_program(self) -> None:
        """Read the program of the stage's task, so that no candidate is blamed where its file is damaged.

        Raises:
            DamagedFile: It is not the program that was submitted.
        """
        _ = self.stage.program

    @property
    @abstractmethod
    def reference_target(self) -> Mapping[str, Any] | None:
        """The target on which this machine computes what candidates are compared with; None if they are not."""

    @abstractmethod
    def propose(
        self, pending: Sequence[Candidate], excluded: Collection[str]
    ) -> tuple[list[Candidate], dict[str, int]]:
        """Return up to `stage.count` new candidates, and counts of the search for the summary.

        Args:
            pending: Candidates of the task's other rounds.
            excluded: Hashes of those that were measured, and of those in quarantine.
        """

    @abstractmethod
    def builder(self) -> Callable[[Candidate], str]:
        """Return a function that builds a candidate and returns the name of its library in `stage.artifacts`."""

    def needs(self, library: Path) -> GpuNeeds | None:
        """Return what the kernels of a library need of a device that does not run all that can be built for it."""
        return None

    def digest(self, library: Path) -> bytes:
        """Return a digest of what was built, for its seal.

        Raises:
            OSError: It cannot be read.
        """
        return file_digest(library)

    def is_lost(self, candidate: Candidate) -> bool:
        """Return whether what was built for a candidate is gone or damaged, after its measurement has failed."""
        return not is_intact(self, candidate)

    @abstractmethod
    def open(self, truth: Reference | None) -> OpenDevice:
        """Open the device in this process, which may die of it. Where it stays open, that was perhaps done before.

        Args:
            truth: The reference of the task; None where there is none.
        """

    def guard(self, quiet: Quiet) -> Guard:
        """Return what repeats measurements that other work disturbs; by default it cannot tell, and repeats none.

        Args:
            quiet: The sentinel's times on this machine without other work.
        """
        return Guard.off()

    def results(
        self,
        candidates: Sequence[Candidate],
        truth: Reference | None,
        timer: Callable[[OpenDevice], Timer],
        lost: list[str],
    ) -> Iterator[tuple[Candidate, ItemResult]]:
        """Time candidates, and try again where another one may be to blame.

        Args:
            candidates: Those that have a library.
            truth: The reference of the task; None where there is none.
            timer: Makes what times a candidate on an open device.
            lost: Is given a line for each session with the device that was lost.

        Raises:
            MachineProblem: The device or the machine failed. No candidate is to blame.
        """
        limit_s = self.device.measure_timeout_s(self.stage.config)
        opened = partial(_opened, self, truth, timer)
        return isolated(candidates, opened, limit_s=limit_s, retried=_RETRIED, kept=self.stage.kept)

    @abstractmethod
    def compile_model(self, library: Path) -> None:
        """Compile the whole model with the best schedules, on a CPU.

        Args:
            library: Where the library is written.
        """

    @abstractmethod
    def time_model(self, library: Path, tasks_ms: Sequence[float], processes: int, reference: bool) -> list[EntryTimes]:
        """Time the whole model at each set of shapes.

        Args:
            library: What `compile_model` has written.
            tasks_ms: The sum of the tasks' best times at each set of shapes.
            processes: In how many processes it is timed.
            reference: Whether to time the model as submitted in its own runtime, where that runs on the device.

        Raises:
            WorkerError: It cannot be run.
        """

    @abstractmethod
    def learn(self) -> int:
        """Fit the cost model to the job's trials, unless it knows nearly all; return how many of them are behind it."""


def _opened(bench: Bench, truth: Reference | None, timer: Callable[[OpenDevice], Timer]) -> Timer:
    """Open the device in this process; return what times a candidate on it."""
    return timer(bench.open(truth))


def is_intact(bench: Bench, candidate: Candidate) -> bool:
    """Return whether what was built for a candidate is there as it was built, by this user's autotune."""
    try:
        return is_sealed(LIBRARY, bench.digest(bench.stage.artifacts / candidate.library), candidate.seal)
    except OSError:
        return False
