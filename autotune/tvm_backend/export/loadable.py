"""What `report.json` says that it takes to load a library and to call it. Users may have changed the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from autotune.errors import DamagedFile, InvalidData
from autotune.schema import convert, text, whole_number
from autotune.tvm_backend.export.library_file import LibraryFile

LIBRARY = "model.so"
REPORT = "report.json"
_MAX_THREADS = 1 << 16
ElementType = Literal[
    "bool", "bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64",
]  # fmt: skip
Name = Annotated[str, text("", "^[^\0]+$", "a name")]


@dataclass(frozen=True)
class CompiledFor:
    """What a library was compiled for."""

    kind: Name


@dataclass(frozen=True)
class Input:
    """An input: its shape, its type and, if it is an index, the number of rows of its table; 0 if it is none."""

    name: str
    shape: tuple[Annotated[int, whole_number(0)], ...]
    dtype: ElementType
    rows: Annotated[int, whole_number(0)] = 0


@dataclass(frozen=True)
class OutputShape:
    """The shape of an output."""

    shape: tuple[Annotated[int, whole_number(0)], ...]


@dataclass(frozen=True)
class LibraryFunction:
    """A function of a library, for one set of shapes."""

    name: Name
    inputs: tuple[Input, ...]


@dataclass(frozen=True)
class OpenDimensions:
    """The dimensions that may be smaller than those of a function: inputs are padded, and outputs cut back.

    Attributes:
        inputs: The names of the dimensions of inputs, by the name of the input; an empty one is not open.
        outputs: Those of each output; none of them where nothing is open.
        counts: The names of the dimensions of outputs whose size depends on the data. The library puts these sizes out
            after the outputs of the model, as int64 scalars.
    """

    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: tuple[tuple[str, ...], ...] = ()
    counts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Language:
    """A language model.

    Attributes:
        end: The tokens that end a text.
    """

    end: tuple[Annotated[int, whole_number(0)], ...] = ()


@dataclass(frozen=True)
class Loadable:
    """The part of a report that is about loading.

    Attributes:
        target: What the library was compiled for.
        threads: How many threads it uses unless something else is said.
        inputs: Its inputs; those of its first function, if it has several.
        outputs: Its outputs, likewise.
        entries: Its functions, if it has one for each of several sets of shapes.
        instructions: What the CPU must have, as `cpu_flags` names it.
        library: The file; None in the report of an earlier version.
        language: What is known of a language model; None for any other.
    """

    target: CompiledFor
    threads: Annotated[int, whole_number(1, most=_MAX_THREADS)]
    inputs: tuple[Input, ...] = ()
    outputs: tuple[OutputShape, ...] = ()
    entries: tuple[LibraryFunction, ...] = ()
    instructions: tuple[str, ...] = ()
    library: LibraryFile | None = None
    language: Language | None = None
    padding: OpenDimensions = field(default_factory=OpenDimensions)

    @property
    def functions(self) -> dict[str, tuple[Input, ...]]:
        """The inputs of each function, by its name."""
        return {entry.name: entry.inputs for entry in self.entries} or {"main": self.inputs}

    @property
    def has_open_dimensions_elsewhere(self) -> bool:
        """Whether dimensions are said to be open that its inputs or outputs do not have."""
        padding = self.padding
        ranks = [{item.name: len(item.shape) for item in inputs} for inputs in self.functions.values()]
        inputs = {name: len(dims) for name, dims in padding.inputs.items()}
        are_there = all(inputs.items() <= there.items() for there in ranks)
        outputs = [len(dims) for dims in padding.outputs]
        if not set(padding.counts) <= {dim for dims in padding.outputs for dim in dims}:
            return True
        return not are_there or (bool(inputs or outputs) and outputs != [len(item.shape) for item in self.outputs])


def read_loadable(report: Mapping[str, Any], shown: Path) -> Loadable:
    """Check what a report says.

    Args:
        report: The content of `report.json`.
        shown: The file, for errors.

    Raises:
        DamagedFile: A part of it is missing, or is not what an export writes.
    """
    try:
        told = convert(Loadable, dict(report))
    except InvalidData as error:
        raise DamagedFile(f"{shown} is damaged: {error}; export the job again") from error
    if told.has_open_dimensions_elsewhere:
        raise DamagedFile(f"{shown} is damaged: padding is not of its inputs and outputs; export the job again")
    return told
