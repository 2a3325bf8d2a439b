"""The activations of a function lie in one storage, share no byte while they are in use, and compute what they did."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.network_plan.arena import ALIGNMENT, aligned
from autotune.tvm_backend import lowering as prepare
from autotune.tvm_backend.export.compilation import build_lowered
from autotune.tvm_backend.expressions import fixed_bytes, op_name, variables
from autotune.tvm_backend.graph.in_place import place_parts
from autotune.tvm_backend.lowering import finish
from autotune.tvm_backend.vector_math import registry

from ..relax_functions import function

_OP = relax.op
_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
IMAGE = (1, 4, 8, 8)
BYTES = 4 * 8 * 8 * 4
OPEN = (tvm.tirx.Var("n", "int64"), 4, 8, 8)


def lowered(build, shape=IMAGE, target=_TARGET):
    """A module, ready to be built, whose `main` computes what `build(emit, x)` makes of an input of this shape."""
    with target, tvm.transform.PassContext(opt_level=3):
        sorts = relax.backend.DispatchSortScan()(function(build, shape))
        return finish(relax.transform.LegalizeOps()(place_parts(sorts)), target)


def chain(emit, x):
    """Operators one after the other, and a last one that reads the first, too."""
    first = emit(_OP.abs(x))
    last = first
    for _ in range(4):
        last = emit(_OP.negative(last))
    return _OP.add(first, last)


def branches(emit, x):
    wide = [emit(_OP.tile(emit(operator(x)), (1, 3, 1, 1))) for operator in (_OP.abs, _OP.negative)]
    return _OP.mean(emit(_OP.multiply(*wide)), [2, 3], keepdims=True)


def concatenated(emit, x):
    """A concatenation, whose parts are written where it lies, and a slice that is read there."""
    whole = emit(_OP.concat([emit(_OP.abs(x)), emit(_OP.negative(emit(_OP.square(x))))], axis=1))
    return _OP.abs(emit(_OP.strided_slice(emit(_OP.square(whole)), [1], [3], [6])))


def two_outputs(emit, x):
    """One output is read by a later kernel, too, and one has another shape."""
    first = emit(_OP.negative(emit(_OP.square(x))))
    return first, emit(_OP.reshape(emit(_OP.abs(emit(_OP.negative(first)))), (4, 64)))


def input_and_constant(emit, x):
    return x, relax.const(np.ones(3, "float32")), emit(_OP.negative(emit(_OP.square(x))))


def sorted_middle(emit, x):
    """A function of TVM's runtime reads and writes activations."""
    return _OP.negative(emit(_OP.sort(emit(_OP.abs(emit(_OP.negative(x)))), axis=-1)))


def several_results(emit, x):
    """A kernel with two results, of which one is read by the next kernel and one is returned."""
    pair = emit(_OP.topk(emit(_OP.negative(x)), 3, ret_type="both", dtype="int64"))
    return emit(relax.TupleGetItem(pair, 1)), emit(_OP.square(emit(relax.TupleGetItem(pair, 0))))


def reshaped(emit, x):
    turned = emit(_OP.reshape(emit(_OP.abs(x)), (8, 32)))
    back = emit(_OP.reshape(emit(_OP.negative(turned)), IMAGE))
    return emit(_OP.square(emit(_OP.negative(back)))), turned


def wanted_several(x):
    order = np.argsort(x, axis=-1, kind="stable")[..., :3]
    return [order, np.take_along_axis(x, order, -1) ** 2]


# Each network, and what it computes.
NETWORKS = [
    (chain, lambda x: [x + x]),
    (branches, lambda x: [np.tile((x * -x).mean((2, 3), keepdims=True), (1, 3, 1, 1))]),
    (concatenated, lambda x: [np.concatenate([x**2, x**4], 1)[:, 3:6]]),
    (two_outputs, lambda x: [-(x**2), (x**2).reshape(4, 64)]),
    (input_and_constant, lambda x: [x, np.ones(3, "float32"), -(x**2)]),
    (sorted_middle, lambda x: [-np.sort(x, -1)]),
    (several_results, wanted_several),
    (reshaped, lambda x: [x**2, x.reshape(8, 32)]),
]


def values(module):
    return [item.value for block in module["main"].body.blocks for item in block.bindings]


def storages(module):
    """The sizes of the storages, in order."""
    allocated = [value for value in values(module) if op_name(value) == "relax.vm.alloc_storage"]
    return [int(value.args[0].values[0]) for value in allocated]


def machine(module):
    with registry.library_functions():  # what the kernels compute does not matter, and these are compiled soon
        return relax.VirtualMachine(build_lowered(module, _TARGET), tvm.cpu())


def outputs(function: Any, image: Any) -> list[Any]:
    made = function(tvm.runtime.tensor(image))
    return [made] if hasattr(made, "numpy") else list(made)


