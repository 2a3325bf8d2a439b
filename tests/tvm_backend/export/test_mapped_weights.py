"""Large weights of a library are read where they lie in its file."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.export.compilation import build_lowered, lower_tuned
from autotune.tvm_backend.export.mapped_weights import LARGE_BYTES, MappedWeights, map_weights
from autotune.tvm_backend.kernels.build_kernel import linking
from autotune.tvm_backend.lowering import prepare

ROWS = 512
LARGE = {
    "float32": np.random.default_rng(0).standard_normal((ROWS, 300)).astype(np.float32),
    "float16": np.random.default_rng(1).standard_normal((ROWS, 300)).astype(np.float16),
    "int8": np.random.default_rng(2).integers(-100, 100, (ROWS, 600)).astype(np.int8),
    "uint16": np.random.default_rng(3).integers(0, 1000, (3, ROWS, 101)).astype(np.uint16),
}
SMALL = np.arange(4, dtype=np.float32)


def lowered_model(target: Any) -> Any:
    """A model that puts out x[0] times each of its weights, in float32, and a small one."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            outputs = []
            for array in (*LARGE.values(), SMALL):
                weight = relax.const(array)
                wide = weight if array.dtype == np.float32 else builder.emit(relax.op.astype(weight, "float32"))
                outputs.append(builder.emit(relax.op.multiply(wide, x)))
            output = builder.emit_output(relax.Tuple(outputs))
        builder.emit_func_output(output)
    with target:  # without folding constants
        module = relax.transform.LegalizeOps()(builder.get())
    return lower_tuned(module, [], {}, target)


@pytest.fixture(scope="module")
def weights(target: Any) -> tuple[Any, MappedWeights]:
    """The module without its large weights, and these."""
    return map_weights(lowered_model(target))


@pytest.fixture(scope="module")
def library(target: Any, weights: tuple[Any, MappedWeights], tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, mapped = weights
    folder = tmp_path_factory.mktemp("weights")
    link = linking(target, objects=mapped.objects(folder))
    build_lowered(module, target).export_library(str(folder / "model.so"), fcompile=link)
    return folder / "model.so"


def run(machine: Any, factor: float) -> list[Any]:
    return [item.numpy() for item in machine["main"](tvm.runtime.tensor(np.array([factor], np.float32)))]


def expected(factor: float) -> list[Any]:
    return [array.astype(np.float32) * np.float32(factor) for array in (*LARGE.values(), SMALL)]


def test_weights_of_every_type_are_taken_out_but_for_small_ones(weights: tuple[Any, MappedWeights]) -> None:
    _, mapped = weights
    assert [str(array.dtype) for array in mapped.arrays] == list(LARGE)
    assert all(array.nbytes >= LARGE_BYTES for array in mapped.arrays)


def test_a_library_computes_with_mapped_weights_whenever_it_is_called(library: Path) -> None:
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    for factor in (1.0, 2.0, -3.0):
        for output, truth in zip(run(machine, factor), expected(factor), strict=True):
            np.testing.assert_array_equal(output, truth)


def test_threads_with_machines_of_their_own_may_ask_for_mapped_weights_at_the_same_time(library: Path) -> None:
    module = tvm.runtime.load_module(str(library))
    results: dict[int, list[Any]] = {}
    start = threading.Barrier(4)

    def work(number: int) -> None:
        machine = relax.VirtualMachine(module, tvm.cpu())
        start.wait()
        results[number] = [run(machine, float(number)) for _ in range(20)][-1]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        for output, truth in zip(results[number], expected(number), strict=True):
            np.testing.assert_array_equal(output, truth)


_MEMORY = """
import json, sys
import tvm
from tvm.runtime import vm
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) << 10
before = peak()
machine = vm.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
print(json.dumps(peak() - before))
"""


def test_loading_a_library_takes_no_memory_for_mapped_weights(target: Any, tmp_path: Path) -> None:
    mib = 1 << 20
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 2048), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            matrix = relax.const(np.ones((2048, 4096), np.float32))  # 32 MiB
            output = builder.emit_output(relax.op.matmul(x, matrix))
        builder.emit_func_output(output)
    module, mapped = map_weights(lower_tuned(prepare(builder.get(), target), [], {}, target))
    path = tmp_path / "model.so"
    link = linking(target, objects=mapped.objects(tmp_path))
    build_lowered(module, target).export_library(str(path), fcompile=link)
    assert path.stat().st_size >= 32 * mib
    done = subprocess.run([sys.executable, "-c", _MEMORY, str(path)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) < 8 * mib


def test_for_a_cpu_whose_object_files_are_not_known_everything_stays(target: Any) -> None:
    lowered = lowered_model(target)
    module, mapped = map_weights(lowered, "riscv64-linux-gnu")
    assert module is lowered
    assert not mapped.arrays
