"""The thread pool of a library computes each iteration once, on the CPUs that its process may use."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.threads import pool
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.threads.pool import pool_object

ROOT = Path(__file__).parents[3]
HERE = {"kind": "llvm", "mcpu": "x86-64"} if os.uname().machine == "x86_64" else {"kind": "llvm"}
EXTENTS = (1, 3, 16, 17, 100, 1000)
LANES = 64


def counting(extent: int) -> Any:
    """A kernel whose parallel loop adds one to each row of a matrix, in place, so that a second time would show."""

    @T.prim_func
    def main(rows: T.Buffer((extent, LANES), "float32"), result: T.Buffer((extent, LANES), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": False})
        for row in T.parallel(extent):
            for lane in T.serial(LANES):
                result[row, lane] = rows[row, lane] + T.float32(1)

    return tvm.IRModule({"main": main})


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("libraries")
    paths = {extent: folder / f"{extent}.so" for extent in EXTENTS}
    for extent, path in paths.items():
        build_library(counting(extent), tvm.target.Target(HERE), path)
    return paths


class Kernel:
    """A library that was loaded from a file of its own, so that it has a pool of its own."""

    def __init__(self, library: Path, folder: Path) -> None:
        path = folder / f"copy-{time.monotonic_ns()}.so"
        shutil.copy(library, path)
        self.module = tvm.runtime.load_module(str(path))
        self.extent = int(library.stem)

    def counts(self, calls: int = 1) -> list[float]:
        """How often each row was computed in some calls, by the values that occur."""
        tensor = tvm.runtime.tensor(np.zeros((self.extent, LANES), "float32"))
        for _ in range(calls):
            self.module["main"](tensor, tensor)
        return sorted(set(tensor.numpy().ravel().tolist()))


@pytest.fixture(autouse=True)
def all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.fixture
def affinity() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_every_iteration_is_computed_once(
    libraries: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extent: int, threads: str
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    assert Kernel(libraries[extent], tmp_path).counts(calls=500) == [500]


def test_a_kernel_on_one_thread_starts_no_others(tmp_path: Path) -> None:
    module = counting(100)
    module.update_func(module.get_global_var("main"), module["main"].with_attr(MAX_THREADS, 1))
    build_library(module, tvm.target.Target(HERE), tmp_path / "100.so")
    before = tasks()
    assert Kernel(tmp_path / "100.so", tmp_path).counts(calls=50) == [50]
    assert tasks() == before


def test_threads_that_call_at_once_all_get_their_results(libraries: dict[int, Path], tmp_path: Path) -> None:
    kernel = Kernel(libraries[100], tmp_path)
    results: list[list[float]] = []
    callers = [threading.Thread(target=lambda: results.append(kernel.counts(calls=300))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [[300]] * 4


def test_a_forked_process_computes(libraries: dict[int, Path], tmp_path: Path) -> None:
    kernel = Kernel(libraries[100], tmp_path)
    kernel.counts()
    child = os.fork()
    if child == 0:
        os._exit(0 if kernel.counts(calls=50) == [50] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_ends_while_its_threads_spin_or_sleep(libraries: dict[int, Path]) -> None:
    code = """
import sys, time
import numpy as np, tvm
tensor = tvm.runtime.tensor(np.zeros((16, 64), "float32"))
tvm.runtime.load_module(sys.argv[1])["main"](tensor, tensor)
time.sleep(float(sys.argv[2]))
print("done")
"""
    for pause in ("0", "0.1"):
        command = [sys.executable, "-c", code, str(libraries[16]), pause]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert (ended.returncode, ended.stdout) == (0, "done\n")


@pytest.mark.parametrize("limit", ["one CPU", "one thread"])
def test_no_thread_is_started_where_one_is_enough(
    libraries: dict[int, Path], tmp_path: Path, affinity: set[int], limit: str
) -> None:
    if limit == "one CPU":
        os.sched_setaffinity(0, {min(affinity)})
    before = tasks()
    kernel = Kernel(libraries[16], tmp_path)
    if limit == "one thread":
        kernel.module["autotune_threads"](1)
    assert kernel.counts(calls=10) == [10]
    assert tasks() <= before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU needs no second thread")
def test_threads_may_run_on_every_cpu_of_the_process(libraries: dict[int, Path], tmp_path: Path) -> None:
    before = tasks()
    kernel = Kernel(libraries[16], tmp_path)
    kernel.counts(calls=1000)
    started = tasks() - before
    assert started
    end = time.monotonic() + 10  # a thread that moves to another CPU is bound for a moment
    while {frozenset(os.sched_getaffinity(int(task))) for task in started} != {frozenset(os.sched_getaffinity(0))}:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_runtime_cannot_replace_the_pool(libraries: dict[int, Path]) -> None:
    library = ctypes.CDLL(str(libraries[16]))
    assert not hasattr(library, "__TVMBackendParallelLaunch")
    assert hasattr(library, "__tvm_ffi_main")


@pytest.mark.parametrize("triple", ["x86_64-linux-gnu", "aarch64-linux-gnu"])
def test_the_pool_is_compiled_for_the_cpu_of_a_target(triple: str) -> None:
    machine = {"x86_64-linux-gnu": 62, "aarch64-linux-gnu": 183}[triple]  # ELF's numbers
    assert int.from_bytes(pool_object(triple)[18:20], "little") == machine


@pytest.mark.skipif(shutil.which("clang-16") is None, reason="clang-16, which pool.ll was written with, is not here")
def test_the_text_of_llvm_is_what_clang_makes_of_the_source(tmp_path: Path) -> None:
    room = Path(pool.__file__).parent
    copy = tmp_path / "autotune" / "tvm_backend" / "threads"
    shutil.copytree(room, copy, ignore=shutil.ignore_patterns("pool.ll", "__pycache__"))
    (tmp_path / "scripts" / "docs").mkdir(parents=True)
    script = shutil.copy(ROOT / "scripts" / "docs" / "write_pool.sh", tmp_path / "scripts" / "docs")
    subprocess.run([script], check=True)
    assert (copy / "pool.ll").read_text() == (room / "pool.ll").read_text()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not here")
@pytest.mark.parametrize("callers", [1, 3])
def test_threads_do_not_race(tmp_path: Path, callers: int) -> None:
    program = tmp_path / "stress"
    source = Path(__file__).with_name("stress.c")
    room = Path(pool.__file__).parent
    command = ["gcc", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{room}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    run = subprocess.run([program, "1000", str(callers)], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "computed\n", "")
