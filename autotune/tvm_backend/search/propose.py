"""Runs a strategy on the knobs of a task: trials in, candidates out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from autotune.storage.formats import Candidate, Trial
from autotune.strategies.base import Measured, Score, Settled, Strategy, View, settle_some
from autotune.strategies.samplers import Sampler
from autotune.strategies.space import Configuration
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.draft import nest_draft, train_draft
from autotune.tvm_backend.search.features import Features
from autotune.tvm_backend.search.knobs import Applied, Knobs
from autotune.tvm_backend.search.space import to_candidate
from autotune.tvm_backend.search.tasks import program_hash

# One part in so many of a batch, and one candidate at least, may be taken over from similar tasks.
_ADOPTED = 4


@dataclass(frozen=True)
class Proposal:
    """Candidates, and what it took: turns of the search's inner loop, replays, and how many of these were in vain.

    `invalid` configurations have no schedule; `repeated` ones have one that was measured or is on its way.
    """

    candidates: list[Candidate]
    steps: int = 0
    replayed: int = 0
    invalid: int = 0
    repeated: int = 0


@dataclass(frozen=True)
class Request:
    """What a batch depends on: the trials and the candidates on their way, its size, the job's cost model, a seed.

    `barred` are hashes of programs that nobody may propose, `hints` traces that did well on similar programs.
    """

    trials: Sequence[Trial]
    pending: Sequence[Candidate]
    count: int
    model: CostModel | None
    seed: int
    barred: frozenset[str] = frozenset()
    hints: Sequence[Any] = ()


def propose(knobs: Knobs, strategy: Callable[[View, int], Strategy], sampler: Sampler, request: Request) -> Proposal:
    """Up to `request.count` new candidates; none has the hash of a trial or of a candidate on its way.

    The same arguments give the same candidates. A trial that no configuration stands for (its schedule is none of
    this space) only counts as known. Up to a quarter of the batch is what hints decide, if it is new here: what is
    fused to an operator hardly changes how it is tiled best.
    """
    known = {trial.hash for trial in request.trials} | {item.hash for item in request.pending} | request.barred
    draft = nest_draft(knobs, request.model)
    # Where the draft is the cost model, what survives it need not be judged once more.
    desk = Desk(knobs, None if draft else request.model, known)
    view = _view(knobs, request, desk, draft)
    likely = filter(None, map(knobs.adopt, request.hints))
    adopted = [item.configuration for item in settle_some(view, likely, max(1, request.count // _ADOPTED))]
    search = strategy(replace(view, pending=view.pending.union(adopted)), request.seed)
    found = search.propose(request.count - len(adopted), sampler)
    picked = [desk.candidate(item) for item in [*adopted, *found]]
    return Proposal(picked, search.steps, desk.replayed, desk.invalid, desk.repeated)


def _view(knobs: Knobs, request: Request, desk: Desk, draft: Score | None) -> View:
    found = [(knobs.find(trial.trace), trial.median_us) for trial in request.trials]
    measured = tuple(
        Measured(configuration, median_us) for configuration, median_us in found if configuration is not None
    )
    pending = frozenset(filter(None, (knobs.find(item.trace) for item in request.pending)))
    score = draft or train_draft(knobs.space, measured)
    return View(knobs.space, measured, score, desk.settle, pending, judges=desk.model is not None)


@dataclass
class Desk:
    """Settles configurations: replays them once each, leaves out what is known, and scores the rest on features."""

    knobs: Knobs
    model: CostModel | None
    known: Collection[str]
    replayed: int = 0
    invalid: int = 0
    repeated: int = 0
    _answers: dict[Configuration, Settled | None] = field(default_factory=dict)
    _settled: dict[Configuration, tuple[str, Any]] = field(default_factory=dict)
    _hashes: set[str] = field(default_factory=set)

    @cached_property
    def _features(self) -> Features:
        return Features(self.knobs.program, self.knobs.target)

    def settle(self, configurations: Sequence[Configuration]) -> list[Settled | None]:
        """See `View.settle`."""
        fresh = [item for item in dict.fromkeys(configurations) if item not in self._answers]
        new: dict[Configuration, Configuration] = {}
        for item in fresh:
            self._answers[item] = None
            applied = self.knobs.apply(item)
            self.replayed += 1
            if applied is None:
                self.invalid += 1
            elif self._enter(applied):
                new[item] = applied.configuration
            else:
                self.repeated += 1
        self._answer(new)
        return [self._answers[item] for item in configurations]

    def _enter(self, applied: Applied) -> bool:
        """Whether the program is new."""
        from tvm.s_tir.meta_schedule import MeasureCandidate
        from tvm.s_tir.meta_schedule.arg_info import ArgInfo

        module = applied.schedule.mod
        hash = program_hash(module)
        if hash in self.known or hash in self._hashes:
            return False
        self._hashes.add(hash)
        arguments = ArgInfo.from_entry_func(module, remove_preproc=True)
        self._settled[applied.configuration] = (hash, MeasureCandidate(applied.schedule, arguments))
        return True

    def _answer(self, new: dict[Configuration, Configuration]) -> None:
        scores: list[float | None] = [None] * len(new)
        if self.model is not None and new:
            items = [self._settled[item][1] for item in new.values()]
            scores = list(self.model.score(self._features.of_candidates(items)).tolist())
        for (asked, settled), score in zip(new.items(), scores, strict=True):
            self._answers[asked] = self._answers[settled] = Settled(settled, score)

    def candidate(self, configuration: Configuration) -> Candidate:
        """The candidate of a configuration that was settled."""
        hash, item = self._settled[configuration]
        return to_candidate(item, self.knobs.program, hash)
