"""An import in a process of its own: its errors arrive as they were raised, and its death is told from a timeout."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil
import pytest

from autotune.errors import ModelError, StageTimeout, WorkerCrashed, WorkerError
from autotune.processes.messages import ImportRequest
from autotune.storage.formats import ShapeBinding
from autotune.workers import oneshot

LIMIT_S = 120.0


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[[str], ImportRequest]:
    def make(model: str) -> ImportRequest:
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        return ImportRequest(model, "llvm", 1, cpus, str(tmp_path / "locks"), (ShapeBinding(),), {}, True, None)

    return make


def runs(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the process run some code instead."""

    def spawn(_: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=stderr)

    monkeypatch.setattr(oneshot, "_spawn", spawn)


def test_an_error_arrives_as_it_was_raised_after_the_steps(
    request_of: Callable[[str], ImportRequest], tmp_path: Path
) -> None:
    model = tmp_path / "net.onnx"
    steps = []
    model.write_bytes(b"no model")
    with pytest.raises(ModelError, match="net.onnx"):
        oneshot.import_model(request_of(str(model)), LIMIT_S, steps.append)
    assert steps[:2] == ["waiting for a CPU", "loading TVM"]


def test_a_process_that_dies_is_a_crash_that_quotes_its_last_words(
    request_of: Callable[[str], ImportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(monkeypatch, "import os, sys; sys.stdin.readline(); sys.stderr.write('no such kernel\\n'); os._exit(3)")
    with pytest.raises(WorkerCrashed, match=r"import died \(status 3\): no such kernel"):
        oneshot.import_model(request_of("net.onnx"), LIMIT_S, print)


def test_a_process_that_the_kernel_kills_has_not_timed_out(
    request_of: Callable[[str], ImportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(monkeypatch, f"import os, sys; sys.stdin.readline(); os.kill(os.getpid(), {int(signal.SIGKILL)})")
    with pytest.raises(WorkerCrashed, match=r"this import was killed, probably .* of the \d+ MiB that it may take"):
        oneshot.import_model(request_of("net.onnx"), LIMIT_S, print)


def test_a_limit_of_computing_time_is_told_from_want_of_memory(
    request_of: Callable[[str], ImportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = (1, resource.RLIM_INFINITY)
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, {limits}); sys.stdin.readline()\n"
    runs(monkeypatch, code + "while True: pass")
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    with pytest.raises(WorkerCrashed, match=r"may compute for 1 s; raise the limit \(ulimit -t\)"):
        oneshot.import_model(request_of("net.onnx"), LIMIT_S, print)


def test_the_pipes_of_a_process_are_closed(
    request_of: Callable[[str], ImportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(monkeypatch, "import sys; sys.stdin.readline(); sys.exit(3)")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(WorkerCrashed):
            oneshot.import_model(request_of("net.onnx"), LIMIT_S, print)
        gc.collect()
    assert not [item.message for item in warned if item.category is ResourceWarning]


def test_a_process_that_takes_too_long_is_killed(
    request_of: Callable[[str], ImportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(monkeypatch, "import time; time.sleep(1000)")
    with pytest.raises(StageTimeout, match="import killed after 0.3 s"):
        oneshot.import_model(request_of("net.onnx"), 0.3, print)


def test_the_time_for_which_one_waits_for_a_lease_does_not_count(
    request_of: Callable[[str], ImportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = '{"type": "progress", "step": "waiting for a CPU", "waiting": true}'
    work = '{"type": "progress", "step": "loading TVM"}'
    said = "import sys, time; sys.stdin.readline()\n"
    said += f"print({wait!r}, flush=True); time.sleep(1.5); print({work!r}, flush=True)\n"
    runs(monkeypatch, said + "sys.exit(3)")
    with pytest.raises(WorkerCrashed, match="status 3"):
        oneshot.import_model(request_of("net.onnx"), 1.0, print)
    runs(monkeypatch, said + "time.sleep(1000)")
    with pytest.raises(StageTimeout, match="import killed after 1 s"):
        oneshot.import_model(request_of("net.onnx"), 1.0, print)


def test_a_model_that_takes_more_memory_than_there_is_is_told_so_whoever_finds_out(
    request_of: Callable[[str], ImportRequest], tmp_path: Path
) -> None:
    """TVM's passes make a constant of 8 GiB, whose message is but `std::bad_alloc`, and NumPy another."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    for shape in ([2**28, 8], [2**31]):
        last = ["c"] if len(shape) > 1 else ["r"]
        nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"])]
        nodes += [] if len(shape) > 1 else [helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0)]
        nodes += [helper.make_node("Add", ["x", *last], ["y"])]
        graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.array(shape), "s")])
        model = tmp_path / f"{len(shape)}.onnx"
        model.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
        share = 4 * 2**30 / psutil.virtual_memory().total
        with pytest.raises(WorkerError, match="^this import needs more memory than it may take; use a machine with"):
            oneshot.import_model(request_of(str(model)), LIMIT_S, lambda step: None, share)
