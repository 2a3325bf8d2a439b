"""Check a compiled model against the runtime of the model as submitted, and time several versions of it in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from autotune.errors import VerificationError
from autotune.storage.formats import Constant, InputSpec
from autotune.tvm_backend.graph.values import shaped

Arrays = list[npt.NDArray[Any]]
ModelRun = Callable[[], Any]

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
# An error is relative to the largest value of its output, but at least to this value.
_MIN_SCALE, _MIN_PROBABILITY_SCALE = 1e-6, 1e-3
_MOVES = 8  # how often the inputs are moved to see how sensitive a model is
_SLOW_S = 0.2  # a version whose run takes longer is slow
_TURN_S = 0.05


def onnx_session(model: Path, threads: int) -> Any:
    """Open a model with ONNX Runtime on the CPU, with all of its graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def onnx_runner(
    session: Any, inputs: Sequence[InputSpec], arrays: Arrays, values: Mapping[str, Constant] | None = None
) -> Callable[[], Arrays]:
    """Return a function that runs the model once and returns its outputs.

    Args:
        session: What `onnx_session` returned.
        inputs: The inputs of the model, without the constant ones.
        arrays: The value of each input, in the same order.
        values: The constant inputs by name.
    """
    feed = {item.name: array for item, array in zip(inputs, arrays, strict=True)}
    feed.update(constant_inputs(session, values or {}))
    return lambda: list(session.run(None, feed))


def constant_inputs(session: Any, values: Mapping[str, Constant]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of the constant inputs by name, in the types that the session takes."""
    return {
        item.name: shaped(values[item.name], len(item.shape), _DTYPES[item.type])
        for item in session.get_inputs()
        if item.name in values
    }


def torch_runner(model: Path, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
    """Return a function that runs a job's program of PyTorch once, without compilation, and returns its outputs."""
    import torch

    from autotune.tvm_backend.graph.pytorch.program import load_program

    torch.set_num_threads(threads)
    module = load_program(model).module()
    tensors = [torch.from_numpy(np.array(array)) for array in arrays]

    def run() -> Arrays:
        with torch.inference_mode():
            return [output.numpy() for output in module(*tensors)]

    return run


def litert_runner(model: Path, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
    """Return a function that runs a model of TensorFlow Lite once and returns its outputs.

    LiteRT computes with XNNPACK, as it does by default.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(model), num_threads=threads)
    interpreter.allocate_tensors()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()

    def run() -> Arrays:
        for item, array in zip(inputs, arrays, strict=True):
            interpreter.set_tensor(item["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(item["index"]) for item in outputs]

    return run


def output_names(model: Path) -> list[str]:
    """Return the names of a model's outputs, in order."""
    import onnx

    return [item.name for item in onnx.load(str(model), load_external_data=False).graph.output]


def vm_runner(executable: Any, device: Any, arrays: Arrays, function: str = "main") -> Callable[[], Arrays]:
    """Return a function that runs a function of a compiled model once and returns its outputs."""
    from tvm import relax

    return machine_runner(relax.VirtualMachine(executable, device), device, arrays, function)


@runtime_checkable
class DeviceRun(Protocol):
    """A model that is loaded on a device. A call runs it once and returns its outputs."""

    def __call__(self) -> Arrays: ...

    def on_zeros(self) -> None:
        """Run it once on inputs of zeros."""

    def stay(self) -> Any:
        """Run it once, and leave the outputs on the device."""


@dataclass(frozen=True)
class MachineRun:
    """A function of a model on a virtual machine that has it loaded. A call runs it once and returns its outputs."""

    function: Any
    device: Any
    tensors: Sequence[Any]

    def __call__(self) -> Arrays:
        result = self.stay()
        parts = [result] if hasattr(result, "numpy") else list(result)
        return [part.numpy() for part in parts]

    def on_zeros(self) -> None:
        """Run it once on inputs of zeros."""
        import tvm

        zeros = [tvm.runtime.tensor(np.zeros_like(tensor.numpy()), device=self.device) for tensor in self.tensors]
        replace(self, tensors=zeros).stay()

    def stay(self) -> Any:
        """Run it once, and leave the outputs on the device."""
        result = self.function(*self.tensors)
        self.device.sync()
        return result


def machine_runner(machine: Any, device: Any, arrays: Arrays, function: str = "main") -> MachineRun:
    """Return what runs a model on a virtual machine that has it loaded."""
    import tvm

    return MachineRun(machine[function], device, [tvm.runtime.tensor(array, device=device) for array in arrays])


def largest_error(outputs: Arrays, reference: Arrays, probabilities: Sequence[bool] = ()) -> float:
    """Return the largest relative error of all outputs.

    An error is the absolute difference of two values, divided by the largest value of the output. It is infinite if the
    shapes or the types differ, if other values are infinite or NaN, or if 64-bit integers differ: they are indices or
    counts, and the next one is as wrong as any other.

    Args:
        outputs: The outputs to check.
        reference: The right outputs.
        probabilities: For each output, whether it comes from a sigmoid or a softmax. ONNX Runtime computes small
            probabilities with an absolute error of 1e-7, so their errors are relative to at least 1e-3.
    """
    if len(outputs) != len(reference):
        return math.inf
    floors = [_MIN_PROBABILITY_SCALE if is_one else _MIN_SCALE for is_one in probabilities] or [_MIN_SCALE] * len(
        outputs
    )
    return max((_relative_error(*item) for item in zip(outputs, reference, floors, strict=True)), default=0.0)


def _relative_error(output: npt.NDArray[Any], reference: npt.NDArray[Any], floor: float) -> float:
    if _described(output) != _described(reference):
        return math.inf
    if reference.dtype == np.int64:
        return 0.0 if np.array_equal(output, reference) else math.inf
    wide, expected = output.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(wide[~finite], expected[~finite], equal_nan=True) or not np.isfinite(wide[finite]).all():
        return math.inf
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(expected[finite]).max()), floor)
    return float(np.abs(wide[finite] - expected[finite]).max()) / scale


