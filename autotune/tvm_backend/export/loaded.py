"""Load a model that `export` wrote into this process. It takes and returns NumPy arrays."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import BadInput
from autotune.machine.hardware import cpu_flags, cpu_model
from autotune.tvm_backend.cuda import runtime

Array = npt.NDArray[Any]


def load(library: Path, report: Mapping[str, Any], threads: int = 0) -> LoadedModel:
    """Load an exported library.

    TVM's runtime has one thread pool in a process. The first model that is loaded sets its size.

    Args:
        library: The library.
        report: The content of the `report.json` beside it.
        threads: How many threads to use; 0 for as many as the report says.

    Returns:
        The model.

    Raises:
        BadInput: The library is missing or cannot be loaded in this process.
        MachineProblem: The model is for CUDA, parts of which are missing here.
    """
    if not library.is_file():
        raise BadInput(f"cannot load {library}: there is no such file; export the job again")
    _check_cpu(library, report)
    if "tvm" not in sys.modules:
        os.environ.setdefault("TVM_NUM_THREADS", str(threads or report["threads"]))
    import tvm
    from tvm import relax

    on_gpu = report["target"]["kind"] == "cuda"
    if on_gpu:
        runtime.load()
    device = tvm.cuda(0) if on_gpu else tvm.cpu(0)
    try:
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)
    except Exception as error:  # TVM raises exceptions of many kinds
        lines = str(error).strip().splitlines()
        raise BadInput(f"cannot load {library}: {lines[-1] if lines else type(error).__name__}") from error
    return LoadedModel(machine, device, report["inputs"])


def _check_cpu(library: Path, report: Mapping[str, Any]) -> None:
    """Check that this CPU has the instructions of a library: otherwise the first call would end the process."""
    flags = cpu_flags()
    missing = [name for name in report.get("instructions", ()) if flags and name not in flags]
    if missing:
        raise BadInput(
            f"cannot load {library}: it was compiled for a CPU with {', '.join(missing)}, which {cpu_model()} lacks;"
            " tune and export the model on such a machine"
        )


class LoadedModel:
    """A compiled model. Call it with one array for each input, by position or by name.

    Threads take turns, because TVM's virtual machine keeps its registers between calls.

    Attributes:
        inputs: The shape and the element type of each input, by name.
    """

    def __init__(self, machine: Any, device: Any, inputs: list[Mapping[str, Any]]) -> None:
        self._main = machine["main"]
        self._device = device
        self._turn = threading.Lock()
        self._rows = {item["name"]: int(item["rows"]) for item in inputs if "rows" in item}
        self.inputs: dict[str, tuple[tuple[int, ...], str]] = {
            item["name"]: (tuple(item["shape"]), str(item["dtype"])) for item in inputs
        }

    def __call__(self, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run the model once.

        Args:
            arrays: The first inputs, in the order of the model.
            named: The other inputs, by name.

        Returns:
            The output. If the model has several outputs, a tuple of them in the order of the model.

        Raises:
            BadInput: An input is missing or unknown, or it has another shape or type than the model was compiled for,
                or an index that its table does not have.
        """
        import tvm

        given = self._by_name(arrays, named)
        tensors = [tvm.runtime.tensor(self._checked(name, given[name]), device=self._device) for name in self.inputs]
        with self._turn:
            result = self._main(*tensors)
            self._device.sync()
        if hasattr(result, "numpy"):
            return np.asarray(result.numpy())
        outputs = tuple(np.asarray(item.numpy()) for item in result)
        return outputs[0] if len(outputs) == 1 else outputs

    def _by_name(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        names = list(self.inputs)
        if len(arrays) > len(names):
            raise BadInput(f"the model has {len(names)} inputs ({', '.join(names)}); {len(arrays)} arrays were given")
        given = {**dict(zip(names, arrays, strict=False)), **named}
        unknown, missing = [name for name in named if name not in names], [name for name in names if name not in given]
        if unknown or missing:
            fault = f"has no input {unknown[0]!r}" if unknown else f"needs the input {missing[0]!r}"
            raise BadInput(f"the model {fault}; its inputs: {', '.join(names)}")
        return given

    def _checked(self, name: str, value: Any) -> Array:
        shape, dtype = self.inputs[name]
        array = np.asarray(value)
        if array.shape != shape:
            raise BadInput(f"input {name!r} has shape {array.shape}; the model was compiled for {shape}")
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise BadInput(f"input {name!r} has type {array.dtype}; the model was compiled for {dtype}")
        rows = self._rows.get(name)
        if rows is not None and array.size and not 0 <= array.min() <= array.max() < rows:
            outside = array.min() if array.min() < 0 else array.max()
            raise BadInput(f"input {name!r} has the index {outside}; its table has {rows} rows, counted from 0")
        return np.ascontiguousarray(array, dtype)
