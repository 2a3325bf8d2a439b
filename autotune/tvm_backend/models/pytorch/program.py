"""An exported program of PyTorch as a Relax module, and the copy of it that a job keeps."""

from __future__ import annotations

import importlib.util
import logging
import operator
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.storage.formats import OpenBatch
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.models.model import Model, as_model_error
from autotune.tvm_backend.models.pytorch.archive import read_archive, write_archive
from autotune.tvm_backend.models.pytorch.checked import checked, fix_inputs, output_names
from autotune.tvm_backend.types import ExportedProgram, Expr


def save(program: ExportedProgram, to: Path) -> None:
    """Write a `torch.export.ExportedProgram` that is in memory."""
    import torch

    torch.export.save(program, to)


def write_fixed(
    path: Path, overrides: Mapping[str, InputSpec], dims: Mapping[str, int], to: Path
) -> tuple[tuple[InputSpec, ...], tuple[OpenBatch, ...]]:
    """Write a program with the shapes of its inputs fixed, and without anything that torch would unpickle or evaluate.

    Args:
        path: The file as submitted.
        overrides: Shapes that the user gave, by the name of the input.
        dims: Sizes that the user gave, by the name of the open dimension.
        to: The file to write.

    Returns:
        The inputs in order, and the open batches that were taken as 1.

    Raises:
        ModelError: The file is no such program, needs pickle, or has an input without a shape; or torch is missing.
        DiskProblem: The file cannot be written.
    """
    archive = read_archive(path)
    _check_torch(path)
    with as_model_error(path, "is no program that torch.export.save writes"):
        inputs, sizes, batches = fix_inputs(path, archive.program, overrides, dims)
        program = checked(path, archive.program, sizes)
        write_archive(archive, program, to)
    return inputs, batches


def load_program(path: Path) -> ExportedProgram:
    """Load a file of `write_fixed` as a `torch.export.ExportedProgram`.

    A job's file may have been changed since. So it is checked again, and torch is given another copy.

    Raises:
        ModelError: As for `write_fixed`.
    """
    _check_torch(path)
    archive = read_archive(path)
    with as_model_error(path, "cannot be loaded"), scratch_folder("program") as folder:
        copy = Path(folder) / "model.pt2"
        write_archive(archive, checked(path, archive.program, {}), copy)
        import torch

        logging.getLogger("torch.export").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return torch.export.load(copy)
            except RuntimeError as error:  # torch logs what it stumbled over, and says to look there
                advice = f"write it again with torch.export.save of torch {torch.__version__}"
                raise ModelError(f"{path} cannot be loaded: torch cannot read its program; {advice}") from error


def import_program(path: Path, inputs: tuple[InputSpec, ...], shown: Path | None = None) -> Model:
    """Import a file of `write_fixed`.

    Args:
        shown: The file that errors are about; by default `path`.

    Raises:
        ModelError: torch cannot load it, or TVM lacks an operator of it; one line that says which.
    """
    outputs = tuple(output_names(read_archive(path).program))
    with as_model_error(shown or path, "cannot be imported"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tvm.relax.frontend.torch import from_exported_program

        from autotune.tvm_backend.graph.constants import drop_empty_parts

        program = load_program(path)
        options = {"unwrap_unit_return_tuple": True, "custom_convert_map": {"div.Tensor_mode": _division}}
        module = drop_empty_parts(from_exported_program(program, **options))
    return Model(module, inputs, outputs)


def _division(node: Any, importer: Any) -> Expr:
    """Import a division that may round: TVM gives a number beside a tensor another type than the tensor has."""
    from tvm import relax

    from autotune.tvm_backend.expressions import float_dtype

    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return importer._binary_op(relax.op.floor_divide, operator.floordiv)(node)
    quotient = importer._binary_op(relax.op.divide, operator.truediv)(node)
    is_whole = mode is None or float_dtype(quotient) is None  # a quotient of integers is rounded to zero
    return quotient if is_whole else importer.block_builder.emit(relax.op.trunc(quotient))


def _check_torch(path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        index = "https://download.pytorch.org/whl/cpu"  # without it, pip brings 6 GB of CUDA
        install = f"pip install 'autotune-tvm[torch]' --extra-index-url {index}"
        raise ModelError(f"{path} is a PyTorch program, and PyTorch is not installed: {install}")
