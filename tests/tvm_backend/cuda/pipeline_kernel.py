"""Run kernels with the pipeline of tensor cores on small whole numbers, and compare them with NumPy.

    python pipeline_kernel.py FOLDER KIND,DTYPE,ROWS,COLUMNS,THREADS,STEPS,STAGES...

Prints a line for each: whether all results are equal, and the class of `pipeline.cuh` that says what was multiplied.
"""

from __future__ import annotations

import re
import sys
import unittest.mock

from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import tvm  # noqa: E402
from tvm import te, tirx, topi  # noqa: E402
from tvm.s_tir import Schedule  # noqa: E402

from autotune.machine.gpus import cuda_devices  # noqa: E402
from autotune.tvm_backend.cuda import compiler, tf32  # noqa: E402
from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX  # noqa: E402
from autotune.tvm_backend.kernels.build_kernel import build_library  # noqa: E402
from autotune.tvm_backend.search.design_space import tune_context  # noqa: E402
from autotune.tvm_backend.target import resolve_target, tvm_target  # noqa: E402

ARCH = cuda_devices()[0].arch
TARGET = tvm_target(resolve_target(f'{{"kind": "cuda", "arch": "{ARCH}"}}', 1).description)
UNWRITTEN = 99


def product(dtype, rows, terms, columns):
    """A product with a bias, and what NumPy makes of it."""
    sums = sums_of(dtype)
    a = te.placeholder((rows, terms), dtype, name="a")
    b = te.placeholder((terms, columns), dtype, name="b")
    bias = te.placeholder((columns,), sums, name="bias")
    k = te.reduce_axis((0, terms), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k].astype(sums) * b[k, j].astype(sums), k), name="c")
    return [a, b, bias, topi.nn.relu(topi.add(c, bias))], lambda a, b, bias: np.maximum(a @ b + bias, 0)


def convolution(dtype, channels, window):
    """A convolution with strides of a padded image, and what NumPy makes of it."""
    x = te.placeholder((2, 9, 9, channels), dtype, name="x")
    w = te.placeholder((40, window, window, channels), dtype, name="w")
    options = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": sums_of(dtype)}

    def wanted(x, w):
        padded = np.pad(x, [(0, 0), (window // 2,) * 2, (window // 2,) * 2, (0, 0)])
        seen = np.lib.stride_tricks.sliding_window_view(padded, (window, window), (1, 2))[:, ::2, ::2]
        return np.maximum(np.einsum("nhwcij,oijc->nhwo", seen, w), 0)

    return [x, w, topi.nn.relu(topi.nn.conv2d(x, w, 2, window // 2, 1, **options))], wanted


def batched(dtype):
    """Products of matrices of their own, the second of which lies by columns."""
    sums = sums_of(dtype)
    a = te.placeholder((3, 33, 40), dtype, name="a")
    b = te.placeholder((3, 50, 40), dtype, name="b")
    k = te.reduce_axis((0, 40), "k")
    element = lambda n, i, j: te.sum(a[n, i, k].astype(sums) * b[n, j, k].astype(sums), k)  # noqa: E731
    return [a, b, te.compute((3, 33, 50), element, name="c")], lambda a, b: a @ b.transpose(0, 2, 1)


def turned(dtype):
    """A square of results that is transposed."""
    arguments, _ = product(dtype, 64, 40, 64)
    return [*arguments[:-1], topi.transpose(arguments[-1])], lambda a, b, bias: np.maximum(a @ b + bias, 0).T


def wide_indices(dtype):
    """A product of one row whose indices have 64 bits, as those of networks have."""
    sums = sums_of(dtype)
    one, terms, columns = (tirx.IntImm("int64", size) for size in (1, 128, 10))
    a = te.placeholder((one, terms), dtype, name="a")
    b = te.placeholder((terms, columns), dtype, name="b")
    bias = te.placeholder((columns,), sums, name="bias")
    k = te.reduce_axis((tirx.IntImm("int64", 0), terms), "k")
    c = te.compute((one, columns), lambda i, j: te.sum(a[i, k].astype(sums) * b[k, j].astype(sums), k), name="c")
    return [a, b, bias, topi.add(c, bias)], lambda a, b, bias: a @ b + bias


KINDS = {
    "product": lambda dtype: product(dtype, 70, 51, 45),  # no two elements of a column lie at a multiple of 4 bytes
    "wide": lambda dtype: product(dtype, 72, 96, 80),
    "convolution": lambda dtype: convolution(dtype, 24, 3),
    "colours": lambda dtype: convolution(dtype, 3, 5),
    "batched": batched,
    "turned": turned,
    "wide_indices": wide_indices,
}


def sums_of(dtype):
    return "int32" if dtype == "int8" else "float32"


def scheduled(program, tiles):
    """The program with these tiles, as a search would build it."""
    context = tune_context(program, TARGET)
    trace = next(item.trace for item in context.generate_design_space() if PREFIX in str(item.trace))
    vector = next(int(item.inputs[1]) for item in trace.insts if f"{PREFIX}vector" in map(str, item.attrs))
    rows, columns, *others = tiles
    drawn = [item for item in trace.insts if item.kind.name == "SampleCategorical"]
    for item, size in zip(drawn, (rows, columns // vector, *others), strict=False):
        trace = trace.with_decision(item, list(map(int, item.attrs[0])).index(size), False)
    schedule = Schedule(program)
    trace.apply_to_schedule(schedule, False)
    schedule.enter_postproc()
    assert all(rule.apply(schedule) for rule in context.space_generator.postprocs), "it can be launched"
    return schedule.mod


def source_of(module, library):
    """Build a library; return its CUDA C."""
    sources = []
    compile_source = compiler.compile_source

    def note(source, arch):
        sources.append(source)
        return compile_source(source, arch)

    with unittest.mock.patch.object(compiler, "compile_source", note):
        build_library(module, TARGET, library)
    return sources[0]


def main(library, kind, dtype, *tiles):
    arguments, wanted = KINDS[kind](dtype)
    program = tvm.IRModule({"main": te.create_prim_func(arguments).with_attr("global_symbol", "main")})
    program = tf32.allow(program) if dtype == "float32" else program
    source = source_of(scheduled(program, list(map(int, tiles))), library)
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-4, 5, tuple(map(int, item.shape))) for item in arguments[:-1]]
    truth = wanted(*inputs)
    types = [{"bfloat16": ml_dtypes.bfloat16}.get(str(item.dtype), str(item.dtype)) for item in arguments]
    values = [*inputs, np.full(truth.shape, UNWRITTEN)]
    tensors = [tvm.runtime.tensor(value.astype(name), tvm.cuda(0)) for value, name in zip(values, types, strict=True)]
    tvm.runtime.load_module(library)["main"](*tensors)
    multiplied = re.findall(r"pipeline::Pipeline<autotune::pipeline::(\w+)", source)
    equal = np.array_equal(tensors[-1].numpy(), truth)
    sys.stdout.write(" ".join([str(equal), *multiplied]) + "\n")


for number, words in enumerate(sys.argv[2:]):
    main(f"{sys.argv[1]}/{number}.so", *words.split(","))
