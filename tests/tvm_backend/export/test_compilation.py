"""A whole model: tasks that were never measured get the schedule that the prior likes best; and CUDA graphs."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from autotune.tvm_backend.export import compilation as compiling
from autotune.tvm_backend.export.compilation import lower_tuned
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.search.cost_model import prior
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.scores import nest_score
from autotune.tvm_backend.target import resolve_target, tvm_target


def test_the_default_schedule_is_better_than_nearly_all_and_always_the_same(target, matmul_of):
    matmul = matmul_of(96)
    once, again = (compiling._default_trial(matmul, target) for _ in range(2))
    assert once is not None and once == again
    knobs = Knobs(matmul, target)
    score = nest_score(knobs, prior("llvm"))
    assert score is not None
    others = score(knobs.space.sample(np.random.default_rng(3), 1000))
    assert score(np.array([knobs.find(once.trace)]))[0] > np.quantile(others, 0.99)


def test_a_task_without_tiles_gets_a_schedule(target, as_program):
    from tvm import te

    a = te.placeholder((64,), name="a")
    assert (
        compiling._default_trial(as_program(a, te.compute((64,), lambda i: a[i] + 1.0, name="b")), target) is not None
    )


def test_a_program_of_very_many_tensors_stays_as_it_is(target, as_program):
    from functools import reduce
    from operator import add

    from tvm import te

    parts = [te.placeholder((64,), name=f"a{index}") for index in range(64)]
    joined = te.compute((64,), lambda i: reduce(add, [part[i] for part in parts]), name="b")
    assert compiling._default_trial(as_program(*parts, joined), target) is None


def test_a_kernel_that_tvm_writes_as_a_whole_is_compiled(target):
    """Its outermost block is not called root, as those of tensor expressions are."""
    import tvm
    from tvm import relax

    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks

    builder = relax.BlockBuilder()
    data, updates = (relax.Var(name, relax.TensorType((4, width), "float32")) for name, width in (("x", 65), ("u", 3)))
    indices = relax.Var("i", relax.TensorType((4, 3), "int64"))
    with builder.function("main", [data, indices, updates]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.scatter_elements(data, indices, updates, 1))
        builder.emit_func_output(result)
    prepared = prepare(builder.get(), target)
    programs = [task.program for task in extract_tasks(prepared, target)]
    compiled = relax.VirtualMachine(compiling.compile_tuned(prepared, programs, {}, target), tvm.cpu())
    zeros = np.zeros((4, 65), np.float32)
    ones = np.ones((4, 3), np.float32)
    columns = np.array([[0, 5, 64]] * 4)
    output = compiled["main"](*map(tvm.runtime.tensor, (zeros, columns, ones))).numpy()
    expected = zeros.copy()
    np.put_along_axis(expected, columns, ones, axis=1)
    assert np.array_equal(output, expected)


@pytest.fixture(scope="module")
def chain():
    """Three products with square matrices, one after the other."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((32, 32), "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            value = x
            for seed in range(3):
                weight = np.random.default_rng(seed).normal(size=(32, 32)).astype("float32")
                value = builder.emit(relax.op.matmul(value, relax.const(weight)))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_kernels_between_the_first_and_the_last_one_are_recorded_as_a_graph(chain, cuda_graph):
    load_tvm("cuda")
    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
    lowered = lower_tuned(prepare(chain, target), [], {}, target, cuda_graph=cuda_graph)
    functions = {item.name_hint: lowered[item] for item in lowered.get_global_vars()}
    recorded = functions.get("main_cuda_graph_capture")
    assert (recorded is not None) == cuda_graph
    if cuda_graph:
        assert recorded.script().count("matmul(") == 1
        assert functions["main"].script().count("matmul(") == 2
        assert "vm.builtin.cuda_graph.run_or_capture" in functions["main"].script()
