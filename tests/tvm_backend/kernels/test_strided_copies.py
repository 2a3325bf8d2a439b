"""A pipeline of a GPU copies columns as they are: on a GPU that computes on the CPU."""

from __future__ import annotations

import pytest

from ...cuda_stand_in.on_cpu import image

pytestmark = pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")

# Sums of columns, of rows, or of columns in several planes, some numbers of which are copied to shared memory while
# those before are added. The vectors of planes are found only by somebody who knows the range of each loop.
SCRIPT = """
import sys
from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import tvm
from tvm import s_tir, te
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.compile import build_library, lowering
from autotune.tvm_backend.kernels.pipeline import pipeline
from autotune.tvm_backend.target import resolve_target, tvm_target

description = resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description
target = tvm_target(description)
x = te.placeholder((8, 64, 64), name="x")
i = te.reduce_axis((0, 8), "i")
k = te.reduce_axis((0, 64), "k")
sums = {
    "columns": lambda j: te.sum(x[0, k, j], k),
    "rows": lambda j: te.sum(x[0, j, k], k),
    "planes": lambda j: te.sum(x[i, k, j], [k, i]),
}
for name, element in sums.items():
    function = te.create_prim_func([x, te.compute((64,), element, name="y")])
    program = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    schedule = s_tir.Schedule(program)
    block = schedule.get_sblock("y")
    column, term, *planes = schedule.get_loops(block)
    blocks, thread = schedule.split(column, [None, 1])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    step, _ = schedule.split(term, [None, 8 if planes else 4])
    copied = schedule.cache_read(block, 0, "shared")
    schedule.compute_at(copied, step)
    numbers = schedule.fuse(*schedule.get_loops(copied)[3:])
    schedule.vectorize(schedule.split(numbers, [None, 4])[1])
    schedule.annotate(step, "software_pipeline_stage", [0, 1])
    schedule.annotate(step, "software_pipeline_order", [0, 1])
    schedule.annotate(step, "software_pipeline_async_stages", [0])
    schedule.decompose_reduction(block, step)
    with target, lowering(schedule.mod, target):
        built = tvm.tirx.build(schedule.mod, target=target, pipeline=pipeline(target))
    build_library(schedule.mod, target, f"{sys.argv[1]}/{name}.so")
    main = tvm.runtime.load_module(f"{sys.argv[1]}/{name}.so")["main"]
    verify.Verifier(verify.compute(program, description["host"]), tvm.cuda(0)).check(main)
    sizes = {line for line in built.imports[0].inspect_source().splitlines() if '"n"(' in line}
    print(name, *sorted(line.strip()[-40:] for line in sizes))
"""


def test_numbers_of_a_column_are_copied_one_by_one_and_those_of_a_row_together(computing_gpu, tmp_path):
    done = computing_gpu.python(SCRIPT, tmp_path)
    assert done.returncode == 0, done.stderr
    columns, rows, planes = done.stdout.splitlines()
    assert columns.startswith("columns") and '"n"(4)' in columns and '"n"(16)' not in columns
    assert planes.startswith("planes") and '"n"(4)' in planes and '"n"(16)' not in planes
    assert rows.startswith("rows") and '"n"(16)' in rows
