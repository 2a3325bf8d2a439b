"""Load a model with one runtime, run it once, and time it or its kernels. This process does nothing else.

    python -m autotune.tvm_backend.export.timing.timed_process

The first line of standard input is the request, as JSON, for which the runtime is imported. The second asks to load the
model. Each further line asks for one timing, of the model or of its kernels. Each is answered by one line of JSON.
Nothing else is on standard output: what libraries print goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.processes import memory
from autotune.processes.children import die_with_parent
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.host_runtime import load_on_host, load_runtime
from autotune.tvm_backend.export.timing.kernel_times import BETWEEN, kernel_times
from autotune.tvm_backend.export.timing.runtime_process import KERNELS, running_file
from autotune.tvm_backend.load import without_torch
from autotune.tvm_backend.types import Device, RuntimeModule

_WARMUP_S = 0.3
_AGAIN_S = 0.02  # the warm-up before each further timing, because another process ran meanwhile
_TIMING_S = 0.1
_MAX_S = 0.5  # how long a process waits for its threads to sleep
_LOOK_S = 0.01  # how often it looks whether they do
_ASLEEP = 0.1  # of a CPU, at most
_SLOW_S = 0.2  # a model whose run takes longer is slow
_SLOW_TIMINGS = 2  # of a slow model, at most
_SLOWEST_S = 5.0  # a model whose run takes longer is timed once
PACKAGES = {
    "library": (),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "openvino_default": ("openvino",),
    "torch": ("torch.export",),
    "litert": ("ai_edge_litert.interpreter",),
    "gguf": ("numpy",),
    "pytorch": ("onnx2torch", "torch"),
}


Run = Callable[[], runners.Arrays]
Arrays = Mapping[str, Any]


def _library(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """Load a library that `export` wrote, as its users do."""
    kept = [name in request["kept"] for name in arrays]
    library = Path(request["model"])
    values = list(arrays.values())
    if request["device"] == "cuda":
        return runners.machine_runner(*_on_gpu(library), values, request["function"], kept)
    return runners.machine_runner(load_on_host(library)[1], None, values, request["function"], kept)


def _on_gpu(library: Path) -> tuple[RuntimeModule, Device]:
    import tvm
    from tvm.runtime import vm

    runtime.load()
    device = tvm.cuda(0)
    return vm.VirtualMachine(tvm.runtime.load_module(str(library)), device).module, device


def _onnxruntime(request: Mapping[str, Any], arrays: Arrays) -> Run:
    session = runners.onnx_session(Path(request["model"]), int(request["threads"]))
    feed = {**arrays, **runners.constant_inputs(session, request["values"])}
    return lambda: list(session.run(None, feed))


# By default OpenVINO would quantise the operands of products with 8-bit weights, whatever the precision.
_IN_FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def _openvino(request: Mapping[str, Any], arrays: Arrays, precision: Mapping[str, Any] = _IN_FLOAT32) -> Run:
    """Load a model with OpenVINO, tuned for latency, in float32 as the other runtimes or as it comes."""
    import openvino

    core = openvino.Core()
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": int(request["threads"]), **precision}
    model = core.read_model(request["model"])
    model.reshape({name: list(array.shape) for name, array in arrays.items()})
    call = core.compile_model(model, "CPU", options).create_infer_request()
    return lambda: list(call.infer(dict(arrays), share_inputs=True).values())


def _torch(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """Load a job's program of PyTorch, without compilation."""
    return runners.torch_runner(Path(request["model"]), list(arrays.values()), int(request["threads"]))


def _litert(request: Mapping[str, Any], arrays: Arrays) -> Run:
    return runners.litert_runner(Path(request["model"]), list(arrays.values()), int(request["threads"]))


def _pytorch(request: Mapping[str, Any], arrays: Arrays) -> Run:
    """Load an ONNX model with PyTorch, to be compiled at its first run. `onnx2torch` converts the file."""
    import onnx2torch
    import torch

    torch.set_num_threads(int(request["threads"]))
    model = torch.compile(onnx2torch.convert(request["model"]).eval())
    tensors = [torch.from_numpy(np.array(array)) for array in arrays.values()]

    def run() -> runners.Arrays:
        with torch.inference_mode():
            outputs = model(*tensors)
        return [item.numpy() for item in (outputs if isinstance(outputs, (tuple, list)) else [outputs])]

    return run


RUNTIMES: dict[str, Callable[[Mapping[str, Any], Arrays], Run]] = {
    "library": _library,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "openvino_default": partial(_openvino, precision={}),
    "torch": _torch,
    "litert": _litert,
    "gguf": lambda request, arrays: runners.gguf_runner(Path(request["model"]), list(arrays.values())),
    "pytorch": _pytorch,
}


