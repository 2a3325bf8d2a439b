"""The activations of a function lie in one storage, share no byte while they are in use, and compute what they did."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.plans.arena import ALIGNMENT, aligned
from autotune.tvm_backend.export.compilation import build_lowered
from autotune.tvm_backend.passes import prepare
from autotune.tvm_backend.passes.in_place import place_parts
from autotune.tvm_backend.passes.prepare import finish
from autotune.tvm_backend.passes.rewrite import fixed_bytes, op_name, variables

from .conftest import function

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
    first = emit(_OP.exp(x))
    last = first
    for _ in range(4):
        last = emit(_OP.sin(last))
    return _OP.add(first, last)


def branches(emit, x):
    wide = [emit(_OP.tile(emit(operator(x)), (1, 3, 1, 1))) for operator in (_OP.exp, _OP.sin)]
    return _OP.mean(emit(_OP.multiply(*wide)), [2, 3], keepdims=True)


def concatenated(emit, x):
    """A concatenation, whose parts are written where it lies, and a slice that is read there."""
    whole = emit(_OP.concat([emit(_OP.exp(x)), emit(_OP.cos(emit(_OP.sin(x))))], axis=1))
    return _OP.tanh(emit(_OP.strided_slice(emit(_OP.sigmoid(whole)), [1], [3], [6])))


def two_outputs(emit, x):
    """One output is read by a later kernel, too, and one has another shape."""
    first = emit(_OP.exp(emit(_OP.cos(x))))
    return first, emit(_OP.reshape(emit(_OP.sin(emit(_OP.sin(first)))), (4, 64)))


def input_and_constant(emit, x):
    return x, relax.const(np.ones(3, "float32")), emit(_OP.exp(emit(_OP.sin(x))))


def sorted_middle(emit, x):
    """A function of TVM's runtime reads and writes activations."""
    return _OP.sin(emit(_OP.sort(emit(_OP.exp(emit(_OP.cos(x)))), axis=-1)))


def several_results(emit, x):
    """A kernel with two results, of which one is read by the next kernel and one is returned."""
    pair = emit(_OP.topk(emit(_OP.sin(x)), 3, ret_type="both", dtype="int64"))
    return emit(relax.TupleGetItem(pair, 1)), emit(_OP.exp(emit(relax.TupleGetItem(pair, 0))))


NETWORKS = [chain, branches, concatenated, two_outputs, input_and_constant, sorted_middle, several_results]


def values(module):
    return [item.value for block in module["main"].body.blocks for item in block.bindings]


def storages(module):
    """The sizes of the storages, in order."""
    allocated = [value for value in values(module) if op_name(value) == "relax.vm.alloc_storage"]
    return [int(value.args[0].values[0]) for value in allocated]


def outputs(module, image):
    machine = relax.VirtualMachine(build_lowered(module, _TARGET), tvm.cpu())
    machine["main"](tvm.runtime.tensor(image + 1))  # which may leave memory to the next call
    made = machine["main"](tvm.runtime.tensor(image))
    return [item.numpy() for item in ([made] if hasattr(made, "numpy") else made)]


@pytest.fixture
def planned_by_tvm(monkeypatch):
    """Lower a function with a storage for each tensor that TVM's planner gives one."""

    def lower(build, shape=IMAGE):
        with monkeypatch.context() as patched:
            patched.setattr(prepare, "place_activations", lambda module: module)
            return lowered(build, shape)

    return lower


@pytest.mark.parametrize("build", NETWORKS)
def test_results_are_those_of_tensors_in_storages_of_their_own(build, planned_by_tvm):
    image = np.random.default_rng(0).uniform(0.5, 1.5, IMAGE).astype("float32")
    for output, wanted in zip(outputs(lowered(build), image), outputs(planned_by_tvm(build), image), strict=True):
        np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("build", NETWORKS)
def test_a_function_needs_one_storage_besides_those_of_its_outputs(build):
    module = lowered(build)
    kind = module["main"].ret_ty
    assert len(storages(module)) <= 1 + len(kind.fields if isinstance(kind, relax.TupleType) else [kind])


