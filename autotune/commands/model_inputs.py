"""Parse the options that describe the inputs of a model: `--input`, `--dim` and `--value`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from autotune.errors import BadInput
from autotune.storage.formats import InputSpec

_INPUT = re.compile(r"^(?P<name>.+?)=(?P<shape>\d+(x\d+)*|scalar)(:(?P<dtype>[a-z]+\d*))?$")


def parse_inputs(texts: Sequence[str]) -> dict[str, InputSpec]:
    """Parse inputs of the form `NAME=1x3x224x224[:float32]`.

    Returns:
        The inputs by name.

    Raises:
        BadInput: A text is not of this form.
    """
    found = {}
    for text in texts:
        match = _INPUT.match(text)
        if match is None:
            raise BadInput(f"--input {text!r} is not of the form NAME=1x3x224x224 or NAME=1x128:int64")
        dims = () if match["shape"] == "scalar" else tuple(int(dim) for dim in match["shape"].split("x"))
        if 0 in dims:
            raise BadInput(f"--input {text!r} has a dimension of zero")
        found[match["name"]] = InputSpec(match["name"], dims, match["dtype"] or "")
    return found


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Parse dimensions of the form `NAME=128`.

    Returns:
        The sizes by the name of the dimension.

    Raises:
        BadInput: A text is not of this form, or a size is below 1.
    """
    found: dict[str, int] = _by_name("--dim", "batch=1", texts, int)
    for name, size in found.items():
        if size < 1:
            raise BadInput(f"--dim {name}={size}: a dimension is at least 1")
    return found


def parse_values(texts: Sequence[str]) -> dict[str, float]:
    """Parse constant inputs of the form `NAME=16000`.

    Returns:
        The values by the name of the input.

    Raises:
        BadInput: A text is not of this form.
    """
    return _by_name("--value", "sr=16000", texts, float)


def _by_name(option: str, example: str, texts: Sequence[str], number: Callable[[str], Any]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            if not name:
                raise ValueError
            found[name] = number(value)
        except ValueError:
            raise BadInput(f"{option} {text!r} is not of the form NAME=NUMBER, such as {example}") from None
    return found
