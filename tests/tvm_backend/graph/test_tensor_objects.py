"""A call of a model makes few tensor objects. What it computes is in `test_one_arena`."""

from __future__ import annotations

import tvm

from autotune.tvm_backend.expressions import op_name, variables
from autotune.tvm_backend.graph.tensor_objects import share_objects

from .test_one_arena import chain, lowered, values

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


def test_what_is_dropped_is_dropped_once_after_its_last_use():
    bindings = values(share_objects(lowered(chain, OPEN)))
    drops = [index for index, value in enumerate(bindings) if op_name(value) == "relax.vm.kill_object"]
    assert drops
    for index in drops:
        later = {variable for value in bindings[index + 1 :] for variable in variables(value)}
        assert bindings[index].args[0] not in later
