"""Measure candidates on boards over TVM's RPC, each in a session of its own, and tell whose fault a failure is.

A session may fail because of its candidate, or because the board reboots, hangs or loses its network. So a candidate
that fails is tried again, on whichever board the tracker lends. Before each further try a kernel that is known to be
good must run: if it does not, the stage ends and the board is set aside. A candidate at which several sessions have
failed, with that kernel running before each further try, is to blame. How many have is kept in the stage file, so that
it counts across stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.device_settings import BoardSettings
from autotune.errors import BoardProblem, WorkerError
from autotune.machine import boards
from autotune.machine.boards import Lent
from autotune.processes.isolate import ItemResult, ResultKind, isolated
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate

# A candidate is to blame once so many sessions have failed at it.
_SESSIONS = 3
_SUSPECT: tuple[ResultKind, ...] = ("error", "crash", "timeout", "memory")
# What a board may take to accept a session, and to end one, in seconds.
_OPENING_S, _CLOSING_S = 10.0, 2.0

Timer = Callable[[Candidate], dict[str, Any]]


@dataclass
class BoardMeasurement:
    """Measures the candidates of one stage on boards.

    Attributes:
        board: The settings of the boards.
        prepare: Makes what times a candidate from a runner on the board that was lent.
        failures: What went wrong in each session that failed.
    """

    stage: Stage
    board: BoardSettings
    prepare: Callable[[Any], Timer]
    failures: list[str] = field(default_factory=list)
    _lost: dict[str, int] = field(default_factory=dict)

    def results(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, ItemResult]]:
        """Yield every candidate with its result.

        Raises:
            BoardProblem: No board is free, or the one that was lent does not work. No candidate is to blame.
        """
        for candidate in candidates:
            yield candidate, self._measure(candidate)

    def _measure(self, candidate: Candidate) -> ItemResult:
        lost = candidate.lost
        while True:
            if lost:
                self._check_board()
            lent = boards.request(self.board)
            outcome = self._try(candidate, lent)
            if outcome.kind not in _SUSPECT:
                return outcome
            lost += 1
            self.failures.append(f"{lent}: {outcome.kind}: {outcome.reason}")
            if lost >= _SESSIONS:
                return replace(outcome, reason=f"{lost} sessions on boards failed at it: {outcome.reason}")
            self._note(candidate, lost)

    def _try(self, candidate: Candidate, lent: Lent) -> ItemResult:
        limit_s = self.stage.config.measure.timeout_s
        try:
            ((_, outcome),) = isolated(
                [candidate],
                lambda: self._timer(lent, limit_s),
                limit_s=limit_s,
                prepare_limit_s=_OPENING_S,
            )
        except WorkerError as error:
            raise BoardProblem(f"the board at {lent} begins no session: {error}") from error
        return outcome

    def _timer(self, lent: Lent, limit_s: float) -> Timer:
        """Begin a session, and return what times one candidate in it."""
        from autotune.tvm_backend.kernels.run_board import close_session

        runner = self._runner(lent, limit_s)
        timer = self.prepare(runner)

        def timed(candidate: Candidate) -> dict[str, Any]:
            try:
                return timer(candidate)
            finally:
                close_session(runner.session)

        return timed

    def _runner(self, lent: Lent, limit_s: float) -> Any:
        from autotune.tvm_backend.kernels.run import Timing
        from autotune.tvm_backend.kernels.run_board import BoardRunner, open_session

        measure, threads = self.stage.config.measure, int(self.stage.spec.target["num-cores"])
        session = open_session(lent, limit_s + _CLOSING_S, threads)
        timing = Timing(measure.warmup, measure.repeats, measure.min_repeat_ms)
        return BoardRunner(session.cpu(0), timing, session=session)

    def _check_board(self) -> None:
        from autotune.tvm_backend.kernels.probe import check_board

        check_board(self.stage.spec.target, boards.request(self.board))

    def _note(self, candidate: Candidate, lost: int) -> None:
        """Write down how many sessions have failed at a candidate: the next one may end this stage."""
        self._lost[candidate.hash] = lost
        known = [replace(it, lost=self._lost.get(it.hash, it.lost)) for it in self.stage.file.candidates]
        self.stage.advance("measure", known)
