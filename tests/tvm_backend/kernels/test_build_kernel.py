"""What is compiled is what the schedule says, and a candidate is not to blame for a machine that starts no linker."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ProcessRefused, WorkerError
from autotune.tvm_backend.kernels.build_kernel import compile_once, link_shared, lowering, reader_object
from autotune.tvm_backend.target import resolve_target, tvm_target
from autotune.tvm_backend.threads.pool import pool_object


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_machine_that_starts_no_linker_is_the_machines_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(ProcessRefused, match="starts no more processes"):
        link_shared(str(tmp_path / "out.so"), [])


def test_what_the_linker_refuses_is_the_candidates_problem(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.o"
    damaged.write_bytes(b"no object file")
    with pytest.raises(WorkerError, match="failed"):
        link_shared(str(tmp_path / "out.so"), [str(damaged)])


def test_what_every_library_needs_is_compiled_once_and_leaves_no_thread(target: Any) -> None:
    many_cpus = tvm_target(resolve_target("llvm", threads=64).description)
    pool_object.cache_clear()
    threads = threading.active_count(), len(os.listdir("/proc/self/task"))
    compile_once()
    compiled = pool_object.cache_info().misses
    reader = reader_object(many_cpus)
    compile_once()
    assert compiled == pool_object.cache_info().misses == 1
    assert reader_object(many_cpus) is reader
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) == threads


def asynchronous_sources(program: Any, sizes_allowed: Any, count: int) -> list[str]:
    """The CUDA C of some random schedules with a pipeline, whose loop over the threads is of an allowed size."""
    import tvm

    from autotune.tvm_backend.load import load_tvm
    from autotune.tvm_backend.search.knobs import Knobs

    load_tvm("cuda")
    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_80"}', 1).description)
    knobs = Knobs(program, target)
    pipelined = next(index for index, (steps, _) in enumerate(knobs.sketches()) if "async_stages" in str(steps))
    rng = np.random.default_rng(1)
    sizes = [len(knob.values) for knob in knobs.space.knobs[1:]]
    drawn = ((pipelined, *map(int, rng.integers(sizes))) for _ in range(2000))
    modules = (applied.schedule.mod for applied in map(knobs.apply, drawn) if applied)
    sources = []
    for module in islice((module for module in modules if sizes_allowed(_threads(module))), count):
        with target, lowering(module, target):
            sources.append(str(tvm.tirx.build(module, target=target).imports[0].inspect_source()))
    return sources


def _threads(module: Any) -> int:
    match = re.search(r"T.thread_binding\((?:T.int64\()?(\d+)\)?, thread=.threadIdx.x.", str(module))
    assert match is not None
    return int(match[1])


def test_a_sketch_with_a_pipeline_copies_asynchronously(matmul_of: Any) -> None:
    """Its kernel's source has the instructions that copy, and not only those that wait for copies."""
    (source,) = asynchronous_sources(matmul_of(256), lambda threads: threads > 1, 1)
    assert "cp.async.ca.shared" in source or "cp.async.cg.shared" in source


def test_the_copies_of_one_thread_are_none_of_a_device_for_copies() -> None:
    """TVM would make calls of them that CUDA does not know."""
    import tvm
    from tvm import te

    rows, weights = te.placeholder((1, 128), name="rows"), te.placeholder((128, 10), name="weights")
    k = te.reduce_axis((0, 128), "k")
    product = te.compute((1, 10), lambda i, j: te.sum(rows[i, k] * weights[k, j], k), name="product")
    program = tvm.IRModule({"main": te.create_prim_func([rows, weights, product])})
    sources = asynchronous_sources(program, lambda threads: threads == 1, 2)
    assert len(sources) == 2 and all("cp.async" in source for source in sources)
