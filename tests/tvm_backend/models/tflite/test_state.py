"""Values that a model keeps from one run to the next become inputs and outputs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ModelError, OperatorRefused
from autotune.storage.formats import KeptValue
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer
from autotune.tvm_backend.models.tflite.program import import_flatbuffer
from autotune.tvm_backend.models.tflite.state import with_open_state


def handle(network: Any, name: str) -> int:
    """Add the operator that stands for a value that is kept."""
    number = network.add("VAR_HANDLE", shape=(), kind="VarHandleOptions", sharedName=name)
    network.graph.tensors[number].type = network.schema.TensorType.RESOURCE
    return int(number)


def assign(network: Any, kept: int, value: int) -> None:
    network.add("ASSIGN_VARIABLE", kept, value, shape=())
    network.graph.operators[-1].outputs = []


def begin_with(network: Any, name: str, values: Any) -> None:
    """Add a graph that is run once, before the first run, and assigns to a value that is kept."""
    main = network.graph
    network.graph = network.schema.SubGraphT()
    for part in ("tensors", "operators", "inputs", "outputs"):
        setattr(network.graph, part, [])
    assign(network, handle(network, name), network.constant(values))
    network.model.subgraphs.append(network.graph)
    network.graph = main
    network.add("CALL_ONCE", shape=(), kind="CallOnceOptions", initSubgraphIndex=len(network.model.subgraphs) - 1)
    network.graph.operators[-1].outputs = []


def running_sum(network: Any, path: Path, first: Any) -> Path:
    """Adds what it is given to what it keeps, and puts out the sum squared."""
    x = network.input("x", 4)
    begin_with(network, "total", first)
    kept = handle(network, "total")
    before = network.add("READ_VARIABLE", kept, shape=(4,))
    total = network.add("ADD", before, x, shape=(4,), kind="AddOptions")
    assign(network, kept, total)
    return network.write(path, network.add("SQUARE", total, shape=(4,)))


def test_a_kept_value_is_an_input_and_its_next_value_an_output(network: Any, tmp_path: Path) -> None:
    path = running_sum(network, tmp_path / "m", np.full(4, 3, np.float32))
    opened, state = with_open_state(Flatbuffer(path))
    assert state == (KeptValue("total", "total_next", 3.0),)
    model = import_flatbuffer(opened, {}, {})
    assert [(item.name, item.shape) for item in model.inputs] == [("x", (4,)), ("total", (4,))]
    assert model.outputs[1:] == ("total_next",) and len(model.outputs) == 2


def test_the_opened_model_computes_what_litert_computes_run_after_run(network: Any, tmp_path: Path) -> None:
    from autotune.tvm_backend.export.runners import litert_runner

    path = running_sum(network, tmp_path / "m", np.zeros(4, np.float32))
    opened, _ = with_open_state(Flatbuffer(path))
    (tmp_path / "opened").write_bytes(opened.content)
    x = np.arange(4, dtype=np.float32)
    kept = litert_runner(path, [x], 1)
    total = np.zeros(4, np.float32)
    for count in (1, 2, 3):
        squares, total = litert_runner(tmp_path / "opened", [x, total], 1)()
        np.testing.assert_array_equal(squares, kept()[0])
        np.testing.assert_array_equal(total, count * x)


def test_a_value_that_is_put_out_as_well_has_an_output_of_its_own(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    begin_with(network, "last", np.zeros(4, np.float32))
    kept = handle(network, "last")
    before = network.add("READ_VARIABLE", kept, shape=(4,))
    y = network.add("ADD", before, x, shape=(4,), kind="AddOptions")
    assign(network, kept, y)
    opened, _ = with_open_state(Flatbuffer(network.write(tmp_path / "m", y)))
    names = list(map(opened.name, opened.outputs()))
    assert len(set(names)) == 2 and names[1] == "last_next"


def test_an_input_that_is_kept_is_copied(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    begin_with(network, "last", np.zeros(4, np.float32))
    kept = handle(network, "last")
    before = network.add("READ_VARIABLE", kept, shape=(4,))
    assign(network, kept, x)
    path = network.write(tmp_path / "m", network.add("SUB", x, before, shape=(4,), kind="SubOptions"))
    opened, state = with_open_state(Flatbuffer(path))
    assert [item.output for item in state] == ["last_next"]
    assert import_flatbuffer(opened, {}, {}).outputs[1] == "last_next"


def test_a_model_that_keeps_nothing_is_left_as_it_is(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    flatbuffer = Flatbuffer(network.write(tmp_path / "m", network.add("EXP", x, shape=(4,))))
    assert with_open_state(flatbuffer) == (flatbuffer, ())


def test_a_value_that_begins_with_several_numbers_is_refused(network: Any, tmp_path: Path) -> None:
    path = running_sum(network, tmp_path / "m", np.arange(4, dtype=np.float32))
    with pytest.raises(OperatorRefused) as caught:
        with_open_state(Flatbuffer(path))
    refusal = caught.value.refusal
    assert refusal is not None and refusal.operator == "READ_VARIABLE" and refusal.node == "total"
    assert "several values before the first run" in refusal.reason and "state as inputs" in refusal.advice


def test_a_value_that_nothing_assigns_to_is_refused(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    begin_with(network, "fixed", np.zeros(4, np.float32))
    before = network.add("READ_VARIABLE", handle(network, "fixed"), shape=(4,))
    path = network.write(tmp_path / "m", network.add("ADD", before, x, shape=(4,), kind="AddOptions"))
    with pytest.raises(OperatorRefused, match="nothing assigns to what it reads"):
        with_open_state(Flatbuffer(path))


def test_a_model_without_a_first_value_is_checked_against_litert(network: Any, tmp_path: Path) -> None:
    """LiteRT has no value to read before the first run."""
    x = network.input("x", 4)
    kept = handle(network, "total")
    total = network.add("ADD", network.add("READ_VARIABLE", kept, shape=(4,)), x, shape=(4,), kind="AddOptions")
    assign(network, kept, total)
    with pytest.raises(ModelError, match="m is refused by LiteRT: "):
        with_open_state(Flatbuffer(network.write(tmp_path / "m", network.add("EXP", total, shape=(4,)))))
