"""What a space file says: parameters, restrictions, and the commands that build, measure and check a combination.

`SPACE.toml` is read by `toml_file`, `SPACE.json` is in the format T1 (`t1.py`). Both become a `Definition`, which is
checked as a whole. A job keeps it as `space.json`, and runs nothing that is not in it.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from autotune import schema
from autotune.command_jobs.command_template import Command, Value, Written, check_placeholders, is_text
from autotune.command_jobs.parameter_expressions import Expression
from autotune.errors import InvalidData, one_line
from autotune.metric import Metric
from autotune.schema import at_least, titled, whole_number

Values = dict[str, Value]
Parameters = dict[str, tuple[Annotated[Value, titled("a number, a text, true or false")], ...]]
Megabytes = Annotated[int, whole_number(1, most=10**7)]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_PARAMETERS = 256
_MAX_VALUES = 10_000
_MAX_RESTRICTIONS = 256
_MAX_TEXT_LENGTH = 4096
_LARGEST = 2**53  # which a floating-point number has exactly, as do JSON and NumPy


@dataclass(frozen=True)
class Build:
    """The command that builds a combination in its folder. With `shell`, a shell runs it."""

    command: Written
    shell: bool = False
    timeout_s: Annotated[float, at_least(0.1, "After so many seconds a build is killed.")] | None = None


@dataclass(frozen=True)
class Measure:
    """The command that measures a combination.

    Without `number` and `timed` the last line that it prints has to be one number.

    Attributes:
        shell: Whether a shell runs it.
        timed: Whether it is timed, from its start to its end, and prints what it likes.
        number: A regular expression whose group is the number, in the last place of the output where it fits.
        repeats: How often it is run for a trial. The median counts.
        warmup: How often it is run before that.
        timeout_s: The seconds after which all of that together is killed; None for the setting.
    """

    command: Written
    shell: bool = False
    timed: bool = False
    number: str | None = None
    repeats: Annotated[int, whole_number(1, most=1000)] = 3
    warmup: Annotated[int, whole_number(0, most=1000)] = 0
    timeout_s: Annotated[float, at_least(0.1, "After so many seconds a measurement is killed.")] | None = None


@dataclass(frozen=True)
class Check:
    """How a combination that would be the best so far is checked: its command succeeds, and prints what it should.

    Attributes:
        command: The command; None for another run of the one that measures.
        shell: Whether a shell runs it.
        output: The file whose text it has to print; None if it may print anything.
        tolerance: The relative error that a number in it may have.
        timeout_s: The seconds after which it is killed; None for the setting of measurements.
    """

    command: Written | None = None
    shell: bool = False
    output: str | None = None
    tolerance: Annotated[float, at_least(0.0, "The largest relative error of a number.")] = 0.0
    timeout_s: Annotated[float, at_least(0.1, "After so many seconds a check is killed.")] | None = None


@dataclass(frozen=True)
class Machine:
    """What a measurement needs: a number of CPUs, all that there are by default, and perhaps a GPU."""

    cpus: Annotated[int, whole_number(1, most=4096)] | None = None
    gpu: bool = False


@dataclass(frozen=True)
class File:
    """A file of the user's that each trial finds in its folder, as it was submitted."""

    size: int
    crc32: int
    sha256: str
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What is tuned, and how.

    Attributes:
        parameters: The values of each parameter, in an order in which neighbours are similar.
        restrictions: What has to be true of a combination.
        build: How it is built; None if there is nothing to build.
        check: How it is checked; None if it is not.
        metric: What it is measured by.
        machine: What a measurement needs.
        environment: Variables that the commands get besides those of the daemon.
        disk_mb: How much a trial may write, in megabytes.
        files: The files that each trial gets a copy of, by their names in its folder.
    """

    FORMAT = ("autotune-space", 1)

    parameters: Parameters
    measure: Measure
    restrictions: tuple[str, ...] = ()
    build: Build | None = None
    check: Check | None = None
    metric: Metric = field(default_factory=Metric)
    machine: Machine = field(default_factory=Machine)
    environment: dict[str, str] = field(default_factory=dict)
    disk_mb: Megabytes = 1024
    files: dict[str, File] = field(default_factory=dict)

    @cached_property
    def commands(self) -> dict[str, Command]:
        """The commands by what they do.

        Raises:
            InvalidData: One is no command, or needs a shell and does not say so. `keys` lead to it.
        """
        sections = {"build": self.build, "measure": self.measure, "check": self.check}
        commands: dict[str, Command] = {}
        for name, part in sections.items():
            if part is not None and part.command is not None:
                with _under(name, "command"):
                    commands[name] = Command.of(part.command, part.shell)
        return commands

    @cached_property
    def digest(self) -> str:
        """What tells it from others whose trials are not worth the same: all but the limits."""
        described = schema.plain(self)
        for part in ("build", "measure", "check"):
            for key in ("timeout_s", "command", "shell"):
                (described[part] or {}).pop(key, None)
        for part, command in self.commands.items():
            described[part]["command"] = command.template
        del described["disk_mb"], described["machine"]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    def candidate_hash(self, values: Mapping[str, Value]) -> str:
        """Return the name of a combination, which is that of its folder."""
        text = json.dumps([self.digest, {name: values[name] for name in self.parameters}])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check_itself(self) -> None:
        """Check what the types do not say.

        Raises:
            InvalidData: Something is wrong. `keys` lead to it.
        """
        _check_parameters(self.parameters)
        if len(self.restrictions) > _MAX_RESTRICTIONS:
            raise InvalidData(f"there are more than {_MAX_RESTRICTIONS} restrictions", ("restrictions",))
        for place, text in enumerate(self.restrictions):
            _check_restriction(text, self.parameters, ("restrictions", place))
        for name, command in self.commands.items():
            with _under(name, "command"):
                command.check(self.parameters)
        _check_number(self.measure)
        _check_environment(self.environment, self.parameters)
        if self.metric.better == "larger" and self.measure.timed:
            raise InvalidData("a command that is timed is better the shorter it runs", ("metric", "better"))
        if self.check is not None and self.check.command is None and self.check.output is None:
            raise InvalidData("[check] needs a command, an output, or both", ("check",))


def _check_parameters(parameters: Mapping[str, tuple[Value, ...]]) -> None:
    if not 0 < len(parameters) <= _MAX_PARAMETERS:
        raise InvalidData(f"[parameters] needs from 1 to {_MAX_PARAMETERS} parameters", ("parameters",))
    for name, values in parameters.items():
        keys = ("parameters", name)
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            raise InvalidData(f"{name!r} is no name for a parameter; use letters, digits and underscores", keys)
        if not 0 < len(values) <= _MAX_VALUES:
            raise InvalidData(f"{name!r} has {len(values)} values; give it from 1 to {_MAX_VALUES}", keys)
        for value in values:
            _check_value(name, value, keys)
        if len({(isinstance(value, str), value) for value in values}) < len(values):
            raise InvalidData(f"{name!r} has a value twice", keys)


def _check_value(name: str, value: Value, keys: tuple[str, ...]) -> None:
    if isinstance(value, str):
        if not is_text(value) or len(value) > _MAX_TEXT_LENGTH:
            raise InvalidData(
                f"{name!r} has a text with a null character, of more than 4096 characters or not Unicode", keys
            )
    elif not abs(value) <= _LARGEST:  # which NaN is not
        raise InvalidData(f"{name!r} has a number that is not finite or larger than 2^53", keys)


def _check_restriction(text: str, parameters: Mapping[str, Any], keys: tuple[str | int, ...]) -> None:
    with _under(*keys):
        expression = Expression.of(text, parameters)
    if not expression.names:
        raise InvalidData(f"{text!r} names no parameter", keys)


def _check_number(measure: Measure) -> None:
    keys = ("measure", "number")
    if measure.number is None:
        return
    if measure.timed:
        raise InvalidData("a command that is timed prints no number; leave out 'number' or 'timed'", keys)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what later versions of Python read in another way
            groups = re.compile(measure.number).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidData(f"'number' is no regular expression: {one_line(error)}", keys) from None
    if groups != 1:
        raise InvalidData("'number' needs one group, such as 'took ([0-9.]+) ms'", keys)


def _check_environment(environment: Mapping[str, str], names: Mapping[str, Any]) -> None:
    for name, value in environment.items():
        keys = ("environment", name)
        if not _NAME.fullmatch(name) or not is_text(value):
            raise InvalidData(f"{name!r} is no environment variable", keys)
        with _under(*keys):
            check_placeholders(value, names)


@contextmanager
def _under(*keys: str | int) -> Iterator[None]:
    """Say where a fault is that the block finds."""
    try:
        yield
    except InvalidData as error:
        raise InvalidData(str(error), keys) from None
