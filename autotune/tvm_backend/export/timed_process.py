"""Load a model with one runtime, run it once, and time it or its kernels. This process does nothing else.

    python -m autotune.tvm_backend.export.timed_process

The request is JSON on standard input. The answer is one line of JSON, and the only thing on standard output. What
libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from autotune.processes import memory
from autotune.processes.isolate import die_with_parent
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.export import compare
from autotune.tvm_backend.export.kernel_times import kernel_times

_WARMUP_S = 0.3
_TIMING_S = 0.1
_SLOW_S = 0.2  # a model whose run takes longer is slow
_SLOW_TIMINGS = 2  # of a slow model, at most
_SLOWEST_S = 5.0  # a model whose run takes longer is timed once

Run = Callable[[], compare.Arrays]
Arrays = Mapping[str, Any]


def _library(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """Load a library that `export` wrote, as its users do."""
    return _loaded(request, arrays)[1]


def _loaded(request: Mapping[str, Any], arrays: Arrays) -> tuple[Any, compare.MachineRun]:
    """Return TVM's virtual machine with a library, and what runs a function of it."""
    import tvm
    from tvm import relax

    if request["device"] == "cuda":
        runtime.load()
    device = tvm.cuda(0) if request["device"] == "cuda" else tvm.cpu(0)
    machine = relax.VirtualMachine(tvm.runtime.load_module(request["model"]), device)
    return machine, compare.machine_runner(machine, device, list(arrays.values()), request["function"])


def _onnxruntime(request: Mapping[str, Any], arrays: Arrays) -> Run:
    session = compare.onnx_session(Path(request["model"]), int(request["threads"]))
    feed = {**arrays, **compare.constant_inputs(session, request["values"])}
    return lambda: list(session.run(None, feed))


def _openvino(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """Load a model with OpenVINO, tuned for latency, in float32 as the other runtimes.

    By default it would quantise the operands of products with 8-bit weights, whatever the precision.
    """
    import openvino

    core = openvino.Core()
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(request["threads"]),
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    model = core.read_model(request["model"])
    model.reshape({name: list(array.shape) for name, array in arrays.items()})
    call = core.compile_model(model, "CPU", options).create_infer_request()
    return lambda: list(call.infer(dict(arrays), share_inputs=True).values())


def _torch(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """Load a job's program of PyTorch, without compilation."""
    return compare.torch_runner(Path(request["model"]), list(arrays.values()), int(request["threads"]))


def _litert(request: Mapping[str, Any], arrays: Arrays) -> Run:
    return compare.litert_runner(Path(request["model"]), list(arrays.values()), int(request["threads"]))


def _pytorch(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """Load an ONNX model with PyTorch, without compilation. `onnx2torch` converts the file."""
    import onnx2torch
    import torch

    torch.set_num_threads(int(request["threads"]))
    model = onnx2torch.convert(request["model"]).eval()
    tensors = [torch.from_numpy(np.array(array)) for array in arrays.values()]

    def run() -> compare.Arrays:
        with torch.inference_mode():
            found = model(*tensors)
        return [item.numpy() for item in (found if isinstance(found, (tuple, list)) else [found])]

    return run


RUNTIMES: dict[str, Callable[[Mapping[str, Any], Arrays], Run]] = {
    "library": _library,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
    "litert": _litert,
    "pytorch": _pytorch,
}
PACKAGES = {
    "library": ("tvm.relax",),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "torch": ("torch.export",),
    "litert": ("ai_edge_litert.interpreter",),
    "pytorch": ("onnx2torch", "torch"),
}


def timings(run: Callable[[], Any], count: int) -> list[float]:
    """Time the runs of a model, after a warm-up of 0.3 s.

    Args:
        run: Runs the model once.
        count: How many timings to make. A model whose run takes more than 200 ms is timed twice at most, and one whose
            run takes more than 5 s is timed once, in its warm-up.

    Returns:
        The timings in milliseconds for one run. Each is a mean over 100 ms; for a slow model it is a single run.
    """
    if not count:
        return []
    once, started = 0.0, time.perf_counter()
    while time.perf_counter() - started < _WARMUP_S:
        once = _seconds(run, 1)
    if once > _SLOWEST_S:
        return [once * 1e3]
    if once > _SLOW_S:
        return [_seconds(run, 1) * 1e3 for _ in range(min(count, _SLOW_TIMINGS))]
    return [_seconds(run, max(1, round(_TIMING_S / once))) * 1e3 for _ in range(count)]


def _seconds(run: Callable[[], Any], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request.

    Args:
        request: Has `runtime` (a key of `RUNTIMES`), `model` (its path), `names` (of the inputs, in the order of the
            model), `inputs` (the path of the file with their arrays), `values` (the constant inputs), `device` (`cpu`
            or `cuda`), `function` (of a library), `threads`, `timings` (how many to make), `outputs` (the path to write
            the outputs to, or None) and `kernels` (whether to time the kernels of a library, and nothing else).

    Returns:
        What `_timed` returns; or the kernels, under the key `kernels`.
    """
    arrays = dict(zip(request["names"], load(Path(request["inputs"])), strict=True))
    if not request["kernels"]:
        return _timed(request, arrays)
    machine, run = _loaded(request, arrays)
    found = kernel_times(machine, run.stay, run.device.sync)
    return {"kernels": [asdict(kernel) for kernel in found]}


def _timed(request: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Load and time a model.

    Returns:
        The timings in milliseconds (`ms`); the milliseconds from the file to the first outputs, without the time to
        import the runtime (`load_ms`); and the peak memory in bytes above what the process had before it loaded the
        model (`memory`).
    """
    for package in PACKAGES[request["runtime"]]:
        importlib.import_module(package)
    before, began = memory.status_bytes("VmRSS"), time.perf_counter()
    run = RUNTIMES[request["runtime"]](request, arrays)
    on_gpu = run if isinstance(run, compare.DeviceRun) and request["device"] == "cuda" else None
    first = outputs_of_graph(on_gpu) if on_gpu else run()
    load_ms = (time.perf_counter() - began) * 1e3
    if request["outputs"]:
        save(Path(request["outputs"]), [np.asarray(item) for item in first])
    # A copy to the host is not the model's time.
    found = timings(on_gpu.stay if on_gpu else run, int(request["timings"]))
    return {"ms": found, "load_ms": load_ms, "memory": max(0, memory.status_bytes("VmHWM") - before)}


def outputs_of_graph(run: compare.DeviceRun) -> compare.Arrays:
    """Return the first outputs of a model, as its CUDA graph computes them.

    The first run, which records the graph, computes its results without it and leaves them in its buffers. So that run
    is on zeros.
    """
    run.on_zeros()
    return run()


def save(path: Path, arrays: Sequence[Any]) -> None:
    """Write arrays to a file, in order."""
    np.savez(path, allow_pickle=False, **{f"array{index}": array for index, array in enumerate(arrays)})


def load(path: Path) -> compare.Arrays:
    """Read the arrays that `save` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        return [stored[f"array{index}"] for index in range(len(stored.files))]


def main() -> None:
    """Read a request from standard input and write the answer to standard output."""
    die_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # standard output is for the answer only
    request = json.load(sys.stdin)
    try:
        answer = serve(request)
    except Exception as error:  # the runtimes raise exceptions of many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        answer = {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]}
    os.write(answers, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
