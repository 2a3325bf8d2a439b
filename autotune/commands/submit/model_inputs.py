"""Parse the options that describe the inputs of a model: `--input`, `--dim` and `--value`.

The first two take several shapes or sizes. The model is then tuned for each combination.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any, cast

from autotune.errors import BadInput
from autotune.options import Constant, InputSpec
from autotune.storage.formats import ShapeBinding

_SIZE = "[0-9]{1,18}"
_SHAPE = f"({_SIZE}(x{_SIZE})*|scalar)"
_INPUT = re.compile(rf"(?P<name>.+?)=(?P<shapes>{_SHAPE}(,{_SHAPE})*)(:(?P<dtype>[a-z]+[0-9]*))?")
_SIZES = re.compile(f"-?{_SIZE}(,-?{_SIZE})*")
MOST_SHAPES = 16

Inputs = Mapping[str, Sequence[int] | Sequence[InputSpec]]  # the one shape of an input, or several
Dims = Mapping[str, int | Sequence[int]]


def parse_inputs(texts: Sequence[str]) -> dict[str, tuple[InputSpec, ...]]:
    """Parse inputs of the form `NAME=1x3x224x224[:float32]`, with several shapes separated by commas.

    Returns:
        The shapes of each input by its name.

    Raises:
        BadInput: A text is not of this form, or an input or a shape of it is given twice.
    """
    found: dict[str, tuple[InputSpec, ...]] = {}
    for text in texts:
        match = _INPUT.fullmatch(text)
        if match is None:
            raise BadInput(f"--input {text!r} is not of the form NAME=1x3x224x224 or NAME=1x128:int64")
        shapes = [_shape(each) for each in match["shapes"].split(",")]
        if any(0 in shape for shape in shapes):
            raise BadInput(f"--input {text!r} has a dimension of zero")
        _refuse_twice(f"--input {text}", shapes)
        _refuse_known("--input", match["name"], found)
        found[match["name"]] = tuple(InputSpec(match["name"], shape, match["dtype"] or "") for shape in shapes)
    return found


def _shape(text: str) -> tuple[int, ...]:
    return () if text == "scalar" else tuple(map(int, text.split("x")))


def parse_dims(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse dimensions of the form `NAME=128`, with several sizes separated by commas.

    Returns:
        The sizes by the name of the dimension.

    Raises:
        BadInput: A text is not of this form, a size is below 1, or a dimension or a size of it is given twice.
    """
    found: dict[str, tuple[int, ...]] = _by_name("--dim", "batch=1", texts, _sizes)
    for name, sizes in found.items():
        text = f"--dim {name}={','.join(map(str, sizes))}"
        if min(sizes) < 1:
            raise BadInput(f"{text}: a dimension is at least 1")
        _refuse_twice(text, sizes)
    return found


def _sizes(text: str) -> tuple[int, ...]:
    if _SIZES.fullmatch(text) is None:
        raise ValueError
    return tuple(map(int, text.split(",")))


def _refuse_twice(text: str, values: Sequence[Any]) -> None:
    if len(set(values)) < len(values):
        raise BadInput(f"{text} has the same value twice")


def _refuse_known(option: str, name: str, known: Mapping[str, Any]) -> None:
    if name in known:
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
    if count > MOST_SHAPES:
        raise BadInput(f"--dim and --input give {count} combinations of shapes; a job takes {MOST_SHAPES} at most")
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
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        _refuse_known(option, name, found)
        try:
            if not name:
                raise ValueError
            found[name] = number(value)
        except ValueError:
            raise BadInput(f"{option} {text!r} is not of the form NAME=NUMBER, such as {example}") from None
    return found
