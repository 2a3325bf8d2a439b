"""Simulate a scenario under scheduling policies and compare the results.

A scenario describes a machine, jobs, and how long their stages take. It looks like this:

    seed = 1
    [machine]
    cpus = 32
    measure_cpus = 0          # kept for measurements on the `cpu`
    devices = { cuda = 4 }
    [[job]]
    name = "resnet"
    count = 20                # this many equal jobs
    device = "cuda"
    tasks = 12
    trials = 640
    trials_per_round = 16
    every_s = 0.0             # seconds between the submissions of two of them
    search = 10.0             # seconds of a stage with a full batch
    build = { mean = 15.0, spread = 0.3 }
    measure = 3.0
    train = { journal = "jobs/0001-resnet/journal.jsonl" }   # the durations that such stages had
    [[job]]
    like = "jobs/0001-resnet" # a job that was tuned: its tasks, trials, device, and the durations of all its stages
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune import devices, schema
from autotune.commands import render
from autotune.commands.durations import duration
from autotune.commands.terminal import Json, show, tell
from autotune.config import Config
from autotune.devices import Gpu
from autotune.errors import BadInput, InvalidData, StorageError
from autotune.planning import policies
from autotune.planning.scenario import Duration, Scenario, SimulatedJob
from autotune.planning.simulator import SimulationResult, simulate
from autotune.planning.view import Kind, MachineResources
from autotune.schema import number, titled, whole_number
from autotune.storage import formats, journal
from autotune.storage.formats import JobSpec
from autotune.storage.journal import StageDone
from autotune.storage.paths import JobPaths
from autotune.toml_file import read_tables

if TYPE_CHECKING:
    from rich.console import RenderableType

_MAX = 1_000_000  # of CPUs, devices, jobs and tasks: there is an object for each
_KINDS: tuple[Kind, ...] = ("search", "build", "measure", "train")


def run(scenario: Scenario, names: Sequence[str], record: bool = False) -> list[SimulationResult]:
    """Simulate a scenario.

    Args:
        names: The policies; none means all of them.
        record: Whether the results hold every stage, for a chart.

    Returns:
        One result for each policy.

    Raises:
        BadInput: There is no such policy.
    """
    try:
        chosen = [policies.get(name) for name in names or policies.POLICIES]
    except ValueError as error:
        raise BadInput(str(error)) from error
    gc.disable()  # the simulator makes no reference cycles, and looking for them takes time
    try:
        return [simulate(scenario, policy, record) for policy in chosen]
    finally:
        gc.enable()


def to_json(result: SimulationResult) -> dict[str, Any]:
    """Return a result as JSON values: without the single stages, with means and utilisation in addition."""
    values = asdict(result)
    del values["spans"]
    return values | {
        "mean_completion": mean(result),
        "worst_completion": max(result.completions.values(), default=0.0),
        "utilisation": {name: result.utilisation(name) for name in result.counts},
    }


def mean(result: SimulationResult) -> float:
    """Return the mean completion time of the jobs that ended, in seconds."""
    return sum(result.completions.values()) / max(1, len(result.completions))


def _table_of(results: Sequence[SimulationResult]) -> RenderableType:
    """Return a row for each policy, and below the table why resources were idle."""
    from rich.console import Group

    resources = list(results[0].counts) if results else []
    numbers = ("MAKESPAN", "OVER BOUND", "MEAN END", "WORST END", *(f"{name} BUSY" for name in resources))
    table = render.table(("POLICY", *numbers), [_row(result, resources) for result in results], numbers)
    bound = f"lower bound {duration(max((result.bound for result in results), default=0.0))}"
    idle = [line for result in results for name in resources if (line := _idle(result, name))]
    return Group(table, "", bound, *idle)


def _row(result: SimulationResult, resources: Sequence[str]) -> list[str]:
    ends = (duration(mean(result)), duration(max(result.completions.values(), default=0.0)))
    over = f"{result.makespan / result.bound:.3f}" if result.bound else "-"
    return [
        result.policy,
        duration(result.makespan),
        over,
        *ends,
        *(f"{result.utilisation(name):.1%}" for name in resources),
    ]


def _idle(outcome: SimulationResult, resource: str) -> str:
    """Return why a resource was idle, as shares of its time."""
    whole = outcome.counts[resource] * outcome.makespan
    causes = sorted(outcome.idle.get(resource, {}).items(), key=lambda item: -item[1])
    shares = ", ".join(
        f"{cause} {seconds / whole:.1%}" for cause, seconds in causes if whole and seconds / whole > 1e-3
    )
    return f"{outcome.policy}: {resource} idle: {shares}" if shares else ""


@dataclass(frozen=True)
class DurationTable:
    """The duration of a job's stages of one kind: a mean in seconds and its spread, or a journal with such stages."""

    mean: float = 0.0
    spread: Annotated[float, number(0.0)] = 0.0
    journal: str = ""