@pytest.fixture
def planned_by_tvm(monkeypatch):
    """Lower a function with a storage for each tensor that TVM's planner gives one."""

    def lower(build):
        with monkeypatch.context() as patched:
            patched.setattr(prepare, "place_activations", lambda module: module)
            return lowered(build)

    return lower


@pytest.mark.parametrize(("build", "computed"), NETWORKS)
def test_a_function_in_one_storage_computes_the_same_in_every_call(build, computed):
    main = machine(lowered(build))["main"]
    draw = np.random.default_rng(0)
    images = [draw.uniform(0.5, 1.5, IMAGE).astype("float32") for _ in range(2)]
    results = [outputs(main, image) for image in images]  # the second call must not write to what the first returned
    for image, result in zip(images, results, strict=True):
        for output, wanted in zip(result, computed(image), strict=True):
            np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("build", [build for build, _ in NETWORKS])
def test_a_function_needs_one_storage_besides_those_of_its_outputs_and_no_more_bytes_than_with_tvm(
    build, planned_by_tvm
):
    module = lowered(build)
    kind = module["main"].ret_ty
    sizes = storages(module)
    assert 1 <= len(sizes) <= 1 + len(kind.fields if isinstance(kind, relax.TupleType) else [kind])
    assert sum(sizes) <= sum(-(-size // ALIGNMENT) * ALIGNMENT for size in storages(planned_by_tvm(build)))


@pytest.mark.parametrize(("build", "tensors"), [(chain, 6), (branches, 6)])
def test_tensors_that_are_in_use_at_once_share_no_byte(build, tensors):
    module = lowered(build)
    bindings = [item for block in module["main"].body.blocks for item in block.bindings]
    spans = {}
    for item in bindings:
        if op_name(item.value) == "relax.vm.alloc_tensor":
            uses = [number for number, other in enumerate(bindings) if item.var in set(variables(other.value))]
            start = int(item.value.args[1])
            spans[item.var] = (item.value.args[0], uses[0], uses[-1], start, start + fixed_bytes(item.var))
            assert start % ALIGNMENT == 0
    assert len(spans) == tensors
    for one, other in itertools.combinations(spans.values(), 2):
        apart_in_time = one[2] < other[1] or other[2] < one[1]
        assert apart_in_time or one[0] != other[0] or one[4] <= other[3] or other[4] <= one[3]


def root(bound, var):
    """The tensor that a variable is another shape of, or the variable."""
    value = bound[var]
    return value.args[0] if getattr(value.op, "global_symbol", "") == "vm.builtin.reshape" else var


@pytest.mark.parametrize(
    ("build", "placed"),
    [(chain, 1), (branches, 1), (concatenated, 1), (two_outputs, 2), (input_and_constant, 1), (several_results, 2)],
)
def test_an_output_lies_at_the_start_of_a_storage_as_large_as_it_is(build, placed):
    module = lowered(build)
    bound = {item.var: item.value for block in module["main"].body.blocks for item in block.bindings}
    result = module["main"].body.body
    made = list(bound[result].fields) if isinstance(bound[result], relax.Tuple) else [result]
    whole = [root(bound, var) for var in made if var in bound]
    tensors = [var for var in whole if op_name(bound[var]) == "relax.vm.alloc_tensor"]
    assert len(tensors) == placed
    for var in tensors:
        storage, offset, *_ = bound[var].args
        assert int(offset) == 0
        assert int(bound[storage].args[0].values[0]) == aligned(fixed_bytes(var))


def test_the_memory_of_an_output_is_used_before_it_is_written():
    def build(emit, x):
        return _OP.abs(emit(_OP.negative(emit(_OP.abs(x)))))

    assert storages(lowered(build)) == [BYTES, BYTES]


def test_nothing_that_lies_in_the_arena_is_dropped():
    names = [op_name(value) for value in values(lowered(concatenated))]
    assert "relax.vm.alloc_tensor" in names
    assert "relax.vm.kill_object" not in names


def test_tensors_of_open_sizes_stay_where_tvm_puts_them():
    def build(emit, x):
        return emit(_OP.mean(emit(_OP.abs(emit(_OP.negative(x)))), [0])), emit(_OP.abs(emit(_OP.negative(x))))

    main = machine(lowered(build, OPEN))["main"]
    for batch in (1, 3):
        image = np.random.default_rng(0).uniform(0.5, 1.5, (batch, *IMAGE[1:])).astype("float32")
        mean, whole = outputs(main, image)
        np.testing.assert_allclose(mean.numpy(), image.mean(0), rtol=1e-5)
        np.testing.assert_array_equal(whole.numpy(), image)


def test_a_gpu_has_the_storages_of_tvm():
    gpu = tvm.target.Target("nvidia/nvidia-t4")
    offsets = [
        int(value.args[1]) for value in values(lowered(chain, target=gpu)) if op_name(value) == "relax.vm.alloc_tensor"
    ]
    assert len(offsets) == 6 and not any(offsets)
