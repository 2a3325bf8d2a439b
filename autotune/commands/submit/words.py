"""How the options of a submission are written on a command line, and read from there."""

from __future__ import annotations

import inspect
import json
import math
import re
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer

from autotune import devices
from autotune.commands.durations import parse_duration, parse_latency, parse_moment
from autotune.errors import BadInput
from autotune.options import AUTO, Constant, InputSpec, TuningOptions, declared
from autotune.storage.formats import JobSpec, ShapeBinding

_SIZE = "[0-9]{1,18}"
_SHAPE = f"({_SIZE}(x{_SIZE})*|scalar)"
_INPUT = re.compile(rf"(?P<name>.+?)=(?P<shapes>{_SHAPE}(,{_SHAPE})*)(:(?P<dtype>[a-z]+[0-9]*))?")
_SIZES = re.compile(f"-?{_SIZE}(,-?{_SIZE})*")
_MEGABYTES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(kB|MB|GB)")
MAX_SHAPES = 16

Inputs = Mapping[str, Sequence[int] | Sequence[InputSpec]]  # the one shape of an input, or several
Dims = Mapping[str, int | Sequence[int]]


def parse_inputs(texts: Sequence[str]) -> dict[str, tuple[InputSpec, ...]]:
    """Parse inputs of the form `NAME=1x3x224x224[:float32]`, with several shapes separated by commas.

    Returns:
        The shapes of each input by its name.

    Raises:
        BadInput: A text is not of this form, or an input or a shape of it is given twice.
    """
    inputs: dict[str, tuple[InputSpec, ...]] = {}
    for text in texts:
        match = _INPUT.fullmatch(text)
        if match is None:
            raise BadInput(f"--input {text!r} is not of the form NAME=1x3x224x224 or NAME=1x128:int64")
        shapes = [() if size == "scalar" else tuple(map(int, size.split("x"))) for size in match["shapes"].split(",")]
        if any(0 in shape for shape in shapes):
            raise BadInput(f"--input {text!r} has a dimension of zero")
        _refuse_twice(f"--input {text}", shapes)
        _refuse_known("--input", match["name"], inputs)
        inputs[match["name"]] = tuple(InputSpec(match["name"], shape, match["dtype"] or "") for shape in shapes)
    return inputs


