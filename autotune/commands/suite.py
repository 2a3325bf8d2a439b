"""Read a suite for `autotune sweep`: models, and the ways in which each of them is to be tuned.

A suite looks like this; only `models` is needed, and each list that is left out has the one value of the workspace:

    models = ["resnet18.onnx", "bert.onnx"]    # relative to this file
    targets = ["llvm"]
    strategies = ["beam", "random"]
    samplers = ["greedy"]                      # by default each strategy's own
    trials = [200, 400]
    seeds = [0, 1, 2]
    latency = "tasks"                          # the sum of the tasks' best times; "model": timed as a whole
    [inputs."bert.onnx"]                       # of the model of this name: as `submit` takes --input, --dim and --value
    dim = ["sequence=128"]
    [reference]                                # what the others are compared with; by default the first strategy
    strategy = "random"

A point is one value of each list. Its job starts from nothing: it shares no trials with other jobs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from autotune import schema, strategies
from autotune.commands.submit.words import parse_dims, parse_inputs, parse_values
from autotune.config import Config
from autotune.errors import BadInput, BadTarget, InvalidData, disk_problem
from autotune.options import AUTO, Constant, InputSpec
from autotune.schema import whole_number
from autotune.toml_file import read_tables
from autotune.tvm_backend.target import target_kind

_CHUNK = 1 << 20
_TRIALS = 640  # where the workspace has no number: ways are compared at the same budget


@dataclass(frozen=True)
class ReferenceTable:
    """The section `[reference]` of a suite. What is left out is as in the point that is compared."""

    strategy: str = ""
    sampler: str = ""
    trials: int = 0


@dataclass(frozen=True)
class InputsTable:
    """A section `[inputs."MODEL"]` of a suite: what `submit` takes as --input, --dim and --value."""

    input: tuple[str, ...] = ()
    dim: tuple[str, ...] = ()
    value: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteFile:
    """A whole suite, as it is written."""

    models: tuple[str, ...]
    targets: tuple[str, ...] = ("llvm",)
    strategies: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    trials: tuple[Annotated[int, whole_number(1)], ...] = ()
    seeds: tuple[Annotated[int, whole_number(0)], ...] = (0,)
    latency: Literal["tasks", "model"] = "tasks"
    inputs: dict[str, InputsTable] = field(default_factory=dict)
    reference: ReferenceTable = ReferenceTable()


class Way(NamedTuple):
    """How models are tuned; the points of a way differ in their seeds only."""

    model: Path
    target: str
    strategy: str
    sampler: str
    trials: int


@dataclass(frozen=True)
class Point:
    """One job of a sweep. Its name follows from everything that it is, the content of the model included."""

    way: Way
    seed: int
    name: str


@dataclass(frozen=True)
class ModelInputs:
    """The parsed options for the inputs of a model, as `TuningOptions` has them, and their text."""

    inputs: Mapping[str, tuple[InputSpec, ...]]
    dims: Mapping[str, tuple[int, ...]]
    values: Mapping[str, Constant]
    text: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Suite:
    """A suite that was expanded.

    Attributes:
        name: The name of the file, without its ending.
        points: The jobs.
        references: The way that each way is compared with.
        latency: What is compared: "tasks" or "model".
        inputs: The inputs of the models for which the suite gives any.
    """

    name: str
    points: tuple[Point, ...]
    references: dict[Way, Way]
    latency: str
    inputs: dict[Path, ModelInputs]


def read(path: Path, config: Config) -> Suite:
    """Read a suite and expand it.

    Raises:
        ConfigError: The file is wrong. The message names the file, the line, the key and what is wrong.
        DiskProblem: The file or a model cannot be read.
    """
    with read_tables(SuiteFile, path, "the suite") as (file, _):
        ways = list(dict.fromkeys(_ways(file, config, path.parent)))
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem).strip("_-")[:16] or "sweep"
        references = {way: _reference(way, ways, file.reference) for way in ways}
        inputs = dict(_inputs(file, path.parent))
        points = tuple(_points(name, ways, dict.fromkeys(file.seeds), inputs))
        return Suite(name, points, references, file.latency, inputs)


def _ways(file: SuiteFile, config: Config, folder: Path) -> Iterator[Way]:
    """Yield every way, with what it left out filled in. Some may be the same."""
    for key in ("models", "targets", "seeds"):
        if not getattr(file, key):
            raise InvalidData(f"{key!r} names nothing", (key,))
    models = [_model(folder / model, ("models", index)) for index, model in enumerate(file.models)]
    _check_targets(file.targets)
    chosen = file.strategies or (config.search.strategy,)
    own = {strategy: _own_sampler(strategy, index) for index, strategy in enumerate(chosen)}
    _check_samplers(file.samplers)
    samplers = file.samplers or (config.search.sampler,)
    trials = file.trials or (_TRIALS if config.job.trials == AUTO else config.job.trials,)
    for model, target, strategy, sampler, count in itertools.product(models, file.targets, chosen, samplers, trials):
        yield Way(model, target, strategy, sampler or own[strategy], count)


def _model(path: Path, keys: schema.Keys) -> Path:
    if not path.is_file():
        raise InvalidData(f"there is no model {path}", keys)
    return path.resolve()


def _inputs(file: SuiteFile, folder: Path) -> Iterator[tuple[Path, ModelInputs]]:
    for model, table in file.inputs.items():
        if model not in file.models:
            raise InvalidData(f"{model!r} is not one of the models", ("inputs", model))
        try:
            parsed = parse_inputs(table.input), parse_dims(table.dim), parse_values(table.value)
        except BadInput as error:
            raise InvalidData(str(error), ("inputs", model)) from None
        yield (folder / model).resolve(), ModelInputs(*parsed, (table.input, table.dim, table.value))


def _check_targets(targets: Sequence[str]) -> None:
    for index, target in enumerate(targets):
        try:
            target_kind(target)
        except BadTarget as error:
            raise InvalidData(str(error), ("targets", index)) from None


def _own_sampler(strategy: str, index: int) -> str:
    try:
        return strategies.default_sampler(strategy)
    except ValueError as error:
        raise InvalidData(str(error), ("strategies", index)) from None


def _check_samplers(samplers: Sequence[str]) -> None:
    for index, sampler in enumerate(samplers):
        if sampler not in ("", *strategies.SAMPLERS):
            raise InvalidData(
                f"no sampler {sampler!r}; there are {', '.join(strategies.SAMPLERS)}", ("samplers", index)
            )


def _reference(way: Way, ways: Sequence[Way], table: ReferenceTable) -> Way:
    """Return the way that another one is compared with: of those that `[reference]` allows, the one most like it."""
    strategy = table.strategy or ways[0].strategy
    allowed = [
        other
        for other in ways
        if (other.model, other.target, other.strategy) == (way.model, way.target, strategy)
        and other.sampler == (table.sampler or other.sampler)
        and other.trials == (table.trials or other.trials)
    ]
    if not allowed:
        raise InvalidData("[reference] is not one of the points", ("reference",))
    return max(allowed, key=lambda other: (other.trials == way.trials, other.sampler == way.sampler))


def _points(
    suite: str, ways: Sequence[Way], seeds: Iterable[int], inputs: Mapping[Path, ModelInputs]
) -> Iterator[Point]:
    contents = {model: _digest_of(model) for model in {way.model for way in ways}}
    for way, seed in itertools.product(ways, seeds):
        given = [inputs[way.model].text] if way.model in inputs else []
        identity = json.dumps([contents[way.model], *way[1:], seed, *given])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
        stem = re.sub(r"[^A-Za-z0-9_]+", "_", way.model.stem)[:14].strip("_") or "model"
        yield Point(way, seed, f"{suite}.{stem}.{way.strategy[:10]}.{seed}.{digest}"[-64:].lstrip("._-"))


def _digest_of(model: Path) -> str:
    digest = hashlib.sha256()
    try:
        with model.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise disk_problem("read", model, error) from error
    return digest.hexdigest()
