"""scripts/bench/liveness: the most bytes of a graph that are alive at once, in the order in which it runs."""

from __future__ import annotations

from types import ModuleType

import pytest

KB = 1024


@pytest.fixture(scope="module")
def liveness(load_script) -> ModuleType:
    return load_script("liveness")


def most_alive(liveness, inputs, steps, outputs):
    """The most that is alive, in kilobytes, of steps that are written as operator, inputs and output with its size."""
    made = [
        liveness.Step(operator, tuple(reads.split()), {name: size * KB for name, size in writes.items()})
        for operator, reads, writes in steps
    ]
    sizes = {name: size * KB for name, size in inputs.items()}
    return liveness.most_alive(liveness.Execution(sizes, made, outputs)) / KB


def test_a_tensor_is_alive_until_it_is_read_for_the_last_time(liveness):
    steps = [
        ("Conv", "x w", {"a": 8}),
        ("MaxPool", "a", {"b": 2}),
        ("Conv", "b w", {"c": 4}),
        ("Concat", "b c", {"y": 6}),
    ]
    assert most_alive(liveness, {"x": 1}, steps, {"y"}) == 1 + 2 + 4 + 6
    early = [*steps[:2], ("Conv", "b a", {"c": 4}), steps[3]]
    assert most_alive(liveness, {"x": 1}, early, {"y"}) == 1 + 8 + 2 + 4


def test_the_order_decides_what_is_alive(liveness):
    wide = ("Conv", "x w", {"wide": 8})
    narrowed = ("MaxPool", "wide", {"narrowed": 1})
    other = ("Conv", "x v", {"other": 4})
    joined = ("Concat", "narrowed other", {"y": 5})
    assert most_alive(liveness, {"x": 1}, [wide, narrowed, other, joined], {"y"}) == 1 + 1 + 4 + 5
    assert most_alive(liveness, {"x": 1}, [other, wide, narrowed, joined], {"y"}) == 1 + 4 + 8 + 1


def test_inputs_and_outputs_are_alive_to_the_end(liveness):
    steps = [("Conv", "x w", {"y": 2}), ("Conv", "y w", {"a": 8}), ("ReduceMax", "a", {"z": 1})]
    assert most_alive(liveness, {"x": 4}, steps, {"y", "z"}) == 4 + 2 + 8 + 1


def test_an_elementwise_operator_writes_over_an_input_that_is_read_for_the_last_time(liveness):
    steps = [("Conv", "x w", {"a": 8}), ("Relu", "a", {"y": 8})]
    assert most_alive(liveness, {"x": 1}, steps, {"y"}) == 1 + 8
    read_again = [*steps, ("Concat", "a y", {"z": 16})]
    assert most_alive(liveness, {"x": 1}, read_again, {"z"}) == 1 + 8 + 8 + 16


def test_nothing_is_written_over_an_input_of_the_graph_an_output_or_a_tensor_of_another_size(liveness):
    assert most_alive(liveness, {"x": 8}, [("Relu", "x", {"y": 8})], {"y"}) == 8 + 8
    steps = [("Conv", "x w", {"a": 8}), ("Relu", "a", {"y": 8})]
    assert most_alive(liveness, {"x": 1}, steps, {"a", "y"}) == 1 + 8 + 8
    cast = [("Conv", "x w", {"a": 8}), ("Cast", "a", {"y": 2})]
    assert most_alive(liveness, {"x": 1}, cast, {"y"}) == 1 + 8 + 2


def test_a_convolution_writes_over_what_it_adds_and_over_nothing_else(liveness):
    steps = [("Conv", "x w b", {"a": 8}), ("Conv", "x w b", {"c": 8}), ("FusedConv", "a w b c", {"y": 8})]
    assert most_alive(liveness, {"x": 1}, steps, {"y"}) == 1 + 8 + 8
    alone = [("Conv", "x w b", {"a": 8}), ("FusedConv", "a w b", {"y": 8})]
    assert most_alive(liveness, {"x": 1}, alone, {"y"}) == 1 + 8 + 8


def test_a_reshape_takes_no_memory_and_its_source_lives_as_long_as_it(liveness):
    steps = [("Conv", "x w", {"a": 8}), ("Reshape", "a shape", {"b": 8}), ("Conv", "x w", {"c": 4})]
    steps += [("Relu", "b", {"d": 8}), ("Concat", "c d", {"y": 12})]
    assert most_alive(liveness, {"x": 1}, steps, {"y"}) == 1 + 8 + 4 + 12


def test_an_operator_does_not_write_over_a_tensor_that_is_read_later_in_another_shape(liveness):
    steps = [("Conv", "x w", {"a": 8}), ("Reshape", "a shape", {"b": 8}), ("Relu", "a", {"c": 8})]
    steps += [("Concat", "b c", {"y": 16})]
    assert most_alive(liveness, {"x": 1}, steps, {"y"}) == 1 + 8 + 8 + 16


def test_an_output_that_nobody_reads_is_alive_while_its_operator_runs(liveness):
    steps = [("Dropout", "x", {"a": 2, "mask": 8}), ("Conv", "a w", {"y": 4})]
    assert most_alive(liveness, {"x": 1}, steps, {"y"}) == 1 + 2 + 8


def test_weights_take_no_memory(liveness):
    steps = [("Reshape", "w shape", {"v": 64}), ("MatMul", "x v", {"y": 2})]
    assert most_alive(liveness, {"x": 1}, steps, {"y"}) == 1 + 2
