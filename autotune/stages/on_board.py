"""Boards over TVM's RPC: each candidate has a session of its own, and it is told whose fault a failure is.

A session may fail because of its candidate, or because the board reboots, hangs or loses its network. So a candidate
that fails is tried again, on whichever board the tracker lends. Before each further try a kernel that is known to be
good must run: if it does not, the stage ends and the board is set aside. A candidate at which several sessions have
failed, with that kernel running before each further try, is to blame. How many have is kept in the stage file, so that
it counts across stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.device_settings import BoardSettings
from autotune.errors import BoardProblem, WorkerError
from autotune.machine import boards
from autotune.machine.boards import Lent
from autotune.machine.disturbance import Quiet
from autotune.processes.children import ItemResult, ResultKind
from autotune.processes.isolate import isolated
from autotune.stages.bench import OpenDevice, Timer
from autotune.stages.guard import Guard
from autotune.stages.on_cpu import BuildOnlyBench
from autotune.stages.tvm_bench import OpenTvmDevice
from autotune.storage.formats import Candidate

if TYPE_CHECKING:
    from autotune.tvm_backend.kernels.verify import Reference

# A candidate is to blame once so many sessions have failed at it.
_SESSIONS = 3
_LOST: tuple[ResultKind, ...] = ("error", "crash", "timeout", "memory")
# What a board may take to accept a session, and to end one, in seconds.
_OPENING_S = 10.0
_CLOSING_S = 2.0


class BoardBench(BuildOnlyBench):
    """Boards with CPUs, which this machine builds for."""

    suspect = ()  # a candidate is blamed only after the board has run the kernel that is known to be good

    @property
    def board(self) -> BoardSettings:
        """The settings of the boards."""
        return self.stage.config.boards[self.stage.spec.board]

    @property
    def reference_target(self) -> Mapping[str, Any] | None:
        return {"kind": "llvm"}

    def guard(self, quiet: Quiet) -> Guard:
        """Return a guard that is off: nothing here shows what disturbs a board."""
        return Guard.off()

    def results(
        self,
        candidates: Sequence[Candidate],
        truth: Reference | None,
        timer: Callable[[OpenDevice], Timer],
        lost: list[str],
    ) -> Iterator[tuple[Candidate, ItemResult]]:
        """Yield every candidate with its result.

        Raises:
            BoardProblem: No board is free, or the one that was lent does not work. No candidate is to blame.
        """
        sessions_lost = {candidate.hash: candidate.lost for candidate in self.stage.file.candidates}
        sessions = _Sessions(self, truth, timer, lost, sessions_lost)
        for candidate in candidates:
            yield candidate, sessions.measure(candidate)

    def open(self, truth: Reference | None) -> OpenTvmDevice:
        """Ask the tracker for a board, and begin a session on it, which the caller ends."""
        return self.open_lent(truth, boards.request(self.board))

    def open_lent(self, truth: Reference | None, lent: Lent) -> OpenTvmDevice:
        """Begin a session on the board that the tracker has lent."""
        from autotune.tvm_backend.kernels.time_on_board import BoardRunner, open_session

        limit_s = self.stage.config.measure.timeout_s + _CLOSING_S
        session = open_session(lent, limit_s, threads=int(self.stage.spec.target["num-cores"]))
        runner = BoardRunner(session.cpu(0), self.timing(), session=session)
        return OpenTvmDevice.of(runner, truth, self.stage.artifacts)

    def check_board(self) -> None:
        """Run the kernel that is known to be good on the board that the tracker lends next.

        Raises:
            BoardProblem: It fails there, or no board is free.
        """
        from autotune.tvm_backend.kernels.machine_check import check_board

        check_board(self.stage.spec.target, boards.request(self.board))


@dataclass
class _Sessions:
    """The sessions on boards in which the candidates of one stage are measured."""

    bench: BoardBench
    truth: Reference | None
    timer: Callable[[OpenDevice], Timer]
    lines: list[str]  # what went wrong in each session that was lost
    lost: dict[str, int]  # how many sessions have been lost at each candidate, by its hash

    def measure(self, candidate: Candidate) -> ItemResult:
        """Measure a candidate, in further sessions if the first ones are lost."""
        while True:
            if self.lost[candidate.hash]:
                self.bench.check_board()
            lent = boards.request(self.bench.board)
            outcome = self._try(candidate, lent)
            if outcome.kind not in _LOST:
                return outcome
            self.lost[candidate.hash] += 1
            self.lines.append(f"{lent}: {outcome.kind}: {outcome.reason}")
            if self.lost[candidate.hash] >= _SESSIONS:
                reason = f"{self.lost[candidate.hash]} sessions on boards failed at it: {outcome.reason}"
                return replace(outcome, reason=reason)
            self._note()

    def _try(self, candidate: Candidate, lent: Lent) -> ItemResult:
        limit_s = self.bench.stage.config.measure.timeout_s
        try:
            ((_, outcome),) = isolated(
                [candidate], lambda: self._timer(lent), limit_s=limit_s, prepare_limit_s=_OPENING_S
            )
        except WorkerError as error:
            raise BoardProblem(f"the board at {lent} begins no session: {error}") from error
        return outcome

    def _timer(self, lent: Lent) -> Timer:
        """Begin a session, and return what times one candidate in it."""
        from autotune.tvm_backend.kernels.time_on_board import close_session

        device = self.bench.open_lent(self.truth, lent)
        timer = self.timer(device)

        def timed(candidate: Candidate) -> dict[str, Any]:
            try:
                return timer(candidate)
            finally:
                close_session(device.runner.session)

        return timed

    def _note(self) -> None:
        """Write down how many sessions were lost at each candidate: the next one may end this stage."""
        stage = self.bench.stage
        noted = [replace(candidate, lost=self.lost[candidate.hash]) for candidate in stage.file.candidates]
        stage.advance("measure", noted)
