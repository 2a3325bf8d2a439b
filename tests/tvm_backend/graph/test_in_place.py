"""Parts are written where their concatenation lies, and slices are read where they lie."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.graph.in_place import place_parts
from autotune.tvm_backend.graph.joined_modules import Joiner
from autotune.tvm_backend.lowering import finish
from autotune.tvm_backend.vector_math import registry

from ..relax_functions import function

_OP = relax.op
IMAGE = (1, 4, 3, 5)
_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def lowered(module):
    passes = relax.transform
    lower = [passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FoldConstant(), passes.FuseOps()]
    with _TARGET, tvm.transform.PassContext(opt_level=3):
        return finish(tvm.transform.Sequential([*lower, passes.FuseTIR()])(module), _TARGET)


def run(module, shapes, name="main"):
    """What a lowered module returns the second time: the first may leave memory to the second."""
    with registry.library_functions():  # what the kernels compute does not matter, and these are compiled soon
        built = relax.build(module, _TARGET, relax_pipeline=None, tir_pipeline=pipeline(_TARGET))
    machine = relax.VirtualMachine(built, tvm.cpu())
    random = np.random.default_rng(0)
    for _ in range(2):
        arrays = [random.uniform(0.5, 1.5, shape).astype(np.float32) for shape in shapes]
        outputs = machine[name](*map(tvm.runtime.tensor, arrays))
    return [item.numpy() for item in ([outputs] if isinstance(outputs, tvm.runtime.Tensor) else outputs)]


def kernels(module, name="main"):
    values = [item.value for block in module[name].body.blocks for item in block.bindings]
    return [value.op.name_hint for value in values if isinstance(getattr(value, "op", None), tvm.ir.GlobalVar)]


@pytest.fixture
def placed():
    """Place the parts of a function, which must go on computing the same; return the kernels that it calls then."""

    def check(build, *shapes):
        with _TARGET:
            before = relax.backend.DispatchSortScan()(function(build, *shapes))
        module = lowered(place_parts(before))
        pairs = zip(run(module, shapes), run(lowered(before), shapes), strict=True)
        for output, wanted in pairs:
            np.testing.assert_array_equal(output, wanted)
        return kernels(module)

    return check


def joined(emit, x):
    return _OP.sigmoid(emit(_OP.concat([emit(_OP.exp(x)), emit(_OP.sin(x))], axis=1)))


def test_parts_that_kernels_compute_are_not_copied(placed):
    def build(emit, x, y):
        return _OP.sigmoid(emit(_OP.concat([emit(_OP.exp(x)), emit(_OP.sin(y)), emit(_OP.cos(x))], axis=1)))

    assert placed(build, IMAGE, (1, 2, 3, 5)) == ["tir_exp", "tir_sin", "tir_cos", "tir_sigmoid"]


def test_a_part_can_be_read_by_others_before_and_after(placed):
    def build(emit, x):
        first = emit(_OP.exp(x))
        second = emit(_OP.matmul(first, first))
        together = emit(_OP.concat([first, second], axis=1))
        return _OP.add(emit(_OP.matmul(first, second)), emit(_OP.mean(together, [1], True)))

    assert not [name for name in placed(build, (1, 4, 3, 3)) if "together" in name or "concat" in name]


def test_slices_are_read_where_they_lie_and_together_are_the_whole(placed):
    def build(emit, x):
        whole = emit(_OP.exp(x))
        halves = [emit(_OP.strided_slice(whole, [1], [at], [at + 2])) for at in (0, 2)]
        return _OP.sin(emit(_OP.concat([*halves, emit(_OP.cos(halves[1]))], axis=1)))

    def again(emit, x):
        return _OP.sin(emit(_OP.concat([emit(_OP.strided_slice(x, [1], [at], [at + 2])) for at in (0, 2)], axis=1)))

    assert placed(build, IMAGE) == ["tir_exp", "tir_cos", "tir_sin"]
    assert placed(again, IMAGE) == ["tir_sin"]


@pytest.mark.parametrize(
    ("begin", "end", "kernels"),
    [([2, 1], [4, 3], 1), ([0, 2], [4, 3], 1), ([-3, 0], [3, 3], 2), ([-9, 0], [3, 3], 2)],
)
def test_a_slice_of_whole_channels_alone_is_read_where_it_lies(begin, end, kernels, placed):
    def build(emit, x):
        return _OP.sin(emit(_OP.strided_slice(emit(_OP.exp(x)), [1, 2], begin, end)))

    assert len(placed(build, IMAGE)) == kernels


@pytest.mark.parametrize("axis", (1, -1))
def test_a_concatenation_can_be_a_part(axis, placed):
    def build(emit, x):
        inner = emit(_OP.concat([emit(_OP.exp(x)), emit(_OP.cos(x))], axis))
        return _OP.sin(emit(_OP.concat([inner, emit(_OP.tan(x)), emit(_OP.tanh(inner))], axis)))

    shape = [1, 1, 1, 1]
    shape[axis:] = IMAGE[axis:]
    assert placed(build, tuple(shape)) == ["tir_exp", "tir_cos", "tir_tan", "tir_tanh", "tir_sin"]


_MAKES = {
    "an input": lambda emit, x: (x, emit(_OP.exp(x))),
    "a constant": lambda emit, x: (relax.const(np.ones(IMAGE, "float32")), emit(_OP.exp(x))),
    "the same twice": lambda emit, x: (emit(_OP.exp(x)),) * 2,
    "another's memory": lambda emit, x: (emit(_OP.reshape(x, IMAGE)), emit(_OP.exp(x))),
}


@pytest.mark.parametrize("made", _MAKES)
def test_a_part_that_no_kernel_can_place_is_copied(made, placed):
    (called,) = placed(lambda emit, x: _OP.sin(emit(_OP.concat(_MAKES[made](emit, x), axis=1))), IMAGE)
    assert "concatenate" in called


def test_a_part_of_two_concatenations_lies_in_the_first(placed):
    def build(emit, x):
        one = emit(_OP.exp(x))
        two = emit(_OP.cos(x))
        first, second = (emit(_OP.concat(pair, axis=1)) for pair in ((one, two), (two, one)))
        return _OP.matmul(first, emit(_OP.permute_dims(second, [0, 1, 3, 2])))

    called = placed(build, IMAGE)
    assert "tir_exp" in called and sum("concat" in name for name in called) == 1


def test_parts_that_lie_apart_are_copied(placed):
    assert "concatenate" in " ".join(placed(joined, (2, *IMAGE[1:])))


def test_a_part_that_is_returned_has_memory_of_its_own(placed):
    def build(emit, x):
        part = emit(_OP.exp(x))
        slice_ = emit(_OP.strided_slice(part, [1], [1], [3]))
        return emit(_OP.sin(emit(_OP.concat([part, emit(_OP.cos(x))], axis=1)))), part, slice_

    placed(build, IMAGE)


@pytest.mark.parametrize("sorted_", ("part", "slice", "reshaped slice"))
def test_a_function_of_the_runtime_gets_a_tensor_of_its_own(sorted_, placed):
    def build(emit, x):
        whole = emit(_OP.exp(x))
        slice_ = emit(_OP.strided_slice(whole, [1], [1], [3]))
        wanted = {"part": whole, "slice": slice_, "reshaped slice": emit(_OP.reshape(slice_, (1, 30)))}[sorted_]
        order = emit(_OP.sort(wanted, axis=-1))
        together = emit(_OP.concat([emit(_OP.cos(x)), whole], axis=1))
        return emit(_OP.sin(order)), emit(_OP.sin(together)), emit(_OP.sin(slice_))

    placed(build, IMAGE)


@pytest.mark.parametrize("seed", [0, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4, 6, 7))])
def test_random_networks_compute_the_same(seed, placed):
    chosen = random.Random(seed)

    def operator(emit, images):
        image = chosen.choice(images[-4:])
        other = chosen.choice(images)
        channels = int(image.ty.shape[1])
        first = chosen.randrange(channels)
        past = chosen.randrange(first + 1, channels + 1)
        return chosen.choice(
            [
                lambda: _OP.tanh(image),
                lambda: _OP.add(image, emit(_OP.mean(other, [1], True))),
                lambda: _OP.concat([image, emit(_OP.sin(other)), emit(_OP.cos(image))], axis=1),
                lambda: _OP.concat([image, other], axis=1),
                lambda: _OP.strided_slice(image, [1], [first], [past]),
                lambda: _OP.reshape(image, (1, channels, 5, 3)),
                lambda: _OP.permute_dims(image, [0, 1, 3, 2]),
            ]
        )()

    def build(emit, x):
        images = [x]
        for _ in range(10):
            image = emit(operator(emit, [item for item in images if item.ty.shape[2] == images[-1].ty.shape[2]]))
            images.append(image)
        return emit(_OP.sin(images[-1])), images[chosen.randrange(1, 10)]

    placed(build, IMAGE)


def test_each_function_of_a_module_is_served():
    shapes = [IMAGE, (1, 4, 2, 2)]
    joiner = Joiner()
    for at, shape in enumerate(shapes):
        joiner.add(f"entry{at}", place_parts(function(joined, shape)))
    module = lowered(joiner.module())
    for at, shape in enumerate(shapes):
        assert kernels(module, f"entry{at}")[-1].startswith("tir_sigmoid") and len(kernels(module, f"entry{at}")) == 3
        wanted = run(lowered(function(joined, shape)), [shape])
        np.testing.assert_array_equal(run(module, [shape], f"entry{at}"), wanted)
