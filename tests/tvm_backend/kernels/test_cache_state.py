"""A kernel is timed with the caches as a model leaves them."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.kernels import build_kernel, cache_state
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.kernels.cache_state import Caches, Context

KIB = 2**10


@pytest.fixture
def sizes(monkeypatch):
    """Two threads on CPUs with 32 KiB of L1 and 512 KiB of L2 each."""
    monkeypatch.setattr(cache_state, "allowed_cpus", lambda: (0, 1, 2))
    monkeypatch.setattr(cache_state, "cache_bytes", lambda level, cpus: {1: 32, 2: 512}[level] * KIB * len(cpus))
    monkeypatch.setenv("TVM_NUM_THREADS", "2")


class Reads(list):
    """What the threads read, as shapes, in place of reading it.

    Attributes:
        first: The values of what they read first.
    """

    def __call__(self, data, _sums):
        if not self:
            self.first = data.numpy()
        self.append(tuple(map(int, data.shape)))


@pytest.fixture
def reads():
    return Reads()


def tensors(*shapes):
    import tvm

    return [tvm.runtime.empty(shape, "float32") for shape in shapes]


@pytest.mark.parametrize(("held", "ring"), [("L2", 128 * KIB), ("L3", 2048 * KIB), ("memory", 2048 * KIB)])
def test_as_much_is_read_before_a_run_as_drives_constants_from_the_nearer_caches(target, sizes, reads, held, ring):
    Caches(Context(held, (0,)), tensors((4, 64))).prepare(reads)
    assert [4 * threads * lines * lanes for threads, lines, lanes in reads] == [ring]


def test_what_is_read_before_a_run_is_memory_of_its_own(target, sizes, reads):
    """Of memory that nobody has written, all pages are the same one, and reading them drives nothing from a cache."""
    Caches(Context("L3", (0,)), tensors((4, 64))).prepare(reads)
    assert reads.first.all()


def test_then_every_thread_reads_its_part_of_what_kernels_before_have_written(target, sizes, reads):
    data, weights, result = (64, 64), (64, 32), (64, 32)
    Caches(Context("L3", (1,)), tensors(data, weights, result)).prepare(reads)
    assert reads[1:] == [(2, 128, 16), (2, 64, 16)], "lines of 64 bytes, half for each of two threads"


def test_what_has_fewer_lines_than_threads_is_left(target, sizes, reads):
    Caches(Context("L3"), tensors((3,), (2, 16))).prepare(reads)
    assert reads[1:] == [(2, 1, 16)]


def test_constants_of_a_model_that_no_cache_holds_are_flushed(target, sizes, reads, monkeypatch):
    import tvm

    flushed = []
    monkeypatch.setattr(tvm, "get_global_func", lambda name: lambda _first, *others: flushed.append((name, others)))
    arguments = tensors((8, 16), (4, 16), (2, 16))
    Caches(Context("memory", (1,)), arguments).prepare(reads)
    assert [(name, list(map(id, others))) for name, others in flushed] == [
        ("cache_flush_cpu_non_first_arg", [id(arguments[1])])
    ]
    Caches(Context("L3", (1,)), arguments).prepare(reads)
    assert len(flushed) == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_library_reads_as_its_kernel_computes_each_thread_a_part(target, as_program, tmp_path, threads):
    import numpy as np
    import tvm
    from tvm import te

    a = te.placeholder((8,), name="a")
    build_library(as_program(a, te.compute((8,), lambda i: a[i] * 2.0, name="b")), target, tmp_path / "kernel.so")
    data = np.arange(threads * 5 * 16, dtype=np.int32).reshape(threads, 5, 16)
    sums = tvm.runtime.empty((threads, 16), "int32")
    tvm.runtime.load_module(str(tmp_path / "kernel.so"))[cache_state.READER](tvm.runtime.tensor(data), sums)
    assert np.array_equal(sums.numpy(), data.sum(axis=1))


def test_what_reads_is_compiled_once_for_each_kind_of_cpu(target):
    import tvm

    description = target.export()
    first, second, other = (
        build_kernel.reader_object(tvm.target.Target({**description, **change}))
        for change in ({"num-cores": 1}, {"num-cores": 64}, {"mcpu": "x86-64-v4"})
    )
    assert first is second and first != other
