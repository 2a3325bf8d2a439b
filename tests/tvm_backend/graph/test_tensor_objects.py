"""A call of a model makes few tensor objects. What it computes is in `test_one_arena`."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.expressions import op_name, variables
from autotune.tvm_backend.graph.tensor_objects import share_objects

from .test_one_arena import chain, concatenated, lowered, machine, reshaped, values

_OP = relax.op

SMALL = (2, 8)
OPEN = (tvm.tirx.Var("n", "int64"), 2)


def places(module):
    """The place of each tensor: its storage, its offset there, its shape and its type."""
    tensors = [value for value in values(module) if op_name(value) == "relax.vm.alloc_tensor"]
    return [(value.args[0], *map(str, value.args[1:])) for value in tensors]


def test_tensors_of_one_shape_at_one_place_are_one_object():
    module = lowered(chain, SMALL)
    shared = places(share_objects(module))
    assert len(places(module)) == 6 > len(shared)
    assert len(shared) == len(set(shared)) and set(shared) == set(places(module))


def called(module):
    """The functions of TVM's runtime that a call runs."""
    return {str(getattr(value.op, "global_symbol", "")) for value in values(module) if hasattr(value, "op")}


@pytest.mark.parametrize(
    ("build", "function"), [(reshaped, "vm.builtin.reshape"), (concatenated, "runtime.TVMTensorCreateView")]
)
def test_no_tensor_is_made_of_another_one(build, function):
    module = lowered(build)
    assert function in called(module)
    shared = share_objects(module)
    assert function not in called(shared)
    assert len(places(shared)) == len(set(places(shared)))


def test_a_part_may_begin_anywhere():
    """The second part begins at byte 3 * 5 * 5 * 4, which is no multiple of a vector."""

    def build(emit, x):
        whole = emit(_OP.concat([emit(_OP.abs(x)), emit(_OP.negative(emit(_OP.square(x))))], axis=1))
        return _OP.square(whole)

    image = np.random.default_rng(0).standard_normal((1, 3, 5, 5)).astype("float32")
    module = lowered(build, image.shape)
    assert "runtime.TVMTensorCreateView" in called(module)
    result = machine(module)["main"](tvm.runtime.tensor(image)).numpy()
    np.testing.assert_allclose(result, np.concatenate([image**2, image**4], 1), rtol=1e-5)


def test_what_is_dropped_is_dropped_once_after_its_last_use():
    bindings = values(share_objects(lowered(chain, OPEN)))
    drops = [index for index, value in enumerate(bindings) if op_name(value) == "relax.vm.kill_object"]
    assert drops
    for index in drops:
        later = {variable for value in bindings[index + 1 :] for variable in variables(value)}
        assert bindings[index].args[0] not in later
