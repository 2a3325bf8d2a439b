"""Recurrent operators with random weights, and what they compute when they are compiled for a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.types import ModelProto

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def drawn(seed: int, *shape: int) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def operator(
    kind: str,
    shape: tuple[int, int, int],
    hidden: int,
    given: tuple[str, ...] = (),
    lengths: Any = None,
    **attributes: Any,
) -> ModelProto:
    """A model of one operator with biases.

    Args:
        shape: Of its input.
        given: Which others it has of `initial_h`, `initial_c` and `P`.
        lengths: Of the sequences, if they have their own.
    """
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[kind] * hidden
    first = attributes.get("layout", 0)
    state = (shape[0], directions, hidden) if first else (directions, shape[1], hidden)
    sizes = {"W": (directions, gates, shape[2]), "R": (directions, gates, hidden), "B": (directions, 2 * gates)}
    sizes |= {"initial_h": state, "initial_c": state, "P": (directions, 3 * hidden)}
    names = ["W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    values = {name: drawn(index, *size) for index, (name, size) in enumerate(sizes.items())}
    present = {"W", "R", "B", *given}
    if lengths is not None:
        values["sequence_lens"] = np.array(lengths, np.int32)
        present.add("sequence_lens")
    inputs = ["x", *(name if name in present else "" for name in names[: 7 if kind == "LSTM" else 5])]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, hidden_size=hidden, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(values[name], name) for name in sorted(present)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="session")
def compiled():
    """Returns the outputs of a model of one input, compiled for the features of any x86-64 or ARM CPU or as told."""
    load_tvm("llvm")
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.models.onnx.importer import import_graph
    from autotune.tvm_backend.vector_math import registry

    def run(model: ModelProto, x: Any, target: Any = None) -> list[Any]:
        target = target or tvm.target.Target({"kind": "llvm"})
        module = import_graph(model, {"x": list(x.shape)}, {"x": "float32"})
        with registry.library_functions():  # these are compiled soon
            executable = compile_tuned(prepare(module, target), [], {}, target)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        return [item.numpy() for item in machine["main"](tvm.runtime.tensor(x))]

    return run
