"""How the options of a submission are written on a command line, and read from there."""

from __future__ import annotations

import inspect
import json
import re
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, NamedTuple

import typer

from autotune import devices
from autotune.commands.durations import parse_duration, parse_latency, parse_moment
from autotune.commands.submit.model_inputs import (
    dims_texts,
    inputs_texts,
    number_text,
    parse_dims,
    parse_inputs,
    parse_values,
    value_text,
)
from autotune.errors import BadInput
from autotune.options import AUTO, InputSpec, TuningOptions, declared
from autotune.storage.formats import JobSpec


def parse_trials(text: str) -> int | Literal["auto"]:
    """Return the budget that a user wrote.

    Raises:
        BadInput: It is neither `auto` nor a number of trials.
    """
    if text == AUTO:
        return AUTO
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise BadInput(f"--trials {text!r}: give a number of trials, or auto")
    return int(text)


class Form(NamedTuple):
    """How the value of an option is written.

    Attributes:
        read: Makes the value of a text; of an option that is given several times, of all of its texts.
        write: Makes the texts of a value.
        several: Whether it may be given several times.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], list[str]]
    several: bool = False


# Of the options that are no plain texts, numbers or flags.
_FORMS = {
    "trials": Form(parse_trials, lambda trials: [str(trials)]),
    "inputs": Form(parse_inputs, inputs_texts, several=True),
    "dims": Form(parse_dims, dims_texts, several=True),
    "values": Form(
        parse_values, lambda values: [f"{name}={value_text(value)}" for name, value in values.items()], several=True
    ),
    "deadline": Form(
        lambda text: parse_moment("--deadline", text, time.time()),
        lambda moment: [time.strftime("%H:%M", time.localtime(moment))],
    ),
    "within_s": Form(parse_duration, lambda seconds: [f"{number_text(seconds)}s"]),
    "stop_at_ms": Form(parse_latency, lambda milliseconds: [f"{number_text(milliseconds)}ms"]),
}
_FLAGS = {name: about.flag or f"--{name.replace('_', '-')}" for name, about in declared()}
_DEFAULTS = {field.name: field.default for field in fields(TuningOptions)}


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take all options: it gets them by name as Typer reads them, in place of its `**given`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    first = [parameter for parameter in own if parameter.kind is not parameter.KEYWORD_ONLY]
    parameters = [*first, *_parameters(), *own[len(first) :]]
    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameters() -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(TuningOptions)
    for name, about in declared():
        default = _DEFAULTS[name]
        kind = hints[name]
        if name == "target" or (name in _FORMS and _FORMS[name].several):
            kind = list[str] | None
            default = None
        elif name in _FORMS:
            kind = str | None
        flags = [] if default is True else [_FLAGS[name]]  # Typer makes --flag and --no-flag
        option = typer.Option(*flags, metavar=about.metavar or None, help=about.help)
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
        )


def read_options(given: Mapping[str, Any]) -> TuningOptions:
    """Return the options that a command line gave. What is None or empty was not given.

    Raises:
        BadInput: One of them is not written as it has to be.
    """
    values = {name: value for name, value in given.items() if value not in (None, [], ())}
    return TuningOptions(**{name: _FORMS[name].read(text) if name in _FORMS else text for name, text in values.items()})


def write_options(options: TuningOptions) -> list[str]:
    """Return the words of a command line that gives these options, those too that have their default."""
    words: list[str] = []
    for name, flag in _FLAGS.items():
        value = getattr(options, name)
        if value is True:
            words.append(flag)
        elif value is False:
            words += [f"--no-{flag.removeprefix('--')}"] if _DEFAULTS[name] is True else []
        elif value is not None:
            texts = _FORMS[name].write(value) if name in _FORMS else [str(value)]
            words += [word for text in texts for word in (flag, text)]
    return words


def options_of(spec: JobSpec) -> TuningOptions:
    """Return the options with which the same job is submitted again, but for its name, which each job has once."""
    inputs, dims = _shapes(spec)
    exists = devices.for_target(spec.target).exists
    return TuningOptions(
        **spec.kept(),
        target=spec.board or (json.dumps(spec.target) if exists else spec.target_kind),
        trials=AUTO if spec.automatic else spec.trials,
        inputs=inputs,
        dims=dims,
    )


def _shapes(spec: JobSpec) -> tuple[dict[str, tuple[InputSpec, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of inputs, and the sizes of dimensions, all combinations of which are the job's."""
    if not spec.entries:
        return {item.name: (item,) for item in spec.inputs}, {}
    inputs: dict[str, dict[InputSpec, None]] = {}
    dims: dict[str, dict[int, None]] = {}
    for entry in spec.entries:
        for item in entry.asked.inputs:
            inputs.setdefault(item.name, {})[item] = None
        for name, size in entry.asked.dims.items():
            dims.setdefault(name, {})[size] = None
    return {name: tuple(shapes) for name, shapes in inputs.items()}, {
        name: tuple(sizes) for name, sizes in dims.items()
    }
