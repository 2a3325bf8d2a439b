"""Choose the inputs that a model is verified and timed on: the user's inputs, or random ones that suit the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import BadInput, VerificationError, one_line
from autotune.options import InputSpec
from autotune.storage.formats import Entry
from autotune.tvm_backend.export.drawn_inputs import draw
from autotune.tvm_backend.export.padding import pick_entry
from autotune.tvm_backend.export.submitted import Submitted
from autotune.tvm_backend.models.arrays_file import ArraysFile, Header, opened

Arrays = list[npt.NDArray[Any]]

SEED = 2026  # of random inputs


@dataclass(frozen=True)
class VerificationInputs:
    """The inputs that a model is verified and timed on.

    Attributes:
        arrays: The value of each input, in the order of the model.
        probabilities: For each output, whether it is a probability.
        rows: For inputs that are indices, the number of rows of the table, by the name of the input.
    """

    arrays: Arrays
    probabilities: tuple[bool, ...]
    rows: Mapping[str, int]


def verification_inputs(
    model: Submitted, inputs: Sequence[InputSpec], file: Path | None, seed: int
) -> VerificationInputs:
    """Choose the inputs for the model of a job.

    Args:
        file: An NPZ file with the inputs; None for random ones.
        seed: The seed of random inputs.

    Raises:
        BadInput: The file cannot be read, an input is missing, or an input has a wrong shape or type.
    """
    hints = model.hints()
    arrays = load(file, inputs) if file else model.consistent(draw(inputs, seed, hints, model.inputs_version))
    return VerificationInputs(arrays, hints.probabilities, hints.rows)


def load(file: Path, inputs: Sequence[InputSpec]) -> Arrays:
    """Read the inputs from an NPZ file.

    Args:
        file: The file, with an array for each input under its name.
        inputs: The inputs of the model.

    Returns:
        The arrays, in the order of `inputs`.

    Raises:
        BadInput: The file cannot be read, an input is missing, or an input has a wrong shape or type.
    """
    with opened(file, BadInput) as arrays:
        return [_checked(file, item, arrays) for item in inputs]


def files_of_entries(files: Sequence[Path], entries: Sequence[Entry]) -> dict[str, Path]:
    """Return the file with the inputs of each entry, by the name of the entry. There need not be one.

    Args:
        files: NPZ files, in any order.
        entries: The entries of the job. A file is for the one that its arrays have the shapes of.

    Raises:
        BadInput: A file cannot be read, fits no entry, or is the second for one.
    """
    files_by_entry: dict[str, Path] = {}
    for file in files:
        name = _entry_of(file, entries)
        if name in files_by_entry:
            what = f"{files_by_entry[name]} and {file}"
            raise BadInput(f"{what} are both inputs for the same shapes ({name}); give one of them")
        files_by_entry[name] = file
    return files_by_entry


def _entry_of(file: Path, entries: Sequence[Entry]) -> str:
    if len(entries) == 1:
        return entries[0].name
    with opened(file, BadInput) as arrays:
        there = {item.name: _header(file, item, arrays).shape for item in entries[0].inputs}
    try:
        return pick_entry(
            {entry.name: {item.name: item.shape for item in entry.inputs} for entry in entries}, there, {}
        )
    except ValueError as error:
        raise BadInput(f"{file}: {error}") from error


def _header(file: Path, item: InputSpec, arrays: ArraysFile) -> Header:
    if item.name not in arrays.names:
        raise BadInput(f"{file} has no array {item.name!r}; it has: {', '.join(sorted(arrays.names)) or 'none'}")
    return arrays.header(item.name)


def _checked(file: Path, item: InputSpec, arrays: ArraysFile) -> npt.NDArray[Any]:
    """Read an array, after its shape and type were checked: no more is read than the model takes."""
    header = _header(file, item, arrays)
    if header.shape != item.shape or header.dtype != np.dtype(item.dtype):
        given = f"{header.dtype} {header.shape}"
        raise BadInput(f"{file}: array {item.name!r} is {given}, and the model takes {item.dtype} {item.shape}")
    return arrays.read(item.name)


def check_reference(run: Callable[[], Arrays], given: bool, runtime: str = "ONNX Runtime") -> Arrays:
    """Check that the reference can be run on the inputs, and that its outputs say whether others are right.

    Args:
        run: Runs the reference once, and returns its outputs.
        given: Whether the inputs are the user's.
        runtime: The name of the reference.

    Returns:
        The outputs.

    Raises:
        VerificationError: The reference fails on these inputs, or computes no number from them.
    """
    way = "" if given else "; random inputs may be invalid for it: give real ones with --inputs FILE.npz"
    try:
        outputs = run()
    except Exception as error:  # the exceptions of the runtimes have no other common class
        raise VerificationError(f"{runtime} cannot run the model as submitted ({one_line(error)}){way}") from error
    for index, output in enumerate(outputs):
        if output.dtype.kind == "f" and output.size and np.isnan(output).all():
            raise VerificationError(f"{runtime} computes nothing but NaN for output {index + 1} of the model{way}")
    return outputs
