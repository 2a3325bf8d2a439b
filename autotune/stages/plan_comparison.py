"""Keep the fastest plan: after the last choice, the whole model is timed by the chosen plan and by others.

Sums of the times of tasks do not tell all of what a model takes: its kernels share caches and read each other's results
there, and each waits for the one before it. So `compile` makes a library by the chosen plan, by the one as submitted,
and by the chosen one with small kernels beside each other, and `confirm` times them by turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.plans.exploration import Choice
from autotune.plans.plan import Plan
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.exploration_files import plan_as_submitted, read_choice, with_choice

# The names of plans that the chosen one is compared with: as submitted, and with small kernels beside each other.
SUBMITTED = "submitted"
BESIDE = "beside"
# What part of the time with the plan as submitted the whole model may take with another plan, for that to be kept.
_MAX_RATIO = 0.99


@dataclass(frozen=True)
class Contender:
    """Another plan that a job may have in the end.

    Attributes:
        stage: A stage as one of a job with that plan: the tasks of its spec have their weights in it.
    """

    stage: Stage
    plan: Plan


def contenders(stage: Stage) -> dict[str, Contender]:
    """Return the plans that the chosen one is compared with, by their names; none if nothing is to be compared.

    Raises:
        StorageError: The choice or the plan cannot be read.
    """
    choice = read_choice(stage.paths, stage.spec)
    if choice is None or not choice.last or choice.ratio is not None:
        return {}
    others = dict[str, Contender]()
    submitted = plan_as_submitted(stage.paths)
    if set(choice.plan.blocks) != set(submitted.blocks):
        as_submitted = replace(stage, spec=with_choice(stage.spec, _returned(choice, submitted)))
        others[SUBMITTED] = Contender(as_submitted, submitted)
    if choice.beside is not None:
        others[BESIDE] = Contender(stage, choice.beside)
    return others


def decide(stage: Stage, chosen: Path, others: Mapping[str, Path]) -> tuple[Choice, str] | None:
    """Time the libraries of all plans by turns, unless that was done, and write down which plan is kept.

    Args:
        stage: The stage, which has the device to itself.
        chosen: The library by the chosen plan.
        others: Those by its contenders.

    Returns:
        The choice as it is now, and the name of the contender whose plan it has, empty if it has the one that was
        chosen; None if there is no choice any more.

    Raises:
        StorageError: The choice or the plan cannot be read, or the choice cannot be written.
        WorkerError: A library cannot be run.
    """
    choice = read_choice(stage.paths, stage.spec)
    if choice is None:
        return None
    if choice.ratio is None:
        choice = _decided(stage, choice, chosen, others)
        formats.write(stage.paths.choice, choice)
    if choice.returned:
        return choice, SUBMITTED if SUBMITTED in others else ""
    return choice, BESIDE if choice.plan == choice.beside else ""


def _decided(stage: Stage, choice: Choice, chosen: Path, others: Mapping[str, Path]) -> Choice:
    """Return the choice of the fastest plan. Each has to be faster by a hundredth than those that change less."""
    reference = others.get(SUBMITTED, chosen)
    all_files = {"": chosen, **others}
    files = {name: file for name, file in all_files.items() if file != reference}
    shares = stage.bench.compare_models(list(files.values()), reference)
    ratio = {name: round(statistics.median(turns), 4) for name, turns in zip(files, shares, strict=True)}
    best = min(ratio, key=lambda name: ratio[name] / (_MAX_RATIO if name == BESIDE else 1.0))
    if ratio[best] > _MAX_RATIO:
        return replace(_returned(choice, plan_as_submitted(stage.paths)), ratio=ratio[best])
    plan = choice.beside if best == BESIDE and choice.beside else choice.plan
    return replace(choice, plan=plan, ratio=ratio[best])


def _returned(choice: Choice, submitted: Plan) -> Choice:
    """Return a choice of the plan as submitted instead."""
    return replace(choice, plan=submitted, weights=choice.before, returned=True)
