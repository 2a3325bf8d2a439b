"""The kernels of an exported library, timed inside the model."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import WorkerError
from autotune.options import InputSpec
from autotune.tvm_backend.export.compilation import JobModel, compile_tuned
from autotune.tvm_backend.export.drawn_inputs import draw
from autotune.tvm_backend.export.model_facts import kernel_work
from autotune.tvm_backend.export.timing import runtime_process, timed_process
from autotune.tvm_backend.export.timing.comparison import Runtime, RuntimeComparison
from autotune.tvm_backend.export.timing.runtime_process import RuntimeProcess
from autotune.tvm_backend.kernels.build_kernel import link_shared
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.tasks import extract_tasks

ROWS = 16
COLUMNS = 256
INPUTS = (InputSpec("x", (ROWS, COLUMNS), "float32"),)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, target):
    """softmax(softmax(x) @ w), whose first product is a task and whose two softmaxes are not."""
    weight = numpy_helper.from_array(np.eye(COLUMNS, dtype=np.float32), "w")
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], axis=-1),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=-1),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (ROWS, COLUMNS)) for name in "xy"]
    graph = helper.make_graph(nodes, "two", tensors[:1], tensors[1:], [weight])
    path = tmp_path_factory.mktemp("model") / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return prepare(read_model(path, {}).module, target)


@pytest.fixture(scope="module")
def kernels(prepared, target, tmp_path_factory):
    library = tmp_path_factory.mktemp("library") / "model.so"
    JobModel(prepared, prepared, (), target).compile_tuned({}, library)
    assert b"autotune_weight" in library.read_bytes()
    with RuntimeComparison({"ours": Runtime("library", library)}, INPUTS, draw(INPUTS, 1), threads=1) as comparison:
        return comparison.time(1, kernels_of="ours")["ours"].fastest_kernels()


def test_every_kernel_is_there_with_its_calls_and_nothing_of_the_virtual_machine(kernels):
    calls = {kernel.name: kernel.calls for kernel in kernels}
    assert sorted(calls.values()) == [1, 2]
    assert calls["softmax_rows"] == 2 and any("matmul" in name for name in calls)


def test_what_is_read_where_it_lies_is_no_kernel(target, tmp_path):
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            half = builder.emit(relax.op.strided_slice(x, [1], [2], [4]))
            parts = [builder.emit(make(half)) for make in (relax.op.exp, relax.op.sin)]
            output = builder.emit_output(relax.op.tanh(builder.emit(relax.op.concat(parts, axis=1))))
        builder.emit_func_output(output)
    with tvm.transform.PassContext(opt_level=3):
        prepared = prepare(builder.get(), target)
    compile_tuned(prepared, [], {}, target).export_library(str(tmp_path / "model.so"), fcompile=link_shared)
    inputs = (InputSpec("x", (1, 4, 8, 8), "float32"),)
    runtimes = {"ours": Runtime("library", tmp_path / "model.so")}
    with RuntimeComparison(runtimes, inputs, draw(inputs, 1), threads=1) as comparison:
        timed = comparison.time(1, kernels_of="ours")["ours"].fastest_kernels()
        assert sorted(kernel.name for kernel in timed) == ["tir_exp", "tir_sin", "tir_tanh"]


def test_a_run_that_does_not_end_names_the_kernel_that_it_has_not_got_past(tmp_path, monkeypatch):
    from tvm import relax, te

    def endless(x):
        step = te.reduce_axis((0, 1 << 40), "step")
        return te.compute((4,), lambda i: te.max(x[i] + step.astype("float32"), axis=step), name="endless")

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        doubled = builder.emit(relax.op.add(x, x))
        builder.emit_func_output(builder.emit_te(endless, doubled, primfunc_name_hint="endless"))
    library = tmp_path / "model.so"
    relax.build(builder.get(), "llvm").export_library(str(library), fcompile=link_shared)

    timed_process.save(tmp_path / "inputs.npz", draw([InputSpec("x", (4,), "float32")], 1))
    request = {"runtime": "library", "model": str(library), "names": ["x"], "inputs": str(tmp_path / "inputs.npz")}
    request |= {"device": "cpu", "function": "main", "kept": [], "outputs": str(tmp_path / "outputs.npz")}
    program = ("-m", timed_process.__name__)
    with RuntimeProcess("tuned_ms", request, 1, program) as process:
        process.imported()
        monkeypatch.setattr(runtime_process.select, "select", lambda *_: until_it_runs(tmp_path / "outputs.running"))
        with pytest.raises(
            WorkerError, match=r"^tuned_ms has not answered .* Its kernel endless has run for \d+ s; let"
        ):
            process.load()


def until_it_runs(file):
    """What `select` returns when its time is over, at a moment when that kernel runs."""
    while not file.exists() or file.read_text() != "endless":
        time.sleep(0.01)
    return [], [], []


def test_the_one_that_takes_most_is_the_first(kernels):
    times = [kernel.us for kernel in kernels]
    assert times == sorted(times, reverse=True) and times[-1] > 0


def test_the_work_of_a_kernel_is_its_operations_and_the_size_of_its_arguments(prepared, target, kernels):
    tasks = extract_tasks(prepared, target)
    work = kernel_work(prepared, {task.spec.hash: task.spec.name for task in tasks}, target)
    product = next(work[kernel.name][0] for kernel in kernels if "matmul" in kernel.name)
    assert product.task == next(task.spec.name for task in tasks if "matmul" in task.spec.name)
    assert product.gflop == pytest.approx(2 * ROWS * COLUMNS**2 / 1e9)
    assert product.bytes == 4 * (2 * ROWS * COLUMNS + COLUMNS**2)
    assert work["softmax_rows"][0].task is None
