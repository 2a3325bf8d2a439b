"""What a job's plan is chosen from, and what was chosen: the files of a job that was submitted with `--explore`."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import DamagedFile
from autotune.plans.exploration import Alternatives, Choice
from autotune.plans.plan import NOTHING, Plan, read
from autotune.storage import formats
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths


def read_alternatives(paths: JobPaths) -> Alternatives:
    """Read the kernels that a job's plan is chosen from.

    Raises:
        DamagedFile: The file is missing, or not whole.
        NewerFormat: A newer autotune wrote it.
        DiskProblem: It cannot be read.
    """
    try:
        alternatives = formats.read(Alternatives, paths.alternatives)
    except FileNotFoundError:
        raise DamagedFile(f"{paths.alternatives} is missing") from None
    if any(number >= len(alternatives.kernels) for number in alternatives.base):
        raise DamagedFile(f"{paths.alternatives} is damaged: its numbers do not fit together")
    return alternatives


def read_choice(paths: JobPaths, spec: JobSpec) -> Choice | None:
    """Read what was chosen for a job; None if nothing was, or the file is damaged: another choice will follow.

    Raises:
        StorageError: The file cannot be read, or a newer autotune wrote it.
    """
    if not spec.explore:
        return None
    try:
        choice = formats.read(Choice, paths.choice)
    except (FileNotFoundError, DamagedFile):
        return None
    fits = len(choice.weights) == len(choice.contenders) == len(choice.before) == len(spec.tasks)
    return choice if fits else None


def plan_as_submitted(paths: JobPaths) -> Plan:
    """Read the plan that a job was submitted with; it leaves all to the rules if there was none.

    Raises:
        ConfigError: The file is not a plan.
        DiskProblem: It cannot be read.
    """
    return read(paths.plan) if paths.plan.exists() else NOTHING


def current_plan(paths: JobPaths, spec: JobSpec) -> Plan:
    """Return the plan of a job: the one that was chosen since, or the one as submitted.

    Raises:
        StorageError: A file cannot be read.
        ConfigError: The plan that it was submitted with is none.
    """
    choice = read_choice(paths, spec)
    return choice.plan if choice else plan_as_submitted(paths)


def with_choice(spec: JobSpec, choice: Choice | None) -> JobSpec:
    """Return a spec whose tasks have their weights in the plan that was chosen, if one was."""
    if choice is None:
        return spec
    tasks = (replace(task, weight=weight) for task, weight in zip(spec.tasks, choice.weights, strict=True))
    return replace(spec, tasks=tuple(tasks))


def give_up(paths: JobPaths, spec: JobSpec) -> None:
    """Make the choice that a job has its last one: its plan as submitted if there is none.

    Raises:
        StorageError: A file could not be read or written.
    """
    weights = tuple(task.weight for task in spec.tasks)
    none = (0,) * len(weights)
    choice = read_choice(paths, spec)
    if choice is None:
        choice = Choice(step=0, plan=plan_as_submitted(paths), weights=weights, contenders=none, before=weights)
    formats.write(paths.choice, replace(choice, contenders=none, last=True))