def _described(array: npt.NDArray[Any]) -> str:
    return " ".join(["x".join(map(str, array.shape)) or "scalar", str(array.dtype)])


def sensitivity(
    run: Callable[[Arrays], Arrays], arrays: Arrays, reference: Arrays, probabilities: Sequence[bool] = ()
) -> float:
    """Return the largest relative change of outputs when each float input moves to a neighbouring number.

    It is about 1e-6 for most models. Where one rounds to integers, as dynamic quantisation does, a value at a threshold
    takes another step, and no implementation is closer to another than that.

    Args:
        run: Computes the right outputs of inputs.
        arrays: The inputs.
        reference: Their right outputs.
        probabilities: As in `largest_error`.
    """
    rng = np.random.default_rng(_MOVES)
    moved = ([_moved(array, rng) for array in arrays] for _ in range(_MOVES))
    return max(largest_error(run(inputs), reference, probabilities) for inputs in moved)


def _moved(array: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return a float array with each number moved by one unit in the last place, up or down; others as they are."""
    if array.dtype.kind != "f":
        return array
    ends = np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype)
    return np.asarray(np.nextafter(array, ends))


def check(
    outputs: Arrays,
    reference: Arrays,
    tolerance: float,
    probabilities: Sequence[bool] = (),
    runtime: str = "ONNX Runtime",
) -> float:
    """Check that the largest relative error is within the tolerance.

    Args:
        outputs: The outputs to check.
        reference: The right outputs.
        tolerance: The largest allowed relative error.
        probabilities: As in `largest_error`.
        runtime: The name of what computed the right outputs.

    Returns:
        The largest relative error.

    Raises:
        VerificationError: It is above the tolerance. The message names it.
    """
    for number, (output, right) in enumerate(zip(outputs, reference, strict=False)):
        if (found := _described(output)) != (expected := _described(right)):
            raise VerificationError(
                f"output {number} of the compiled model is {found}, where that of {runtime} is {expected};"
                " nothing was exported"
            )
    error = largest_error(outputs, reference, probabilities)
    if not error <= tolerance:
        raise VerificationError(
            f"the compiled model differs from {runtime}: largest relative error {error:.3g},"
            f" allowed {tolerance:g}; nothing was exported"
        )
    return error


def alternate(runners: Mapping[str, ModelRun], turns: int) -> dict[str, float]:
    """Time several versions of a model in turns, so that a change of the machine affects all of them.

    In each turn a version runs for at least 50 ms. A version whose run takes more than 200 ms takes part in every fifth
    turn only.

    Args:
        runners: For each version, a function that runs it once.
        turns: How many turns there are.

    Returns:
        The median time of a run of each version, in milliseconds.
    """
    first = {name: _seconds(run, 1) for name, run in runners.items()}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(turns):
        for name, run in runners.items():
            if first[name] < _SLOW_S or turn % 5 == 0:
                times[name].append(_seconds(run, max(1, round(_TURN_S / first[name]))))
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def _seconds(run: ModelRun, count: int) -> float:
    """Return the seconds that a run takes. A first run, which does not count, wakes the thread pool."""
    run()
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count
