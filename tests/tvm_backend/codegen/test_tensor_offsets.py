"""A kernel reads and writes tensors that begin somewhere in a memory."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from autotune.network_plan.arena import ALIGNMENT
from autotune.tvm_backend.codegen.lowering_passes import pipeline

SHAPE = (3, 5)
ELEMENTS = 15
_TARGET = tvm.target.Target({"kind": "llvm"})


def doubled():
    """A kernel that doubles a tensor."""
    x = te.placeholder(SHAPE, name="x")
    program = te.create_prim_func([x, te.compute(SHAPE, lambda *index: x(*index) * 2, name="y")])
    return tvm.tirx.build(tvm.IRModule({"main": program}), _TARGET, pipeline=pipeline(_TARGET))["main"]


def view(memory, offset: int):
    return memory._create_view(SHAPE, "float32", offset)


@pytest.mark.parametrize(("first", "second"), [(0, ALIGNMENT), (3 * ALIGNMENT, ALIGNMENT)])
def test_tensors_are_where_their_offsets_say(first, second):
    values = np.arange(128, dtype="float32")
    memory = tvm.runtime.tensor(values)
    doubled()(view(memory, first), view(memory, second))
    wanted = values.copy()
    wanted[second // 4 :][:ELEMENTS] = values[first // 4 :][:ELEMENTS] * 2
    np.testing.assert_array_equal(memory.numpy(), wanted)


def test_a_tensor_of_another_shape_is_refused():
    memory = tvm.runtime.tensor(np.zeros(128, "float32"))
    with pytest.raises(ValueError, match="Mismatched y"):
        doubled()(view(memory, 0), memory._create_view((5, 3), "float32", ALIGNMENT))
