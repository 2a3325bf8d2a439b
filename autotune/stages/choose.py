"""Choose: with `--explore`, choose the plan of a job by what its tasks have taken so far.

The first choice follows when every task has been tried. Tasks that would be chosen if they were a little faster go on
to get trials then, like those of the plan. After the last choice only those of the plan do, and the whole model is
compiled by it and by the plan as submitted: the faster one is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import BadInput, DamagedFile
from autotune.plans.exploration import Alternatives, Choice, base_layouts_only, plan_of
from autotune.plans.plan import Plan
from autotune.stages import compile
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.exploration_files import read_alternatives, read_choice, with_choice
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_stage
from autotune.tvm_backend.types import IRModule

# After what part of the job's trials a plan is chosen.
_SHARES = (0.3, 0.45, 0.6)
# The first choice does not wait longer for tasks that have not been tried.
_LATEST_FIRST = 0.5
# A task goes on to get trials if the plan would have it were it faster by this part, after each choice.
_FASTER = (0.2, 0.1)


def run(stage: Stage) -> dict[str, Any]:
    """Write down which plan is the fastest by the times so far, then end the round, or have the whole model timed.

    Returns:
        `before_us` and `chosen_us`, the sums of the best times of the tasks without a choice and with it; and `blocks`,
        how many blocks differ. Without a choice, `skipped`.

    Raises:
        StorageError: A file of the job cannot be read.
        ModelError: Its model cannot be read.
    """
    if not is_due(stage):
        _leave(stage)
        return {"skipped": True}
    alternatives = read_alternatives(stage.paths)
    times = _times(stage)
    before = _counts(stage, _base_weights(alternatives))
    passed = _passed(stage)
    plan, weights, near = _best(stage, alternatives, times, passed)
    last = passed == len(_SHARES)
    beside = _beside(stage, plan) if last else plan
    choice = Choice(
        step=passed,
        plan=plan,
        weights=_counts(stage, weights),
        contenders=(0,) * len(before) if last else _counts(stage, near),
        before=before,
        last=last,
        beside=None if beside == plan else beside,
    )
    formats.write(stage.paths.choice, choice)
    _leave(replace(stage, spec=with_choice(stage.spec, choice)))
    sums = {"before_us": _total(stage, before, times), "chosen_us": _total(stage, choice.weights, times)}
    return {**sums, "blocks": len(plan.blocks) - len(alternatives.given.blocks)}


def _leave(stage: Stage) -> None:
    if compile.is_due(stage):
        stage.advance("compile")
    else:
        stage.end_round()


def is_due(stage: Stage) -> bool:
    """Return whether the plan of a job is to be chosen now, for the first time or again.

    Raises:
        StorageError: A log or the last choice cannot be read.
    """
    if not stage.spec.explore or _is_under_way(stage):
        return False
    last = read_choice(stage.paths, stage.spec)
    passed = _passed(stage)
    if last is not None:
        return not last.last and passed > last.step
    if is_due_at_once(stage.spec):
        return True
    tried = all(stage.log(task).entries() for task in stage.spec.tunable)
    return passed > 0 and (tried or _done(stage) >= _LATEST_FIRST * _budget(stage.spec))


def is_due_at_once(spec: JobSpec) -> bool:
    """Return whether the plan of a job that is new can be chosen, because each of its tasks was tried before."""
    return spec.explore and bool(spec.tunable) and all(spec.known_at_submit[task] for task in spec.tunable)


def _best(
    stage: Stage, alternatives: Alternatives, times: Mapping[str, float], passed: int
) -> tuple[Plan, dict[str, int], dict[str, int]]:
    """Return the fastest plan that the model can be prepared by, how often it has each task, and its contenders."""
    from autotune.plans.kernel_selection import choose, contenders

    untuned = {task.hash for task in stage.spec.tasks if not task.tunable}
    nearly = _FASTER[0 if passed < len(_FASTER) else 1]
    for some in (alternatives, base_layouts_only(alternatives)):
        chosen = choose(some, times)
        if chosen is None:
            continue
        plan = plan_of(some, chosen)
        with contextlib.suppress(BadInput):
            weights = _weights(stage, plan)
            if weights.keys() <= times.keys() | untuned:  # kernels beside others may be other tasks
                near = contenders(some, times, chosen, nearly) if passed < len(_SHARES) else {}
                return plan, weights, near
    return alternatives.given, _base_weights(alternatives), {}


def _weights(stage: Stage, plan: Plan) -> dict[str, int]:
    """Return how often the model has each task, by hash, if it is prepared by a plan.

    Raises:
        BadInput: It cannot be.
    """
    from autotune.tvm_backend.search.tasks import task_weights

    return task_weights(_prepared(stage, plan), stage.target)


def _beside(stage: Stage, plan: Plan) -> Plan:
    """Return a plan with small kernels beside each other; the same one if no two can be, or not in so little memory."""
    from autotune.tvm_backend.graph.concurrent import beside_where_small

    beside = beside_where_small(_prepared(stage, plan), plan, stage.target)
    try:
        _prepared(stage, beside)
    except BadInput:
        return plan
    return beside


def _prepared(stage: Stage, plan: Plan) -> IRModule:
    """Prepare the model by a plan.

    Raises:
        BadInput: It cannot be.
    """
    from autotune.tvm_backend.export.compilation import prepare_by_plan
    from autotune.tvm_backend.export.submitted import submitted

    (model,) = submitted(stage.paths, stage.spec)
    return prepare_by_plan(model.module(), stage.target, stage.spec, plan)


def _base_weights(alternatives: Alternatives) -> dict[str, int]:
    weights = dict[str, int]()
    for number in alternatives.base:
        task = alternatives.kernels[number].task
        weights[task] = weights.get(task, 0) + 1
    weights.pop("", None)
    return weights


def _counts(stage: Stage, weights: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(weights.get(task.hash, 0) for task in stage.spec.tasks)


def _times(stage: Stage) -> dict[str, float]:
    """Return the best time of each task that has one, by hash."""
    times = dict[str, float]()
    for index in stage.spec.tunable:
        medians = [entry.median_us for entry in stage.log(index).entries() if entry.median_us is not None]
        times |= {stage.spec.tasks[index].hash: min(medians)} if medians else {}
    return times


def _total(stage: Stage, weights: tuple[int, ...], times: Mapping[str, float]) -> float:
    pairs = zip(stage.spec.tasks, weights, strict=True)
    return round(sum(weight * times.get(task.hash, 0.0) for task, weight in pairs), 3)


def _done(stage: Stage) -> int:
    """Return how many trials there are that were not when the job was submitted."""
    return sum(len(stage.log(task).entries()) - stage.spec.known_at_submit[task] for task in stage.spec.tunable)


def _budget(spec: JobSpec) -> int:
    """Return how many trials a job may add to those that there were."""
    return max(0, spec.trials - (0 if spec.fresh else sum(spec.known_at_submit)))


def _passed(stage: Stage) -> int:
    """Return how many of the shares of its trials a job has made."""
    return sum(_done(stage) >= share * _budget(stage.spec) for share in _SHARES)


def _is_under_way(stage: Stage) -> bool:
    """Return whether another round of the job is about to choose."""
    own = stage.paths.stage(stage.file.task, stage.file.round)
    return any(kind == "choose" for path, kind in _stages(stage) if path != own)


def _stages(stage: Stage) -> Iterator[tuple[Any, formats.Kind]]:
    for path in stage.paths.stage_files():
        with contextlib.suppress(FileNotFoundError, DamagedFile):  # it has ended since, or begins again
            yield path, read_stage(stage.paths, path, stage.spec).kind
