"""Run one runtime alone in this process: load a model, run it once, and time it.

    python -m autotune.tvm_backend.export.timed_process

The request comes as JSON on standard input. What libraries print goes to standard error; the answer, a line of JSON,
is the only thing on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.processes.isolate import die_with_parent
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.export import compare

_WARM_S = 0.3
_TIMING_S = 0.1
_SLOW_S = 0.2
_SLOW_TIMINGS = 2

Run = Callable[[], compare.Arrays]
Arrays = Mapping[str, Any]


def _library(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """A library that `export` wrote, loaded as its users load it."""
    import tvm

    if request["device"] == "cuda":
        runtime.load()
    device = tvm.cuda(0) if request["device"] == "cuda" else tvm.cpu(0)
    return compare.vm_runner(tvm.runtime.load_module(request["model"]), device, list(arrays.values()))


def _onnxruntime(request: Mapping[str, Any], arrays: Arrays) -> Run:
    session = compare.onnx_session(Path(request["model"]), int(request["threads"]))
    feed = {**arrays, **compare.constant_inputs(session, request["values"])}
    return lambda: list(session.run(None, feed))


def _openvino(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """OpenVINO for the least latency of single requests, in float32 as the others."""
    import openvino

    core = openvino.Core()
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(request["threads"]),
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = core.read_model(request["model"])
    model.reshape({name: list(array.shape) for name, array in arrays.items()})
    call = core.compile_model(model, "CPU", options).create_infer_request()
    return lambda: list(call.infer(dict(arrays), share_inputs=True).values())


def _pytorch(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """PyTorch without compilation, on the graph that `onnx2torch` makes of the file."""
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
    "pytorch": _pytorch,
}


def timings(run: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of a run, as means over 100 ms each, after as long as it takes to settle.

    A model that takes over 200 ms gives single runs, at most two.
    """
    if not count:
        return []
    once, started = 0.0, time.perf_counter()
    while time.perf_counter() - started < _WARM_S:
        once = _seconds(run, 1)
    if once > _SLOW_S:
        return [_seconds(run, 1) * 1e3 for _ in range(min(count, _SLOW_TIMINGS))]
    return [_seconds(run, max(1, round(_TIMING_S / once))) * 1e3 for _ in range(count)]


def _seconds(run: Callable[[], Any], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what a request says, and answer with the times in milliseconds.

    The request has `runtime`, `model` (a path), `inputs` (a path: arrays by input, in the order of the model), `values`
    (inputs that are constants), `device`, `threads`, `timings` (how many) and `outputs` (a path to write the first
    outputs to, or null).
    """
    with np.load(request["inputs"], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    run = RUNTIMES[request["runtime"]](request, arrays)
    first = run()
    if request["outputs"]:
        save(Path(request["outputs"]), [np.asarray(item) for item in first])
    return {"ms": timings(run, int(request["timings"]))}


def save(path: Path, arrays: Sequence[Any]) -> None:
    """Keep arrays in order, for `load`."""
    np.savez(path, allow_pickle=False, **{f"output{index}": array for index, array in enumerate(arrays)})


def load(path: Path) -> compare.Arrays:
    """What `save` kept."""
    with np.load(path, allow_pickle=False) as stored:
        return [stored[f"output{index}"] for index in range(len(stored.files))]


def main() -> None:
    die_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between
    request = json.load(sys.stdin)
    try:
        answer = serve(request)
    except Exception as error:  # a runtime raises many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        answer = {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]}
    os.write(answers, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
