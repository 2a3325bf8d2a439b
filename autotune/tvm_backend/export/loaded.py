"""Load a model that `export` wrote into this process. It takes and returns NumPy arrays."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import AutotuneError, BadInput, MachineProblem
from autotune.machine.hardware import cpu_model
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.export import library_file
from autotune.tvm_backend.export.host_runtime import load_on_host
from autotune.tvm_backend.export.host_tensors import HostTensors, Returned, host_arrays, tensors_of
from autotune.tvm_backend.export.loadable import REPORT, Input, Loadable, OpenDimensions, read_loadable
from autotune.tvm_backend.export.padding import cut, padded, pick_entry, sizes_of, split_counts
from autotune.tvm_backend.isa.instruction_sets import cpu_flags, permissions
from autotune.tvm_backend.types import Device, DeviceArray, Kernel, RuntimeModule, VirtualMachine

_PICKED = 1024  # shapes of inputs whose entry is remembered: to look among many takes 0.1 ms

Array = npt.NDArray[Any]
Inputs = dict[str, tuple[tuple[int, ...], str]]  # shape and element type by name


def load(library: Path, report: Mapping[str, Any], threads: int = 0, *, check_weights: bool = False) -> LoadedModel:
    """Load an exported library, if it is still what was written. The mapped weights are read when the model first runs.

    A library has a thread pool of its own, which is started by its first call.

    Args:
        report: The content of the `report.json` beside it.
        threads: How many threads to use; 0 for what TVM_NUM_THREADS says, and without it for what the report says.
        check_weights: Whether to read the mapped weights now, and to check them too.

    Returns:
        The model.

    Raises:
        BadInput: The library is missing or cannot be loaded in this process.
        DamagedFile: The library or its report is not what was written.
        MachineProblem: The model is for CUDA, parts of which are missing here, or the system refuses what its
            instructions need, such as the tiles of AMX.
    """
    opened = open_library(library, report, threads, check_weights=check_weights)
    return LoadedModel(opened.functions, opened.device, opened.told.functions, opened.told.padding)


@dataclass(frozen=True)
class OpenLibrary:
    """A library in this process: its functions by name, the GPU that they run on, if any, and what its report says."""

    functions: Mapping[str, Kernel]
    device: Device | None
    told: Loadable


def open_library(
    library: Path, report: Mapping[str, Any], threads: int = 0, *, check_weights: bool = False
) -> OpenLibrary:
    """Open a library. Arguments and errors are those of `load`."""
    if not library.is_file():
        raise BadInput(f"cannot load {library}: there is no such file; export the job again")
    told = read_loadable(report, library.with_name(REPORT))
    _check_machine(library, told.instructions)
    if told.library is not None:
        library_file.check(library, told.library, weights=check_weights)
    on_gpu = told.target.kind == "cuda"
    if on_gpu:
        runtime.load()
    try:
        module, machine, device = _on_gpu(library) if on_gpu else (*load_on_host(library), None)
        functions = {name: machine[name] for name in told.functions}
    except AutotuneError:
        raise
    except Exception as error:  # TVM raises exceptions of many kinds
        lines = str(error).strip().splitlines()
        raise BadInput(f"cannot load {library}: {lines[-1] if lines else type(error).__name__}") from error
    if threads or "TVM_NUM_THREADS" not in os.environ:
        _limit(module, threads or told.threads)
    return OpenLibrary(functions, device, told)


def _on_gpu(library: Path) -> tuple[RuntimeModule, VirtualMachine, Device]:
    import tvm
    from tvm import relax

    device = tvm.cuda(0)
    module = tvm.runtime.load_module(str(library))
    return module, relax.VirtualMachine(module, device), device


def _limit(module: RuntimeModule, threads: int) -> None:
    """Tell the thread pool of a library how many threads to start. A library for another machine or a GPU has none."""
    for kernels in module.imports:
        if kernels.implements_function("autotune_threads"):
            kernels["autotune_threads"](threads)


def _check_machine(library: Path, instructions: Sequence[str]) -> None:
    """Check that this machine runs the instructions of a library: otherwise the first call would end the process."""
    flags = cpu_flags()
    missing = [name for name in instructions if flags and name not in flags]
    if missing:
        raise BadInput(
            f"cannot load {library}: it was compiled for a CPU with {', '.join(missing)}, which {cpu_model()} lacks;"
            " tune and export the model on such a machine"
        )
    for permission in permissions(instructions):
        if refusal := permission.refusal(permission.ask()):
            raise MachineProblem(f"cannot load {library}: {refusal}")


class LoadedModel:
    """A compiled model. Call it with one array for each input, by position or by name.

    Threads take turns, because TVM's virtual machine keeps its registers between calls. Inputs with open dimensions
    that are smaller than those of an entry are padded with zeros, and its outputs are cut back. An output whose size
    depends on the data has as many rows as they say.

    Attributes:
        entries: The inputs for each set of shapes that the model was compiled for, by the name of the entry.
        inputs: The shape and the element type of each input of the first entry, by name.
    """

    def __init__(
        self,
        functions: Mapping[str, Kernel],
        gpu: Device | None,
        entries: Mapping[str, Sequence[Input]],
        padding: OpenDimensions | None = None,
    ) -> None:
        self._padding = padding or OpenDimensions()
        self._functions = functions
        self._gpu = gpu
        self._turn = threading.Lock()
        # The kernels of a CUDA graph keep using the workspace of the thread that recorded it, which TVM frees with that
        # thread. So the first calls, which record, are made in a thread that lives as long as the model.
        self._recorder = ThreadPoolExecutor(1) if gpu is not None else None
        self._recorded: set[str] = set()
        self._tensors: dict[str, HostTensors] = {}
        self._rows = {name: {item.name: item.rows for item in inputs if item.rows} for name, inputs in entries.items()}
        self.entries: dict[str, Inputs] = {
            name: {item.name: (item.shape, item.dtype) for item in inputs} for name, inputs in entries.items()
        }
        self.inputs: Inputs = next(iter(self.entries.values()))
        shapes = {entry: {name: shape for name, (shape, _) in inputs.items()} for entry, inputs in self.entries.items()}
        names = tuple(self.inputs)
        open_inputs = self._padding.inputs
        self._picked = lru_cache(_PICKED)(
            lambda *given: pick_entry(shapes, dict(zip(names, given, strict=True)), open_inputs)
        )

    def __call__(self, /, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run the model once: of its entries the one for inputs of these shapes, or the next larger one.

        Args:
            arrays: The first inputs, in the order of the model.
            named: The other inputs, by name.

        Returns:
            The output. If the model has several outputs, a tuple of them in the order of the model.

        Raises:
            BadInput: An input is missing, unknown or given twice, the model was compiled for no inputs of these shapes
                or types, inputs disagree on the size of an open dimension, or a table does not have the row of an
                index.
        """
        given = {name: np.asarray(value) for name, value in self._by_name(arrays, named).items()}
        entry = self._entry(given)
        checked = [self._checked(name, given[name], *item) for name, item in self.entries[entry].items()]
        self._check_indices(entry, given)
        with self._turn:
            outputs = self._on_host(entry, checked) if self._recorder is None else self._on_gpu(entry, checked)
        if self._padding.outputs:
            outputs, counts = split_counts(outputs, self._padding.counts)
            sizes = sizes_of({name: array.shape for name, array in given.items()}, self._padding.inputs) | counts
            outputs = [cut(output, dims, sizes) for output, dims in zip(outputs, self._padding.outputs, strict=True)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _on_host(self, entry: str, arrays: Sequence[Array]) -> list[Array]:
        if entry not in self._tensors:
            self._tensors[entry] = HostTensors(list(self.entries[entry].values()))
        return host_arrays(self._functions[entry](*self._tensors[entry].fill(arrays)))

    def _on_gpu(self, entry: str, arrays: Sequence[Array]) -> list[Array]:
        import tvm

        assert self._gpu is not None
        result = self._record(entry, [tvm.runtime.tensor(array, device=self._gpu) for array in arrays])
        self._gpu.sync()
        return [np.asarray(tensor.numpy()) for tensor in tensors_of(result)]

    def _record(self, entry: str, tensors: Sequence[DeviceArray]) -> Returned:
        if self._recorder is None or entry in self._recorded:
            return self._functions[entry](*tensors)
        result = self._recorder.submit(self._functions[entry], *tensors).result()
        self._recorded.add(entry)
        return result

    def _entry(self, given: Mapping[str, Array]) -> str:
        if len(self.entries) == 1:
            return next(iter(self.entries))
        try:
            return self._picked(*(given[name].shape for name in self.inputs))
        except ValueError as error:
            raise BadInput(str(error)) from None

    def _by_name(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        names = self.inputs.keys()
        if len(arrays) == len(names) and not named:
            return dict(zip(names, arrays, strict=True))
        if len(arrays) > len(names):
            raise BadInput(f"the model has {len(names)} inputs ({', '.join(names)}); {len(arrays)} arrays were given")
        by_place = dict(zip(names, arrays, strict=False))
        if twice := [name for name in by_place if name in named]:
            raise BadInput(f"input {twice[0]!r} was given twice: by its place and by its name")
        given = {**by_place, **named}
        unknown = [name for name in named if name not in names]
        missing = [name for name in names if name not in given]
        if unknown or missing:
            fault = f"has no input {unknown[0]!r}" if unknown else f"needs the input {missing[0]!r}"
            raise BadInput(f"the model {fault}; its inputs: {', '.join(names)}")
        return given

    def _checked(self, name: str, array: Array, shape: tuple[int, ...], dtype: str) -> Array:
        if array.shape != shape and len(self.entries) == 1:
            raise BadInput(f"input {name!r} has shape {array.shape}; the model was compiled for {shape}")
        if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
            raise BadInput(f"input {name!r} has type {array.dtype}; the model was compiled for {dtype}")
        array = padded(array, shape)
        if array.dtype == dtype and array.flags.c_contiguous:
            return array
        return np.asarray(array, dtype, order="C")  # `ascontiguousarray` would give a scalar a dimension

    def _check_indices(self, entry: str, given: Mapping[str, Array]) -> None:
        for name, rows in self._rows[entry].items():
            try:
                check_index(name, given[name], rows)
            except ValueError as error:
                raise BadInput(str(error)) from None


# `run.py`, which an export writes, has the source of this function in it.


def check_index(name: str, array: Array, rows: int) -> None:
    """Check that a table has the rows that an input names: a kernel would read elsewhere, or crash.

    The C++ programs have the same check.

    Args:
        array: The input, a NumPy array. Of other numbers than integers the model takes the whole part.
        rows: How many rows the table has.

    Raises:
        ValueError: It lacks one of them.
    """
    if not array.size:
        return
    indices = array.astype("int64", copy=False)
    outermost = indices.min() if indices.min() < 0 else indices.max()
    if not 0 <= outermost < rows:
        raise ValueError(f"input '{name}' has the index {outermost}; its table has {rows} rows, counted from 0")
