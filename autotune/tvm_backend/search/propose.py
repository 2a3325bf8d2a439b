"""Propose candidates for a task: by a strategy on its knobs, or with the schedules that are known from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice

from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import MeasureCandidate
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import Workload

from autotune.storage.formats import Candidate, Trial
from autotune.strategies.samplers import Adaptive, Sampler
from autotune.strategies.space import Configuration, Measured, Score, ValidConfiguration, View, first_valid
from autotune.strategies.strategy import Strategy
from autotune.tvm_backend.intrinsics import few_bit_schedules
from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import default_schedule
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.default_rules import default_rule
from autotune.tvm_backend.search.design_space import to_candidate, tuning_record
from autotune.tvm_backend.search.features import FeatureExtractor
from autotune.tvm_backend.search.knob_score import train_knob_score
from autotune.tvm_backend.search.knobs import Applied, Knobs
from autotune.tvm_backend.search.product_tiles import product_tiles
from autotune.tvm_backend.search.scores import estimate, nest_score
from autotune.tvm_backend.search.shared_memory import postprocessors
from autotune.tvm_backend.search.tasks import program_hash
from autotune.tvm_backend.types import IRModule, PlainTrace, Target

# At most one candidate in four, and one at least, is a warm start.
_CANDIDATES_PER_WARM_START = 4
# For a first batch without a cost model: an estimate does not tell what is alike apart, and one of a kind is enough.
_SPREAD = Adaptive(synthesis=False)


@dataclass(frozen=True)
class Proposal:
    """A batch of candidates and what it took to find them.

    Attributes:
        steps: Iterations of the search's inner loop.
        replayed: Configurations whose schedule was built.
        invalid: Replayed ones that have no valid schedule.
        repeated: Replayed ones whose program is known: measured, pending, excluded, or in this batch.
    """

    candidates: list[Candidate]
    steps: int = 0
    replayed: int = 0
    invalid: int = 0
    repeated: int = 0


@dataclass(frozen=True)
class Request:
    """Everything that a batch depends on, besides the program and the strategy.

    Attributes:
        trials: Of the task, oldest first.
        pending: Candidates that were proposed and are not measured yet.
        count: Size of the batch.
        model: The job's cost model.
        excluded: Hashes of programs that must not be proposed.
        warm_starts: Traces that did well on similar programs.
    """

    trials: Sequence[Trial]
    pending: Sequence[Candidate]
    count: int
    model: CostModel | None
    seed: int
    excluded: frozenset[str] = frozenset()
    warm_starts: Sequence[PlainTrace] = ()

    def known(self) -> set[str]:
        """Return the hashes of all programs that must not be proposed."""
        return {trial.hash for trial in self.trials} | {item.hash for item in self.pending} | self.excluded


def propose(knobs: Knobs, strategy: Callable[[View, int], Strategy], sampler: Sampler, request: Request) -> Proposal:
    """Propose up to `request.count` new candidates.

    None of them has the hash of a trial or of a pending candidate. The same arguments give the same candidates. A
    trial whose schedule is not in this space has no configuration and is known by its hash only. Up to a quarter of
    the batch are warm starts that are new here, because what is fused to an operator hardly changes its best tiles.
    """
    score = nest_score(knobs, request.model) if request.model else None
    # Where the score is the cost model itself, validation need not apply the model again.
    validator = Validator(knobs, None if score else request.model, request.known())
    view = _view(knobs, request, validator, score)
    most = max(1, request.count // _CANDIDATES_PER_WARM_START)
    warm = [item.configuration for item in first_valid(view, _warm_starts(knobs, request), most)]
    only_estimated = view.score is not None and request.model is None and not view.trials
    chosen = list(warm)
    steps = 0
    for picks in (_SPREAD, sampler) if only_estimated else (sampler,):
        search = strategy(replace(view, pending=view.pending.union(chosen)), request.seed)
        chosen += search.propose(request.count - len(chosen), picks)
        steps += search.steps
    candidates = [validator.candidate(item) for item in chosen]
    default = _default(knobs, request, candidates)
    candidates = candidates[: request.count - len(default)] + default
    return Proposal(candidates, steps, validator.replayed, validator.invalid, validator.repeated)


def _warm_starts(knobs: Knobs, request: Request) -> Iterator[Configuration]:
    """Yield what is known to be good without a trial of this task, the best first."""
    known_good = by_hand(knobs.program)
    tiles = product_tiles(knobs)
    transferred = filter(None, map(knobs.transfer, [*([known_good.trace] if known_good else []), *request.warm_starts]))
    return chain(islice(tiles, 1), transferred, tiles)


def _default(knobs: Knobs, request: Request, proposed: Sequence[Candidate]) -> list[Candidate]:
    """Return the schedule that a task has without a trial, for its first batch: nothing slower is to be the best.

    It need not be in the space. If it is among those that are proposed already, it is not returned.
    """
    is_first = not request.trials and not request.pending and request.count > 1
    candidate = by_rule(knobs.program) if is_first and knobs.target.kind.name == "llvm" else None
    excluded = request.known() | {item.hash for item in proposed}
    return [candidate] if candidate is not None and candidate.hash not in excluded else []


def _view(knobs: Knobs, request: Request, validator: Validator, score: Score | None) -> View:
    times = [(knobs.find(trial.trace), trial.median_us) for trial in request.trials]
    measured = tuple(Measured(configuration, time_us) for configuration, time_us in times if configuration is not None)
    pending = frozenset(filter(None, (knobs.find(item.trace) for item in request.pending)))
    cheap = score or train_knob_score(knobs.space, measured, estimate(knobs))
    return View(knobs.space, measured, cheap, validator.validate, pending, reranks=validator.model is not None)


@dataclass
class Validator:
    """Checks configurations: replays each once, rejects known programs, and scores the others by the cost model.

    Attributes:
        model: None leaves out the scores.
        known: Hashes of programs to reject.
        replayed, invalid, repeated: Counts, as in `Proposal`.
    """

    knobs: Knobs
    model: CostModel | None
    known: Collection[str]
    replayed: int = 0
    invalid: int = 0
    repeated: int = 0
    _answers: dict[Configuration, ValidConfiguration | None] = field(default_factory=dict)
    _programs: dict[Configuration, tuple[str, MeasureCandidate]] = field(default_factory=dict)
    _hashes: set[str] = field(default_factory=set)

    @cached_property
    def _features(self) -> FeatureExtractor:
        return FeatureExtractor(self.knobs.program, self.knobs.target)

    def validate(self, configurations: Sequence[Configuration]) -> list[ValidConfiguration | None]:
        """Check configurations, as `View.validate` says."""
        unanswered = [item for item in dict.fromkeys(configurations) if item not in self._answers]
        new: dict[Configuration, Configuration] = {}
        for item in unanswered:
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
        """Keep the program if it is new; return whether it is."""
        hash = program_hash(applied.schedule.mod)
        if hash in self.known or hash in self._hashes:
            return False
        self._hashes.add(hash)
        self._programs[applied.configuration] = (hash, _measure_candidate(applied.schedule))
        return True

    def _answer(self, new: dict[Configuration, Configuration]) -> None:
        """Score new programs; `new` maps what was asked for to the configuration that came out."""
        scores: list[float | None] = [None] * len(new)
        if self.model is not None and new:
            items = [self._programs[item][1] for item in new.values()]
            scores = list(self.model.score(self._features.of_candidates(items)).tolist())
        for (asked, valid), score in zip(new.items(), scores, strict=True):
            self._answers[asked] = self._answers[valid] = ValidConfiguration(valid, score)

    def candidate(self, configuration: Configuration) -> Candidate:
        """Return the candidate of a configuration that `validate` has returned."""
        hash, item = self._programs[configuration]
        return to_candidate(item, hash)


def rebuild(
    program: IRModule, target: Target, trials: Sequence[Trial], excluded: Collection[str]
) -> Iterator[Candidate]:
    """Yield candidates with the decisions of trials, in order, each after the postprocessors of this target.

    A schedule that does not apply to the program any more is left out.

    Args:
        program: The tensor program of the task.
        target: TVM's target.
        trials: Trials of this program, or of one that differs little.
        excluded: Hashes of programs that must not be proposed.
    """
    accepting = postprocessors(program, target)
    seen = set(excluded)
    for trial in trials:
        schedule = _rebuilt(program, target, trial, accepting)
        if schedule is not None and (hash := program_hash(schedule.mod)) not in seen:
            seen.add(hash)
            yield to_candidate(_measure_candidate(schedule), hash)


def _rebuilt(
    program: IRModule, target: Target, trial: Trial, accepting: Sequence[Callable[[Schedule], bool]]
) -> Schedule | None:
    """Return the scheduled program; None where the schedule is refused."""
    schedule = Schedule(program, seed=1, debug_mask="none", error_render_level="none")
    try:
        trace = tuning_record(trial, Workload(program), target).trace
        trace.apply_to_schedule(schedule, True)
        schedule.enter_postproc()
        valid = all(accepts(schedule) for accepts in accepting)
    except Exception:  # TVM raises many kinds; each says that the schedule does not fit
        return None
    return schedule if valid else None


def _measure_candidate(schedule: Schedule) -> MeasureCandidate:
    arguments = ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return MeasureCandidate(schedule, arguments)


def by_hand(program: IRModule) -> Candidate | None:
    """Return the candidate that is known to be good untuned, for an integer product or one of packed weights."""
    return _candidate_of(default_schedule(program) or few_bit_schedules.default_schedule(program))


def by_rule(program: IRModule) -> Candidate | None:
    """Return the candidate of `default_rule` for a program, if it has one."""
    return _candidate_of(default_rule(program))


def _candidate_of(schedule: Schedule | None) -> Candidate | None:
    return to_candidate(_measure_candidate(schedule), program_hash(schedule.mod)) if schedule is not None else None
