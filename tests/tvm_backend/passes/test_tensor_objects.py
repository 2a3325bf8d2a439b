"""A call of a model makes few tensor objects, and computes what it did."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.export.compilation import build_lowered
from autotune.tvm_backend.kernels.pipeline import pipeline
from autotune.tvm_backend.passes.prepare import finish
from autotune.tvm_backend.passes.rewrite import op_name, variables
from autotune.tvm_backend.passes.tensor_objects import share_objects

from .conftest import function

_OP = relax.op
_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
SMALL = (2, 8)
LARGE = (1 << 15, 1)
OPEN = (tvm.tirx.Var("n", "int64"), 2)


def lowered(build, shape):
    """A module, ready to be built, whose `main` computes what `build(emit, x)` makes of an input of this shape."""
    with _TARGET, tvm.transform.PassContext(opt_level=3):
        return finish(relax.transform.LegalizeOps()(function(build, shape)), _TARGET)


def chain(emit, x):
    """Six operators one after the other, and a last one that reads the first, too."""
    first = emit(_OP.exp(x))
    last = first
    for _ in range(5):
        last = emit(_OP.sin(last))
    return _OP.add(first, last)


def reshaped(emit, x):
    turned = emit(_OP.reshape(emit(_OP.exp(x)), tuple(reversed(x.ty.shape))))
    back = emit(_OP.reshape(emit(_OP.sin(turned)), x.ty.shape))
    return emit(_OP.sin(emit(_OP.cos(back)))), turned


@pytest.mark.parametrize("build", [chain, reshaped])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_results_stay_the_same_in_every_call(build, shape):
    module = lowered(build, shape)
    apart = relax.build(module, _TARGET, relax_pipeline=None, tir_pipeline=pipeline(_TARGET))
    before = relax.VirtualMachine(apart, tvm.cpu())["main"]
    after = relax.VirtualMachine(build_lowered(module, _TARGET), tvm.cpu())["main"]
    inputs = [tvm.runtime.tensor(np.full(shape, value, "float32")) for value in (0.25, 0.5)]
    ours = [after(x) for x in inputs]  # the second call must not write to what the first one returned
    for x, result in zip(inputs, ours, strict=True):
        wanted = before(x)
        pairs = [(result, wanted)] if hasattr(wanted, "numpy") else zip(result, wanted, strict=True)
        for tensor, other in pairs:
            np.testing.assert_array_equal(tensor.numpy(), other.numpy())


def places(module):
    """The place of each tensor: its storage, its offset there, its shape and its type."""
    values = [item.value for block in module["main"].body.blocks for item in block.bindings]
    return [(value.args[0], *map(str, value.args[1:])) for value in values if op_name(value) == "relax.vm.alloc_tensor"]


def test_tensors_of_one_shape_at_one_place_are_one_object():
    module = lowered(chain, SMALL)
    shared = places(share_objects(module))
    assert len(places(module)) == 7 > len(shared)
    assert len(shared) == len(set(shared)) and set(shared) == set(places(module))


def test_what_is_dropped_is_dropped_once_after_its_last_use():
    module = share_objects(lowered(chain, OPEN))
    values = [item.value for block in module["main"].body.blocks for item in block.bindings]
    drops = [index for index, value in enumerate(values) if op_name(value) == "relax.vm.kill_object"]
    assert drops
    for index in drops:
        later = {variable for value in values[index + 1 :] for variable in variables(value)}
        assert values[index].args[0] not in later