@dataclass(frozen=True)
class MachineTable:
    """The section `[machine]` of a scenario."""

    cpus: Annotated[int, whole_number(1, most=_MAX)] = 1
    measure_cpus: int = 0
    devices: dict[str, Annotated[int, whole_number(1, most=_MAX, title=f"a whole number from 1 to {_MAX}")]] = field(
        default_factory=dict
    )


_Duration = Annotated[float | DurationTable, titled("seconds, or a table with mean and spread, or journal")]


@dataclass(frozen=True)
class JobTable:
    """An entry `[[job]]` of a scenario."""

    name: str = "job"
    like: str = ""
    count: Annotated[int, whole_number(1, most=_MAX)] = 1
    device: str = "cuda"
    tasks: Annotated[int, whole_number(1, most=_MAX)] = 1
    trials: Annotated[int, whole_number(1)] = 64
    trials_per_round: Annotated[int, whole_number(1)] = 16
    submitted_s: Annotated[float, number(0.0)] = 0.0
    every_s: Annotated[float, number(0.0)] = 0.0
    priority: Annotated[int, whole_number()] = 0
    deadline_s: Annotated[float, number()] = -1.0
    search: _Duration = 10.0
    build: _Duration = 15.0
    measure: _Duration = 3.0
    train: _Duration = 1.0


@dataclass(frozen=True)
class ScenarioFile:
    """A whole scenario, as it is written."""

    seed: Annotated[int, whole_number()] = 0
    machine: MachineTable = MachineTable()
    job: Annotated[tuple[JobTable, ...], titled("an array of tables")] = ()


def read(path: Path) -> Scenario:
    """Read a scenario.

    Raises:
        ConfigError: The file is wrong. The message names the file, the line, the key and what is wrong.
        DiskProblem: The file cannot be read.
    """
    with read_tables(ScenarioFile, path, "the scenario") as (file, document):
        return _scenario(file, document, path.parent)


def _scenario(file: ScenarioFile, document: Mapping[str, Any], folder: Path) -> Scenario:
    machine = _machine(file.machine)
    jobs: list[SimulatedJob] = []
    for index, table in enumerate(file.job):
        keys = ("job", index)
        if table.like:
            values = {**_like(folder / table.like, (*keys, "like")), **document["job"][index]}
            table = schema.convert(JobTable, values, keys=keys, table="a table")
        jobs += _jobs(table, keys, len(jobs), machine, folder)
    if not jobs:
        raise InvalidData("a scenario needs at least one [[job]]", ("job",))
    return Scenario(machine, tuple(jobs), file.seed)


def _machine(table: MachineTable) -> MachineResources:
    cpus = tuple(range(table.cpus))
    if not 0 <= table.measure_cpus < len(cpus):
        keys = ("machine", "measure_cpus")
        raise InvalidData("'measure_cpus' in [machine] must leave a CPU for other stages", keys)
    devices = [f"{kind}:{index}" for kind, count in table.devices.items() for index in range(count)]
    return MachineResources(cpus, ("cpu", *devices), cpus[len(cpus) - table.measure_cpus :])


