"""Play a scenario under policies: read SCENARIO.toml, run the simulator, put the outcome in words.

seed = 1
[machine]
cpus = 32
measure_cpus = 0          # set aside for measurements on the `cpu`
devices = { cuda = 4 }
[[job]]
name = "resnet"
count = 20                # so many of them
device = "cuda"
tasks = 12
trials = 640
trials_per_round = 16
every_s = 0.0             # between the submissions of two of them
search = 10.0             # seconds of a stage with a full batch
build = { mean = 15.0, spread = 0.3 }
measure = 3.0
train = { journal = "jobs/0001-resnet/journal.jsonl" }   # lengths that such stages took
[[job]]
like = "jobs/0001-resnet" # a job that was tuned: its tasks, trials, device, and the lengths of all its stages
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from autotune.commands.terminal import Json, show
from autotune.errors import BadInput, ConfigError, StorageError, disk_problem
from autotune.planning import policies
from autotune.planning.scenario import Duration, Scenario, SimulatedJob
from autotune.planning.simulator import SimulationResult, simulate
from autotune.planning.view import Kind, MachineResources
from autotune.storage import formats, journal
from autotune.storage.formats import JobSpec
from autotune.storage.journal import StageDone
from autotune.storage.paths import JobPaths
from autotune.toml_file import Wrong, line_of, parse

_KINDS: tuple[Kind, ...] = ("search", "build", "measure", "train")
_TOP: dict[str, Any] = {"seed": 0, "machine": {}, "job": []}
_MACHINE: dict[str, Any] = {"cpus": 1, "measure_cpus": 0, "devices": {}}
_JOB: dict[str, Any] = {
    "name": "job",
    "like": "",
    "count": 1,
    "device": "cuda",
    "tasks": 1,
    "trials": 64,
    "trials_per_round": 16,
    "submitted_s": 0.0,
    "every_s": 0.0,
    "priority": 0,
    "deadline_s": -1.0,
    "search": 10.0,
    "build": 15.0,
    "measure": 3.0,
    "train": 1.0,
}
_LEAST = {"cpus": 1, "count": 1, "tasks": 1, "trials": 1, "trials_per_round": 1, "submitted_s": 0, "every_s": 0}
_DURATION: dict[str, Any] = {"mean": 0.0, "spread": 0.0, "journal": ""}


def read(path: Path) -> Scenario:
    """A scenario from its file.

    Raises:
        ConfigError: the file is wrong; its one line names the file, the line in it, and the key.
        DiskProblem: it cannot be read.
    """
    try:
        document, text = parse(path, path.read_bytes())
    except OSError as error:
        raise disk_problem("read", path, error) from error
    try:
        return _scenario(document, path.parent)
    except Wrong as wrong:
        raise ConfigError(f"{path}:{line_of(text, wrong.keys)}: {wrong}") from None


def run(scenario: Scenario, names: Sequence[str], record: bool = False) -> list[SimulationResult]:
    """The outcome under each policy; under all where none is named.

    Raises:
        BadInput: there is no such policy.
    """
    try:
        chosen = [policies.get(name) for name in names or policies.POLICIES]
    except ValueError as error:
        raise BadInput(str(error)) from error
    gc.disable()  # a hundred thousand stages make no rubbish that counting references does not find
    try:
        return [simulate(scenario, policy, record) for policy in chosen]
    finally:
        gc.enable()


def to_json(outcome: SimulationResult) -> dict[str, Any]:
    """An outcome without its spans, with what follows from it."""
    found = asdict(outcome)
    del found["spans"]
    return found | {
        "mean_completion": mean(outcome),
        "worst_completion": max(outcome.completions.values(), default=0.0),
        "utilisation": {name: outcome.utilisation(name) for name in outcome.counts},
    }


def mean(outcome: SimulationResult) -> float:
    """The mean completion of the jobs that ended."""
    return sum(outcome.completions.values()) / max(1, len(outcome.completions))


def _scenario(document: Mapping[str, Any], folder: Path) -> Scenario:
    top = _table(document, _TOP, ())
    machine = _table(top["machine"], _MACHINE, ("machine",))
    devices = ["cpu"]
    for kind, count in machine["devices"].items():
        keys = ("machine", "devices", kind)
        if type(count) is not int or count < 1:
            raise Wrong(keys, f"{kind!r} in [machine.devices] must be a whole number, at least 1")
        devices += [f"{kind}:{index}" for index in range(count)]
    cpus = tuple(range(machine["cpus"]))
    if not 0 <= machine["measure_cpus"] < len(cpus):
        raise Wrong(("machine", "measure_cpus"), "'measure_cpus' in [machine] must leave a CPU for other stages")
    described = MachineResources(cpus, tuple(devices), cpus[len(cpus) - machine["measure_cpus"] :])
    jobs: list[SimulatedJob] = []
    for index, entry in enumerate(top["job"]):
        jobs += _jobs(entry, index, len(jobs), described, folder)
    if not jobs:
        raise Wrong(("job",), "a scenario needs at least one [[job]]")
    return Scenario(described, tuple(jobs), top["seed"])


def _jobs(entry: Any, index: int, before: int, machine: MachineResources, folder: Path) -> list[SimulatedJob]:
    keys = ("job", index)
    table = _table(entry, _JOB, keys)
    if table["like"]:
        table = {**table, **_like(folder / table["like"], (*keys, "like")), **entry}
    if table["device"] not in machine.kinds:
        raise Wrong((*keys, "device"), f"'device' in [[job]]: the machine has no {table['device']!r}")
    batch = table["trials_per_round"]
    seconds = {kind: _duration(table[kind], (*keys, kind), folder, batch) for kind in _KINDS}
    return [
        SimulatedJob(
            id=before + number + 1,
            name=table["name"] + (f"-{number + 1}" if table["count"] > 1 else ""),
            device=table["device"],
            tasks=table["tasks"],
            trials=table["trials"],
            seconds=seconds,
            trials_per_round=table["trials_per_round"],
            submitted_at=table["submitted_s"] + number * table["every_s"],
            priority=table["priority"],
            deadline=table["deadline_s"] if table["deadline_s"] >= 0 else None,
        )
        for number in range(table["count"])
    ]


def _like(folder: Path, keys: tuple[str | int, ...]) -> dict[str, Any]:
    """What a job's folder says of it, as a [[job]] would."""
    paths = JobPaths(folder.absolute())
    try:
        spec = formats.read(JobSpec, paths.spec)
    except (OSError, StorageError) as error:
        raise Wrong(keys, f"'like' in [[job]]: {folder} is no folder of a job ({error})") from None
    return {
        "name": spec.name,
        "device": "cpu" if spec.target_kind == "llvm" else spec.target_kind,
        "tasks": max(1, len(spec.tunable)),
        "trials": spec.trials,
        "trials_per_round": spec.trials_per_round,
        **{kind: {"journal": str(paths.journal)} for kind in _KINDS},
    }