@pytest.mark.parametrize("build", NETWORKS)
def test_storages_are_no_larger_than_those_of_tvm(build, planned_by_tvm):
    assert sum(storages(lowered(build))) <= sum(
        -(-size // ALIGNMENT) * ALIGNMENT for size in storages(planned_by_tvm(build))
    )


@pytest.mark.parametrize("build", [chain, branches])
def test_tensors_that_are_in_use_at_once_share_no_byte(build):
    module = lowered(build)
    bindings = [item for block in module["main"].body.blocks for item in block.bindings]
    spans = {}
    for item in bindings:
        if op_name(item.value) == "relax.vm.alloc_tensor":
            uses = [number for number, other in enumerate(bindings) if item.var in set(variables(other.value))]
            start = int(item.value.args[1])
            spans[item.var] = (item.value.args[0], uses[0], uses[-1], start, start + fixed_bytes(item.var))
            assert start % ALIGNMENT == 0
    for one, other in itertools.combinations(spans.values(), 2):
        apart_in_time = one[2] < other[1] or other[2] < one[1]
        assert apart_in_time or one[0] != other[0] or one[4] <= other[3] or other[4] <= one[3]


def test_what_is_returned_stays_when_the_function_is_called_again():
    machine = relax.VirtualMachine(build_lowered(lowered(two_outputs), _TARGET), tvm.cpu())
    images = [np.full(IMAGE, number, "float32") for number in (0.25, 0.5)]
    results = [machine["main"](tvm.runtime.tensor(image)) for image in images]
    for image, (first, second) in zip(images, results, strict=True):
        wanted = np.exp(np.cos(image))
        np.testing.assert_allclose(first.numpy(), wanted, rtol=1e-5)
        np.testing.assert_allclose(second.numpy(), np.sin(np.sin(wanted)).reshape(4, 64), rtol=1e-5)


@pytest.mark.parametrize("build", NETWORKS)
def test_an_output_lies_at_the_start_of_a_storage_as_large_as_it_is(build):
    module = lowered(build)
    bound = {item.var: item.value for block in module["main"].body.blocks for item in block.bindings}
    outlive = list(variables(bound.get(module["main"].body.body, module["main"].body.body)))
    for output in outlive:
        value = bound.get(output)
        if op_name(value) == "relax.vm.alloc_tensor":
            assert int(value.args[1]) == 0
            assert int(bound[value.args[0]].args[0].values[0]) == aligned(fixed_bytes(output))


def test_the_memory_of_an_output_is_used_before_it_is_written():
    def build(emit, x):
        return _OP.exp(emit(_OP.cos(emit(_OP.sin(x)))))

    assert storages(lowered(build)) == [BYTES, BYTES]


def test_nothing_that_lies_in_the_arena_is_dropped():
    assert not [value for value in values(lowered(concatenated)) if op_name(value) == "relax.vm.kill_object"]


def test_tensors_of_open_sizes_stay_where_tvm_puts_them(planned_by_tvm):
    def build(emit, x):
        return emit(_OP.mean(emit(_OP.sin(emit(_OP.cos(x)))), [0])), emit(_OP.sin(emit(_OP.cos(x))))

    images = [np.random.default_rng(0).uniform(0.5, 1.5, (batch, *IMAGE[1:])).astype("float32") for batch in (1, 3)]
    for image in images:
        pairs = zip(outputs(lowered(build, OPEN), image), outputs(planned_by_tvm(build, OPEN), image), strict=True)
        for output, wanted in pairs:
            np.testing.assert_array_equal(output, wanted)


def test_a_gpu_has_the_storages_of_tvm():
    gpu = tvm.target.Target("nvidia/nvidia-t4")
    offsets = [
        int(value.args[1]) for value in values(lowered(chain, target=gpu)) if op_name(value) == "relax.vm.alloc_tensor"
    ]
    assert len(offsets) == 6 and not any(offsets)