def parse_dims(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse dimensions of the form `NAME=128`, with several sizes separated by commas.

    Returns:
        The sizes by the name of the dimension.

    Raises:
        BadInput: A text is not of this form, a size is below 1, or a dimension or a size of it is given twice.
    """
    dims: dict[str, tuple[int, ...]] = _by_name("--dim", "batch=1", texts, _sizes)
    for name, sizes in dims.items():
        text = f"--dim {name}={','.join(map(str, sizes))}"
        if min(sizes) < 1:
            raise BadInput(f"{text}: a dimension is at least 1")
        _refuse_twice(text, sizes)
    return dims


def _sizes(text: str) -> tuple[int, ...]:
    if _SIZES.fullmatch(text) is None:
        raise ValueError
    return tuple(map(int, text.split(",")))


def _refuse_twice(text: str, values: Sequence[Any]) -> None:
    if len(set(values)) < len(values):
        raise BadInput(f"{text} has the same value twice")


def _refuse_known(option: str, name: str, given: Mapping[str, Any]) -> None:
    if name in given:
        raise BadInput(f"{option} names {name!r} twice")


def shape_bindings(inputs: Inputs, dims: Dims) -> tuple[ShapeBinding, ...]:
    """Return all combinations of the shapes of inputs and the sizes of dimensions.

    Each is named by what is not the same in all of them, such as `sequence=32`. A single one is called `main`. The
    order of the dimensions makes no difference: the spec of a job does not keep it.

    Raises:
        BadInput: There are more than 16.
    """
    shapes = {name: _shapes_of(name, given) for name, given in inputs.items()}
    sizes = {name: _sizes_of(given) for name, given in sorted(dims.items())}
    count = math.prod(len(choices) for choices in [*shapes.values(), *sizes.values()])
    if count > MAX_SHAPES:
        raise BadInput(f"--dim and --input give {count} combinations of shapes; a job takes {MAX_SHAPES} at most")
    various = [name for name, choices in shapes.items() if len(choices) > 1]
    various_dims = [name for name, choices in sizes.items() if len(choices) > 1]
    return tuple(
        ShapeBinding(_name(various, various_dims, chosen, numbers), chosen, numbers)
        for chosen in product(*shapes.values())
        for numbers in (dict(zip(sizes, combination, strict=True)) for combination in product(*sizes.values()))
    )


def _shapes_of(name: str, given: Sequence[int] | Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    if given and isinstance(given[0], InputSpec):
        return tuple(cast(Sequence[InputSpec], given))
    return (InputSpec(name, tuple(map(int, cast(Sequence[int], given))), ""),)


def _sizes_of(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def _name(inputs: Sequence[str], dims: Sequence[str], shapes: Sequence[InputSpec], sizes: Mapping[str, int]) -> str:
    words = [f"{name}={sizes[name]}" for name in dims]
    words += [f"{item.name}={shape_text(item.shape)}" for item in shapes if item.name in inputs]
    return ",".join(words) or "main"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as `parse_inputs` reads it."""
    return "x".join(map(str, shape)) or "scalar"


def inputs_texts(inputs: Inputs) -> list[str]:
    """Return what `parse_inputs` reads as these inputs."""
    choices = [_shapes_of(name, given) for name, given in inputs.items()]
    return [
        f"{shapes[0].name}={','.join(shape_text(item.shape) for item in shapes)}"
        + (f":{shapes[0].dtype}" if shapes[0].dtype else "")
        for shapes in choices
    ]


def input_words(texts: Iterable[str]) -> list[str]:
    """Return the words of a command line that gives inputs these shapes, each as `parse_inputs` reads it."""
    return [word for text in texts for word in ("--input", text)]


def dims_texts(dims: Dims) -> list[str]:
    """Return what `parse_dims` reads as these sizes."""
    return [f"{name}={','.join(map(str, _sizes_of(sizes)))}" for name, sizes in dims.items()]


def parse_values(texts: Sequence[str]) -> dict[str, Constant]:
    """Parse constant inputs of the form `NAME=16000`, `NAME=1,3,224,224` or, for an empty list, `NAME=[]`.

    Returns:
        The values by the name of the input.

    Raises:
        BadInput: A text is not of this form, or an input is given twice.
    """
    return _by_name("--value", "sr=16000", texts, _constant)


def value_text(value: Constant) -> str:
    """Return a constant input as `--value` takes it."""
    if isinstance(value, float | int):
        return number_text(value)
    return ",".join(map(number_text, value)) + "," * (len(value) == 1) or "[]"


def number_text(value: float) -> str:
    """Return a number with all of its digits and without an exponent, which not every option takes."""
    return format(Decimal(repr(float(value))).normalize(), "f")


def _constant(text: str) -> Constant:
    if text == "[]":
        return []
    numbers = [float(part) for part in text.removesuffix(",").split(",")]
    if not all(map(math.isfinite, numbers)):
        raise ValueError
    return numbers if "," in text else numbers[0]


def _by_name(option: str, example: str, texts: Sequence[str], number: Callable[[str], Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        _refuse_known(option, name, values)
        try:
            if not name:
                raise ValueError
            values[name] = number(value)
        except ValueError:
            raise BadInput(f"{option} {text!r} is not of the form NAME=NUMBER, such as {example}") from None
    return values


def number_or_auto(text: str, option: str, what: str) -> int | Literal["auto"]:
    """Return the number that a user wrote for an option, or `auto`.

    Raises:
        BadInput: It is neither. The message asks for `what`.
    """
    if text == AUTO:
        return AUTO
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise BadInput(f"{option} {text!r}: give {what}, or auto")
    return int(text)


def parse_share(text: str) -> float:
    """Return a part of a whole that a user wrote as `1%` or `0.01`.

    Raises:
        BadInput: It is neither, or not from 0 to 1.
    """
    try:
        share = float(Decimal(text.removesuffix("%")) / (100 if text.endswith("%") else 1))
    except ArithmeticError:
        share = -1.0
    if not 0 <= share <= 1:
        raise BadInput(f"--max-drop {text!r}: give a part of the answers, such as 1% or 0.01")
    return share


def parse_megabytes(text: str) -> float:
    """Return an amount of memory in megabytes of 10^6 bytes.

    Raises:
        BadInput: It is none, or is zero.
    """
    match = _MEGABYTES.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise BadInput(f"--memory {text!r} is not an amount of memory; write 64MB, 512kB or 2GB")
    return float(match[1]) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[match[2]]


class OptionForm(NamedTuple):
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
    "trials": OptionForm(
        lambda text: number_or_auto(text, "--trials", "a number of trials"), lambda trials: [str(trials)]
    ),
    "inputs": OptionForm(parse_inputs, inputs_texts, several=True),
    "dims": OptionForm(parse_dims, dims_texts, several=True),
    "values": OptionForm(
        parse_values, lambda values: [f"{name}={value_text(value)}" for name, value in values.items()], several=True
    ),
    "deadline": OptionForm(
        lambda text: parse_moment("--deadline", text, time.time()),
        lambda moment: [time.strftime("%H:%M", time.localtime(moment))],
    ),
    "max_drop": OptionForm(parse_share, lambda share: [number_text(share)]),
    "within_s": OptionForm(parse_duration, lambda seconds: [f"{number_text(seconds)}s"]),
    "memory_mb": OptionForm(parse_megabytes, lambda megabytes: [f"{number_text(megabytes)}MB"]),
    "stop_at_ms": OptionForm(parse_latency, lambda milliseconds: [f"{number_text(milliseconds)}ms"]),
}
FLAGS = {name: about.flag or f"--{name.replace('_', '-')}" for name, about in declared()}
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
        flags = [] if default is True else [FLAGS[name]]  # Typer makes --flag and --no-flag
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
    for name, flag in FLAGS.items():
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
    return TuningOptions(
        **spec.kept(), target=_target(spec), trials=AUTO if spec.automatic else spec.trials, inputs=inputs, dims=dims
    )


def _target(spec: JobSpec) -> str:
    """Return the target as `--target` takes it; that of commands follows from their space."""
    device = devices.kind_of(spec)
    if device is devices.CommandDevice:
        return TuningOptions.target
    return spec.board or (json.dumps(spec.target) if device.exists else spec.target_kind)


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
