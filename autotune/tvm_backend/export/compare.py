"""Check a compiled model against ONNX Runtime, and time several versions of it in one alternating run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import VerificationError
from autotune.storage.formats import InputSpec

Arrays = list[npt.NDArray[Any]]
Runner = Callable[[], Any]

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_SLOW_S = 0.2
_TURN_S = 0.05


def onnx_session(model: Path, threads: int) -> Any:
    """ONNX Runtime on the CPU with this many threads and all of its graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def onnx_runner(
    session: Any, inputs: Sequence[InputSpec], arrays: Arrays, values: Mapping[str, float] | None = None
) -> Callable[[], Arrays]:
    """A function that runs the model once and returns its outputs. `values` are inputs of one number each."""
    feed = {item.name: array for item, array in zip(inputs, arrays, strict=True)}
    feed.update(constant_inputs(session, values or {}))
    return lambda: list(session.run(None, feed))


def constant_inputs(session: Any, values: Mapping[str, float]) -> dict[str, npt.NDArray[Any]]:
    """The arrays for inputs of one number each, by name, in the types that the session takes."""
    return {
        item.name: np.full((1,) * len(item.shape), values[item.name], _DTYPES[item.type])
        for item in session.get_inputs()
        if item.name in values
    }


def output_names(model: Path) -> list[str]:
    """The names of a model's outputs, in order."""
    import onnx

    return [item.name for item in onnx.load(str(model), load_external_data=False).graph.output]


def vm_runner(executable: Any, device: Any, arrays: Arrays) -> Callable[[], Arrays]:
    """A function that runs a compiled model once and returns its outputs."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, device)
    tensors = [tvm.runtime.tensor(array, device=device) for array in arrays]
    main = machine["main"]

    def run() -> Arrays:
        result = main(*tensors)
        device.sync()
        parts = [result] if hasattr(result, "numpy") else list(result)
        return [part.numpy() for part in parts]

    return run


def largest_error(outputs: Arrays, reference: Arrays) -> float:
    """The largest absolute difference over all outputs, relative to the largest value of its output."""
    if len(outputs) != len(reference):
        return math.inf
    return max((_relative_error(*pair) for pair in zip(outputs, reference, strict=True)), default=0.0)


def _relative_error(output: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    if output.shape != reference.shape:
        return math.inf
    wide, expected = output.astype(np.float64), reference.astype(np.float64)
    if not np.array_equal(np.isfinite(wide), np.isfinite(expected)):
        return math.inf
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(expected[finite]).max()), 1e-6)
    return float(np.abs(wide[finite] - expected[finite]).max()) / scale


def check(outputs: Arrays, reference: Arrays, tolerance: float) -> float:
    """The largest error, if it is within tolerance.

    Raises:
        VerificationError: it is not; the message names it.
    """
    error = largest_error(outputs, reference)
    if not error <= tolerance:
        raise VerificationError(
            f"the compiled model differs from ONNX Runtime: largest relative error {error:.3g},"
            f" allowed {tolerance:g}; nothing was exported"
        )
    return error


def alternate(runners: Mapping[str, Runner], turns: int) -> dict[str, float]:
    """Median milliseconds of a run of each, measured in turns, so that a change of the machine hits all.

    A turn runs one version for at least 50 ms; one that takes over 200 ms gets only every fifth turn.
    """
    first = {name: _seconds(run, 1) for name, run in runners.items()}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(turns):
        for name, run in runners.items():
            if first[name] < _SLOW_S or turn % 5 == 0:
                times[name].append(_seconds(run, max(1, round(_TURN_S / first[name]))))
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def _seconds(run: Runner, count: int) -> float:
    """Seconds per run, after one run that is not counted and lets the thread pool settle."""
    run()
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count