def _duration(value: Any, keys: tuple[str | int, ...], folder: Path, batch: int) -> Duration:
    table = _table(value if isinstance(value, dict) else {"mean": value}, _DURATION, keys)
    if not table["journal"]:
        if table["mean"] <= 0:
            raise Wrong(keys, f"{keys[-1]!r} in [[job]] must be above 0")
        return Duration(float(table["mean"]), float(table["spread"]))
    samples = _samples(folder / table["journal"], cast(Kind, keys[-1]), batch)
    if not samples:
        raise Wrong((*keys, "journal"), f"{keys[-1]!r} in [[job]]: no such stage in {table['journal']}")
    return Duration(sum(samples) / len(samples), samples=samples)


def _samples(path: Path, kind: Kind, batch: int) -> tuple[float, ...]:
    """What the stages of a kind took, or would have taken with a full batch."""
    try:
        events = journal.read(path)
    except (OSError, StorageError):
        return ()
    done = (event for event in events if isinstance(event, StageDone) and event.kind == kind and event.seconds)
    return tuple(event.seconds * batch / _count(event.summary, batch) for event in done)


def _count(summary: Mapping[str, Any], batch: int) -> int:
    """How many candidates a build or a measurement had; other stages take their time whatever the batch."""
    count = int(summary.get("built", 0) or 0) + int(summary.get("measured", 0) or 0)
    return count + int(summary.get("failed", 0) or 0) or batch


def _table(value: Any, defaults: Mapping[str, Any], keys: tuple[str | int, ...]) -> dict[str, Any]:
    """A table with defaults for what it leaves out, and nothing that is not known."""
    name = f"[{keys[0]}]" if keys else "the scenario"
    if not isinstance(value, dict):
        raise Wrong(keys, f"{keys[-1]!r} must be a table")
    for key, given in value.items():
        if key not in defaults:
            raise Wrong((*keys, key), f"unknown key {key!r} in {name}; there are {', '.join(defaults)}")
        if not _fits(given, defaults[key], key):
            raise Wrong((*keys, key), f"{key!r} in {name} must be {_kind_name(defaults[key], key)}, not {given!r}")
        if isinstance(given, int | float) and given < _LEAST.get(key, given):
            raise Wrong((*keys, key), f"{key!r} in {name} must be at least {_LEAST[key]}, not {given}")
    return {**defaults, **value}


def _fits(given: Any, default: Any, key: str) -> bool:
    if isinstance(given, bool):
        return False
    if key in _KINDS:
        return isinstance(given, int | float | dict)
    return isinstance(given, (int, float) if isinstance(default, float) else type(default))


def _kind_name(default: Any, key: str) -> str:
    if key in _KINDS:
        return "seconds, or a table with mean and spread, or journal"
    names = {int: "a whole number", float: "a number", str: "text", dict: "a table", list: "an array of tables"}
    return names[type(default)]


def command(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO.toml", help="A machine, jobs, and how long stages take.")
    ],
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="May be given again; by default all.")
    ] = None,
    gantt: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|html", help="Draw what ran when.")] = None,
    as_json: Json = False,
) -> None:
    """Play jobs on a described machine under scheduling policies, and compare what they make of it."""
    from autotune.commands import gantt as drawing
    from autotune.commands import render

    if gantt is not None:
        drawing.check(gantt)
    found = run(read(scenario), policy or [], record=gantt is not None)
    words = json.dumps([to_json(outcome) for outcome in found]) if as_json else ""
    typer.echo(words) if as_json else show(render.outcomes(found))
    if gantt is not None:
        drawing.save(gantt, found)
