"""Networks for tensor cores, in fp16, bf16 and TF32: what they compute, and what becomes of them."""

from __future__ import annotations

import json
import random
import re
from functools import lru_cache

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune import strategies
from autotune.errors import BadInput
from autotune.storage.formats import Candidate
from autotune.strategies import samplers
from autotune.tvm_backend.cuda import compiler, cubin, runtime, tf32
from autotune.tvm_backend.expressions import bindings_of, op_name
from autotune.tvm_backend.graph.gpu_precision import (
    bfloat16,
    channels_last,
    half_precision,
    round_norms,
    weights_by_terms,
)
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Request, propose
from autotune.tvm_backend.search.tasks import extract_tasks, program_hash
from autotune.tvm_backend.target import resolve_target, tvm_target

SIZE = 14
CHANNELS = 32


@pytest.fixture(scope="module", autouse=True)
def _tvm():
    load_tvm("cuda")


def gpu(arch):
    return tvm_target(resolve_target(f'{{"kind": "cuda", "arch": "{arch}"}}', 1).description)


def weights(*shape):
    values = np.random.default_rng(sum(shape)).normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return relax.const(values.astype("float32"))


@pytest.fixture(scope="module")
def network():
    """A convolution with batch normalisation, a depthwise one, a residual sum, and a product."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, SIZE, SIZE), "float32"))
    ones = relax.const(np.linspace(0.5, 1.5, CHANNELS, dtype="float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.conv2d(x, weights(CHANNELS, 16, 3, 3), padding=1))
            normal = builder.emit(relax.op.nn.batch_norm(first, ones, ones, ones, ones, axis=1, training=False))
            relu = builder.emit(relax.op.nn.relu(builder.emit(relax.TupleGetItem(normal, 0))))
            depthwise = relax.op.nn.conv2d(relu, weights(CHANNELS, 1, 3, 3), padding=1, groups=CHANNELS)
            total = builder.emit(relax.op.add(builder.emit(depthwise), relu))
            second = builder.emit(relax.op.nn.conv2d(total, weights(CHANNELS, CHANNELS, 3, 3), padding=1))
            flat = builder.emit(relax.op.reshape(second, (CHANNELS, SIZE * SIZE)))
            output = builder.emit_output(relax.op.matmul(flat, weights(SIZE * SIZE, 16)))
        builder.emit_func_output(output)
    return builder.get()


@pytest.fixture(scope="module")
def plain(network):
    """The network with its batch normalisation as sums and products."""
    passes = relax.transform
    return tvm.transform.Sequential([passes.DecomposeOpsForInference(), passes.FoldConstant()])(network)


def run(module):
    x = np.random.default_rng(1).normal(size=(1, 16, SIZE, SIZE)).astype("float32")
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    return relax.VirtualMachine(relax.build(module, target), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


@pytest.fixture(scope="module")
def wanted(network):
    return run(network)


def calls(module):
    return [item.value for block in module["main"].body.blocks for item in block.bindings if op_name(item.value)]


@pytest.mark.parametrize(
    ("lower", "dtype", "least", "most"),
    [(half_precision, "float16", 1e-6, 5e-3), (bfloat16, "bfloat16", 1e-3, 2e-2)],
)
def test_operands_have_16_bits_with_the_channels_innermost_and_sums_are_fp32(plain, wanted, lower, dtype, least, most):
    module = lower(plain)
    output = run(module)
    assert output.dtype == np.float32
    assert least < np.abs(output - wanted).max() / np.abs(wanted).max() < most
    heavy = [call for call in calls(module) if op_name(call) in ("relax.nn.conv2d", "relax.matmul")]
    assert len(heavy) == 4
    for call in heavy:
        assert {str(argument.ty.dtype) for argument in call.args} == {dtype}
        assert str(call.ty.dtype) == "float32"
    assert {str(call.attrs.data_layout) for call in heavy[:3]} == {"NHWC"}
    assert op_name(calls(module)[-1]) == "relax.matmul", "no digits of the result are lost"


def normalised(*, is_result=False, is_multiplied=True, is_reshaped=False):
    """A layer normalisation that a residual sum reads, and a product, and that may be a result."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, CHANNELS), "float32"))
    ones = relax.const(np.linspace(0.5, 1.5, CHANNELS, dtype="float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            normal = builder.emit(relax.op.nn.layer_norm(x, ones, ones, axes=[-1]))
            if is_reshaped:
                normal = builder.emit(relax.op.reshape(normal, (2, 4, CHANNELS)))
            other = relax.op.matmul(normal, weights(CHANNELS, CHANNELS)) if is_multiplied else relax.op.nn.relu(normal)
            total = builder.emit_output(relax.op.add(builder.emit(other), normal))
            kept = builder.emit_output(normal) if is_result else None
        builder.emit_func_output(total if kept is None else relax.Tuple([total, kept]))
    return builder.get()


@pytest.mark.parametrize(("lower", "dtype"), [(half_precision, "float16"), (bfloat16, "bfloat16")])
def test_a_normalisation_that_a_product_reads_is_rounded_once_for_all_readers(lower, dtype):
    made = calls(round_norms(lower(normalised())))
    (place,) = (index for index, call in enumerate(made) if op_name(call) == "relax.nn.layer_norm")
    read_by = [str(call.attrs.dtype) for call in made[place + 1 :] if op_name(call) == "relax.astype"]
    assert read_by == [dtype, "float32"], "rounded, and as it is then for the sum"


def test_a_normalisation_that_is_returned_in_a_tuple_is_not_rounded():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, CHANNELS), "float32"))
    ones = relax.const(np.ones(CHANNELS, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            normal = builder.emit(relax.op.nn.layer_norm(x, ones, ones, axes=[-1]))
            half = builder.emit(relax.op.astype(normal, "float16"))
            output = builder.emit_output(relax.Tuple([normal, half]))
        builder.emit_func_output(output)
    assert [op_name(call) for call in calls(round_norms(builder.get()))] == ["relax.nn.layer_norm", "relax.astype"]


def test_what_is_cut_off_to_whole_numbers_stays_so():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, CHANNELS), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            whole = builder.emit(relax.op.astype(x, "int32"))
            output = builder.emit_output(relax.op.exp(builder.emit(relax.op.astype(whole, "float32"))))
        builder.emit_func_output(output)
    assert [op_name(call) for call in calls(half_precision(builder.get()))] == ["relax.astype"] * 2 + ["relax.exp"]


def test_a_normalisation_is_rounded_before_a_reshape_so_that_both_are_one_kernel():
    names = list(map(op_name, calls(round_norms(half_precision(normalised(is_reshaped=True))))))
    place = names.index("relax.nn.layer_norm")
    assert names[place + 1 : place + 3] == ["relax.astype", "relax.reshape"]


def turned_mean(*shape):
    """A mean of images whose axes are exchanged, before a product."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, *shape), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            mean = builder.emit(relax.op.mean(x, axis=1))
            turned = builder.emit(relax.op.permute_dims(mean, (0, 2, 1)))
            flat = builder.emit(relax.op.reshape(turned, (1, shape[1] * shape[2])))
            output = builder.emit_output(relax.op.matmul(flat, weights(shape[1] * shape[2], 8)))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize(("shape", "follows"), [((4, 1, 16), "astype"), ((4, 2, 16), "permute_dims")])
def test_a_mean_is_rounded_before_its_axes_are_exchanged_if_that_is_a_reshape(shape, follows):
    names = [op_name(call) for call in calls(round_norms(half_precision(turned_mean(*shape))))]
    assert names[names.index("relax.mean") + 1] == f"relax.{follows}"


@pytest.mark.parametrize(("shape", "count"), [((4, 1, 16), 0), ((4, 2, 16), 1)])
def test_in_tf32_a_permutation_that_is_a_reshape_becomes_one(shape, count):
    names = [op_name(call) for call in calls(channels_last(turned_mean(*shape)))]
    assert names.count("relax.permute_dims") == count


def test_what_is_in_bf16_is_normalised_in_fp32():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, CHANNELS), "bfloat16"))
    ones = relax.const(np.ones(CHANNELS, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            scale = builder.emit(relax.op.astype(ones, "bfloat16"))
            output = builder.emit_output(relax.op.nn.layer_norm(x, scale, scale, axes=[-1]))
        builder.emit_func_output(output)
    (normal,) = [call for call in calls(round_norms(builder.get())) if op_name(call) == "relax.nn.layer_norm"]
    assert {str(item.ty.dtype) for item in (normal, *normal.args)} == {"float32"}


@pytest.mark.parametrize("other", [{"is_result": True}, {"is_multiplied": False}])
def test_a_normalisation_that_is_a_result_or_that_no_product_reads_is_not_rounded(other):
    bindings = bindings_of(round_norms(half_precision(normalised(**other)))["main"])
    normal = next(item.var for item in bindings if op_name(item.value) == "relax.nn.layer_norm")
    total = next(item.value for item in bindings if op_name(item.value) == "relax.add")
    assert any(item.same_as(normal) for item in total.args)


def test_a_model_of_fp16_is_not_computed_in_bf16(plain):
    half = half_precision(plain)
    with pytest.raises(BadInput, match="tensors of float16"):
        bfloat16(half)


def test_in_tf32_everything_stays_float32_with_the_channels_innermost(plain, wanted):
    module = channels_last(plain)
    assert {str(call.ty.dtype) for call in calls(module)} == {"float32"}
    images = [call for call in calls(module) if op_name(call) == "relax.nn.conv2d"]
    assert len(images) == 3
    assert {str(call.attrs.data_layout) for call in images} == {"NHWC"}
    assert np.allclose(run(module), wanted, rtol=1e-4, atol=1e-5)


def test_in_tf32_constant_matrices_are_transposed(plain, wanted):
    module = weights_by_terms(channels_last(plain))
    assert "relax.matmul" not in map(op_name, calls(module))
    (product,) = [item for item in module.functions.values() if isinstance(item, tvm.tirx.PrimFunc)]
    before = next(call.args[1] for call in calls(plain) if op_name(call) == "relax.matmul")
    _, after, _ = product.params
    assert [int(size) for size in after.ty.shape] == [int(size) for size in reversed(before.ty.shape.values)]
    assert np.allclose(run(module), wanted, rtol=1e-4, atol=1e-5)


def test_in_tf32_products_have_tasks_of_their_own(network):
    plain, tf32_tasks = (
        extract_tasks(prepare(network, gpu("sm_80"), precision=precision), gpu("sm_80"))
        for precision in ("fp32", "tf32")
    )
    assert not any(tf32.is_allowed(task.program) for task in plain)
    allowed = {task.spec.hash for task in tf32_tasks if tf32.is_allowed(task.program)}
    assert len(allowed) == 3, "two convolutions and a product, but no depthwise convolution"
    assert not allowed & {task.spec.hash for task in plain}
    names = [task.spec.name for task in plain]
    assert "conv2d_add_relu" in names, "batch normalisation costs one addition"
    assert not any("divide" in name for name in names)


@lru_cache
def dense(network, arch):
    """The program of a convolution in fp16 with what is fused to it."""
    tasks = extract_tasks(prepare(network, gpu(arch), precision="fp16"), gpu(arch))
    return next(task.program for task in tasks if re.match(r"conv2d\d*_cast\d*_add", task.spec.name))


@pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")
@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def test_candidates_run_on_tensor_cores(network, arch, tmp_path, monkeypatch):
    applied = any_valid(Knobs(dense(network, arch), gpu(arch)))
    sources = []
    compile_source = compiler.compile_source
    monkeypatch.setattr(
        compiler, "compile_source", lambda source, *rest: sources.append(source) or compile_source(source, *rest)
    )
    build_library(applied.schedule.mod, gpu(arch), tmp_path / "kernel.so")
    assert "autotune::pipeline::Pipeline<autotune::pipeline::Fp16" in sources[0]
    (code,) = cubin.find((tmp_path / "kernel.so").read_bytes())
    assert code.arch == arch


def test_candidates_for_tensor_cores_survive_being_written_down(network):
    target = gpu("sm_90")
    program = dense(network, "sm_90")
    request = Request((), (), 1, None, 1)
    proposed = propose(Knobs(program, target), strategies.get("random"), samplers.make("greedy", 0.0, True), request)
    (candidate,) = proposed.candidates
    assert "TransformLayout" in {item[0] for item in candidate.trace[0]}, "the one that TVM cannot write down itself"
    read = Candidate(candidate.hash, json.loads(json.dumps(candidate.trace)), candidate.args)
    (again,) = replay([read], program, target)
    assert program_hash(again.sch.mod) == candidate.hash


def any_valid(knobs):
    rng = random.Random(1)
    for _ in range(300):
        applied = knobs.apply(tuple(rng.randrange(len(knob.values)) for knob in knobs.space.knobs))
        if applied is not None:
            return applied
    raise AssertionError("no valid schedule among 300")