class Timer:
    """Times the runs of a model, now and then.

    The first timing follows a warm-up of 0.3 s. A model whose run takes more than 200 ms is timed twice, and one whose
    run takes more than 5 s once, in its warm-up.

    Args:
        run: Runs the model once.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._once = 0.0
        self._timed = 0

    def time(self) -> float | None:
        """Return the milliseconds of a run; None for a slow model that has been timed often enough.

        It is the mean over 100 ms; for a slow model, a single run. Returns when the threads of the runtime sleep, so
        that another process can be timed next.
        """
        self._timed += 1
        if self._timed == 1:
            self._warm_up(_WARMUP_S)
        if self._once > _SLOW_S:
            return self._slowly()
        if self._timed > 1:
            self._warm_up(_AGAIN_S)
        seconds = _seconds(self._run, max(1, round(_TIMING_S / self._once)))
        _settle()
        return seconds * 1e3

    def _warm_up(self, seconds: float) -> None:
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            self._once = _seconds(self._run, 1)

    def _slowly(self) -> float | None:
        if self._timed > (1 if self._once > _SLOWEST_S else _SLOW_TIMINGS):
            return None
        seconds = self._once if self._once > _SLOWEST_S else _seconds(self._run, 1)
        _settle()
        return seconds * 1e3


def _seconds(run: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count


def _settle() -> None:
    """Wait until the threads of this process sleep. Those of a pool may spin for a while after a run."""
    ends = time.perf_counter() + _MAX_S
    while time.perf_counter() < ends:
        began = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - began < _ASLEEP * _LOOK_S:
            return


def serve(request: Mapping[str, Any], orders: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Carry out a request.

    Args:
        request: Has `runtime` (a key of `RUNTIMES`), `model` (its path), `names` (of the inputs, in the order of the
            model), `inputs` (the path of the file with their arrays), `values` (the constant inputs), `device` (`cpu`
            or `cuda`), `function` and `kept` (of a library), `threads` and `outputs` (the path to write the outputs to,
            or None).
        orders: The first asks to load the model. Each other one asks for a timing of the model, or, if it is `KERNELS`,
            for those of the kernels of a library.

    Yields:
        Nothing when the runtime is imported, then what `_load` returns, and then for each order `ms`, what `Timer.time`
        returns, or `kernels`.
    """
    arrays = dict(zip(request["names"], load(Path(request["inputs"])), strict=True))
    import_runtime(request["runtime"], request["device"])
    yield {}
    asked = iter(orders)
    next(asked)
    run, answer = _load(request, arrays)
    yield answer
    # A copy to the host is not the model's time.
    timer = Timer(run.stay if request["device"] == "cuda" and isinstance(run, runners.DeviceRun) else run)
    for order in asked:
        if order.strip() == KERNELS and isinstance(run, runners.MachineRun):
            kernels = kernel_times(run.machine, run.stay, run.sync)
            yield {"kernels": [asdict(kernel) for kernel in kernels]}
        else:
            yield {"ms": timer.time()}


def _load(request: Mapping[str, Any], arrays: Arrays) -> tuple[Run, dict[str, Any]]:
    """Load a model and run it once.

    Returns:
        What runs it, and the answer: the milliseconds from the file to the first outputs, without the time to import
        the runtime (`load_ms`); and the peak memory in bytes above what the process had before it loaded the model
        (`memory`).
    """
    before = memory.status_bytes("VmRSS")
    began = time.perf_counter()
    run = RUNTIMES[request["runtime"]](request, arrays)
    on_gpu = run if isinstance(run, runners.DeviceRun) and request["device"] == "cuda" else None
    with contextlib.nullcontext() if on_gpu else _told_kernels(run, request["outputs"]):
        first = outputs_of_graph(on_gpu) if on_gpu else run()
    load_ms = (time.perf_counter() - began) * 1e3
    taken = max(0, memory.status_bytes("VmHWM") - before)
    if request["outputs"]:
        save(Path(request["outputs"]), [np.asarray(item) for item in first])
    return run, {"load_ms": load_ms, "memory": taken}


@contextlib.contextmanager
def _told_kernels(run: Run, outputs: str | None) -> Iterator[None]:
    """Keep the name of the kernel that runs in a file beside the outputs, for who waits for them.

    A run whose outputs nobody keeps is one that is timed.
    """
    if outputs is None or not isinstance(run, runners.MachineRun):
        yield
        return
    with running_file(outputs).open("w") as file:

        def tell(_function: object, name: str, before: bool, _result: object, *_arguments: object) -> int:
            if before and not name.startswith(BETWEEN):
                file.seek(0)
                file.truncate()
                file.write(name)
                file.flush()
            return 0

        run.machine["set_instrument"](tell)
        try:
            yield
        finally:
            run.machine["set_instrument"](None)


def import_runtime(runtime: str, device: str = "cpu") -> None:
    """Import the packages of a runtime, as their users would have done. A library on the CPU needs TVM's runtime alone.

    OpenVINO is imported without the package that reports its use: nothing is sent, and its threads disturb no timing.
    """
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    if runtime == "library" and device == "cuda":
        with without_torch():
            importlib.import_module("tvm.runtime.vm")
    elif runtime == "library":
        load_runtime()
    for package in PACKAGES[runtime]:
        importlib.import_module(package)


def outputs_of_graph(run: runners.DeviceRun) -> runners.Arrays:
    """Return the first outputs of a model, as its CUDA graph computes them.

    The first run, which records the graph, computes its results without it and leaves them in its buffers. So that run
    is on zeros.
    """
    run.on_zeros()
    return run()


def save(path: Path, arrays: Sequence[Any]) -> None:
    """Write arrays to a file, one after the other: an archive would cost a checksum of each."""
    with path.open("wb") as file:
        for array in arrays:
            np.save(file, array, allow_pickle=False)


def load(path: Path) -> runners.Arrays:
    """Read the arrays that `save` wrote."""
    arrays = []
    with path.open("rb") as file:
        while file.peek(1):
            arrays.append(np.load(file, allow_pickle=False))
    return arrays


def main() -> None:
    """Read a request from standard input and write the answers to standard output."""
    die_with_parent()
    os.environ["TVM_USE_RUNTIME_LIB"] = "1"  # as users load a library: the compiler takes a second to import
    answers = os.dup(1)
    os.dup2(2, 1)  # standard output is for the answers only
    request = json.loads(sys.stdin.readline())
    try:
        for answer in serve(request, sys.stdin):
            os.write(answers, json.dumps(answer).encode() + b"\n")
    except Exception as error:  # the runtimes raise exceptions of many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]
        os.write(answers, json.dumps({"error": said}).encode() + b"\n")


if __name__ == "__main__":
    main()