def _jobs(
    table: JobTable, keys: schema.Keys, before: int, machine: MachineResources, folder: Path
) -> list[SimulatedJob]:
    """Return the jobs of one entry. `before` is the number of jobs of earlier entries."""
    if table.device not in machine.kinds:
        raise InvalidData(f"'device' in [[job]]: the machine has no {table.device!r}", (*keys, "device"))
    seconds = {kind: _duration(table, kind, keys, folder) for kind in _KINDS}
    return [
        SimulatedJob(
            id=before + number + 1,
            name=table.name + (f"-{number + 1}" if table.count > 1 else ""),
            device=table.device,
            tasks=table.tasks,
            trials=table.trials,
            seconds=seconds,
            trials_per_round=table.trials_per_round,
            submitted_at=table.submitted_s + number * table.every_s,
            priority=table.priority,
            deadline=table.deadline_s if table.deadline_s >= 0 else None,
        )
        for number in range(table.count)
    ]


def _like(folder: Path, keys: schema.Keys) -> dict[str, Any]:
    """Describe the job in a folder as a table `[[job]]`."""
    paths = JobPaths(folder.absolute())
    try:
        spec = formats.read(JobSpec, paths.spec)
    except (OSError, StorageError) as error:
        raise InvalidData(f"'like' in [[job]]: {folder} is no folder of a job ({error})", keys) from None
    return {
        "name": spec.name,
        "device": _device(spec),
        "tasks": max(1, len(spec.tunable)),
        "trials": spec.trials,
        "trials_per_round": spec.trials_per_round,
        **{kind: {"journal": str(paths.journal)} for kind in _KINDS},
    }


def _device(spec: JobSpec) -> str:
    """Return what a scenario calls the kind of device of a job. The model of a GPU is not told apart."""
    return Gpu.family if devices.kind_of(spec) is Gpu else devices.of_job(spec, Config()).kind()


def _duration(job: JobTable, kind: Kind, keys: schema.Keys, folder: Path) -> Duration:
    given = getattr(job, kind)
    table = given if isinstance(given, DurationTable) else DurationTable(given)
    if not table.journal:
        if not 0 < table.mean < math.inf:  # NaN is not above 0 either
            raise InvalidData(f"{kind!r} in [[job]] must be above 0 and finite, not {table.mean:g}", (*keys, kind))
        return Duration(table.mean, table.spread)
    samples = _samples(folder / table.journal, kind, job.trials_per_round)
    if not samples:
        raise InvalidData(f"{kind!r} in [[job]]: no such stage in {table.journal}", (*keys, kind, "journal"))
    return Duration(sum(samples) / len(samples), samples=samples)


def _samples(path: Path, kind: Kind, batch: int) -> tuple[float, ...]:
    """Return the durations of the stages of one kind in seconds, scaled to a full batch."""
    try:
        events = journal.read(path)
    except (OSError, StorageError):
        return ()
    done = (event for event in events if isinstance(event, StageDone) and event.kind == kind and event.seconds)
    return tuple(event.seconds * batch / _candidates(event.summary, batch) for event in done)


def _candidates(summary: Mapping[str, Any], batch: int) -> int:
    """Return how many candidates a build or a measurement had; the duration of other stages does not depend on it."""
    count = int(summary.get("built", 0) or 0) + int(summary.get("measured", 0) or 0)
    return count + int(summary.get("failed", 0) or 0) or batch


def command(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO.toml", help="Describes a machine, jobs, and how long stages take.")
    ],
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A policy; may be repeated; by default all.")
    ] = None,
    gantt: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|html", help="Draw a chart of the stages.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate jobs on a machine that you describe, and compare scheduling policies."""
    from autotune.commands import gantt as chart

    if gantt is not None:
        chart.check(gantt)
    results = run(read(scenario), policy or [], record=gantt is not None)
    if as_json:
        tell(json.dumps([to_json(result) for result in results]))
    else:
        show(_table_of(results))
    if gantt is not None:
        chart.save(gantt, results)
