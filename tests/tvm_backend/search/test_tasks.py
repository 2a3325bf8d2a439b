"""Tasks and the hashes that stand for them."""

from __future__ import annotations

import pytest
import tvm
from tvm import te, tirx

from autotune.errors import DamagedFile
from autotune.storage.formats import TaskSpec
from autotune.tvm_backend.operators.activations import Blocked, blocks_kernel
from autotune.tvm_backend.operators.cached_attention import Attention, attend_kernel, keep_kernel
from autotune.tvm_backend.search import tasks
from autotune.tvm_backend.search.tasks import Task, program_hash, read_program, task_hash, unite, write_program
from autotune.tvm_backend.vector_math import registry


@pytest.fixture
def exponential(as_program):
    """A program that computes exp."""
    x = te.placeholder((8,), name="x")
    return as_program(x, te.compute((8,), lambda i: tirx.exp(x[i])))


@pytest.fixture
def successor(as_program):
    """A program that adds one."""
    x = te.placeholder((8,), name="x")
    return as_program(x, te.compute((8,), lambda i: x[i] + 1))


def test_how_functions_are_computed_counts_in_the_hash_of_a_task_that_has_some(exponential, monkeypatch):
    before = task_hash(exponential)
    monkeypatch.setattr(registry, "VERSION", registry.VERSION + 1)
    assert task_hash(exponential) != before


def test_a_task_without_functions_keeps_the_hash_of_its_program(successor, monkeypatch):
    monkeypatch.setattr(registry, "VERSION", registry.VERSION + 1)
    assert task_hash(successor) == program_hash(successor)


def test_a_program_is_read_by_its_hash(exponential, tmp_path):
    path = tmp_path / "000.json"
    write_program(path, exponential)
    assert task_hash(read_program(path, task_hash(exponential))) == task_hash(exponential)


def test_a_program_of_a_version_with_other_formulas_is_to_be_submitted_again(exponential, tmp_path):
    path = tmp_path / "000.json"
    write_program(path, exponential)
    with pytest.raises(DamagedFile, match="submit the model again"):
        read_program(path, program_hash(exponential))


def test_a_program_that_cannot_be_read_for_a_reason_without_words_is_damaged(exponential, tmp_path, monkeypatch):
    def refuse(_):
        raise MemoryError

    write_program(tmp_path / "000.json", exponential)
    monkeypatch.setattr(tasks, "check_graph", refuse)
    with pytest.raises(DamagedFile, match=r"000\.json is not a tensor program: MemoryError"):
        read_program(tmp_path / "000.json", "")


def task(hash, weight, gflop):
    return Task(TaskSpec(f"task-{hash}", hash, weight, "8", gflop, True), None, 10)


def test_tasks_of_several_shapes_stand_there_once_with_all_of_their_weight():
    united = unite([[task("a", 2, 1.0), task("b", 1, 1.0)], [task("b", 4, 1.0), task("c", 1, 9.0)]])
    assert [(item.spec.hash, item.spec.weight) for item in united] == [("c", 1), ("b", 5), ("a", 2)]


def test_a_program_over_vectors_that_tvm_cannot_count_has_no_known_arithmetic():
    size = 16
    data, result = (tirx.decl_buffer((size,), "float32", name) for name in ("data", "result"))
    vector = tirx.Ramp(0, 1, size)
    store = tirx.BufferStore(result, tirx.BufferLoad(data, [vector]) + tirx.Broadcast(tirx.const(1.0), size), [vector])
    program = tvm.IRModule({"main": tirx.PrimFunc([data, result], store)})
    assert tasks.gflop(program) == 0.0


def test_work_is_fixed_unless_values_say_where_loops_end_or_which_part_of_a_large_argument_is_used():
    table, ids = te.placeholder((1000, 8), name="table"), te.placeholder((4,), "int32", name="ids")
    picked = te.compute((4, 8), lambda i, j: table[ids[i], j])
    few, many = te.placeholder((256,), name="few"), te.placeholder((1000,), "int32", name="many")
    looked_up = te.compute((1000,), lambda i: few[many[i]])
    attention = Attention(4, 1, 2, 1, 16, 64, 0, False, False, False, 1e-5, True, "float32")
    assert not is_fixed(te.create_prim_func([table, ids, picked]))
    assert is_fixed(te.create_prim_func([few, many, looked_up]))
    assert not is_fixed(attend_kernel(attention)), "how many tokens it looks at is a value"
    assert not is_fixed(keep_kernel(attention)), "it writes four tokens of a cache for 64"
    assert is_fixed(blocks_kernel(Blocked(4, 64, 32, in_bytes=True)))


def is_fixed(function):
    return tasks.has_fixed_work(tasks.as_program(function))
