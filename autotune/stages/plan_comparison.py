"""Keep the faster plan: after the last choice, the whole model is timed by the chosen plan and by the one as submitted.

Sums of the times of tasks do not tell all of what a model takes: its kernels share caches and read each other's results
there. So `compile` makes a library by either plan, and `confirm` times both by turns.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from autotune.devices import kind_of
from autotune.plans.exploration import Choice
from autotune.plans.plan import Plan
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.confirmation import read_confirmation
from autotune.storage.exploration import plan_as_submitted, read_choice, with_choice

# What part of the time with the plan as submitted the whole model may take with another plan, for that to be kept.
_MOST = 0.99


def as_submitted(stage: Stage) -> tuple[Stage, Plan] | None:
    """Return a stage as one of a job with the plan as submitted, and that plan; None if nothing is to be compared.

    The tasks of its spec have their weights in that plan.

    Raises:
        StorageError: The choice, the plan or the last confirmation cannot be read.
    """
    choice = read_choice(stage.paths, stage.spec)
    if choice is None or not _is_open(stage, choice):
        return None
    submitted = plan_as_submitted(stage.paths)
    if set(choice.plan.blocks) == set(submitted.blocks):
        return None
    return replace(stage, spec=with_choice(stage.spec, _returned(choice, submitted))), submitted


def decide(stage: Stage, chosen: Path, submitted: Path) -> Choice | None:
    """Time the libraries of both plans by turns, unless that was done, and write down which plan is kept.

    Args:
        stage: The stage, which has the device to itself.
        chosen: The library by the chosen plan.
        submitted: The library by the plan as submitted.

    Returns:
        The choice as it is now; None if there is none any more.

    Raises:
        StorageError: The choice or the plan cannot be read, or the choice cannot be written.
        WorkerError: A library cannot be run.
    """
    choice = read_choice(stage.paths, stage.spec)
    if choice is None or choice.ratio is not None:
        return choice
    ratio = round(statistics.median(stage.bench.compare_models(chosen, submitted)), 4)
    kept = choice if ratio <= _MOST else _returned(choice, plan_as_submitted(stage.paths))
    decided = replace(kept, ratio=ratio)
    formats.write(stage.paths.choice, decided)
    return decided


def _is_open(stage: Stage, choice: Choice) -> bool:
    """Return whether the plan that was chosen last has not been compared, and whole models can be timed."""
    if not choice.last or choice.ratio is not None:
        return False
    if not stage.config.job.whole_model or stage.config.cluster.engine or not kind_of(stage.spec).runs_models:
        return False
    last = read_confirmation(stage.paths)
    return last is None or not last.failed


def _returned(choice: Choice, submitted: Plan) -> Choice:
    """Return a choice of the plan as submitted instead."""
    return replace(choice, plan=submitted, weights=choice.before, returned=True)
