"""Attention as one kernel computes what NumPy does, in tiles that its shapes do not fill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.tvm_backend.cuda.attention_kernel import AttentionShape, RowPart
from autotune.tvm_backend.target import resolve_target, tvm_target

from ...cuda_stand_in.on_cpu import image

on_cpu = pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")

SCRIPT = Path(__file__).with_name("attention_run.py").read_text()
LARGEST_ERROR = {"float16": 2e-3, "bfloat16": 2e-2}
# Whether keys and values are parts of one tensor, and whether a query has no keys; batch, heads, queries, keys, the
# size of a head, and the shape of what is added to the scores.
QUICK = [("float16", 0, 1, 2, 3, 33, 150, 40, 2, 1, 33, 150), ("bfloat16", 1, 0, 2, 2, 70, 64, 64)]
MORE = [
    (0, 0, 1, 1, 16, 5, 8),
    (0, 0, 1, 2, 64, 129, 128, 1, 2, 64, 129),
    (1, 1, 2, 2, 200, 200, 32, 1, 1, 200, 200),
    (1, 0, 1, 3, 65, 63, 72, 1, 3, 1, 63),
    (0, 0, 1, 140, 17, 16, 64, 1, 1, 17, 1),
]


@on_cpu
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(QUICK, id="with and without a mask"),
        *(
            pytest.param([(dtype, *case) for dtype in LARGEST_ERROR], id=str(case), marks=pytest.mark.slow)
            for case in MORE
        ),
    ],
)
def test_a_kernel_computes_what_numpy_does(computing_gpu, tmp_path, cases):
    done = computing_gpu.python(SCRIPT, tmp_path, *(",".join(map(str, case)) for case in cases))
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) == len(cases), done.stderr
    assert all(error <= LARGEST_ERROR[case[0]] for error, case in zip(errors, cases, strict=True)), errors


SHAPE = AttentionShape(batch=2, heads=4, queries=32, keys=48, size=64, scale=0.125)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"size": 128}, True),
        ({"size": 136}, False),
        ({"size": 60}, False),
        ({"queries": 16}, True),
        ({"queries": 15}, False),
        ({"added": (1, 4, 1, 48)}, True),
        ({"added": (1, 2, 1, 48)}, False),
        ({"keys": 2**24}, False),
        ({"parts": (RowPart(768), RowPart(768, 256), RowPart(768, 512))}, True),
        ({"parts": (RowPart(768), RowPart(768, 260), RowPart(768, 512))}, False),
        ({"parts": (RowPart(772), RowPart(768, 256), RowPart(768, 512))}, False),
    ],
)
def test_there_are_kernels_for_some_shapes(gpu, change, fits):
    assert replace(SHAPE, **change).fits(gpu) is fits


@pytest.mark.parametrize(("target", "fits"), [("sm_75", False), ("sm_80", True), ("sm_86", True), ("", False)])
def test_there_are_kernels_for_gpus_since_ampere(target, fits):
    wanted = f'{{"kind": "cuda", "arch": "{target}"}}' if target else "llvm -mcpu=x86-64-v3"
    assert SHAPE.fits(tvm_target(resolve_target(wanted, 1).description)) is fits


def test_a_head_of_few_queries_is_shared_by_more_blocks(gpu):
    few, many = (str(replace(SHAPE, batch=batch).program("float16", gpu)) for batch in (2, 64))
    assert "T.thread_binding(64, thread" in few and "T.thread_binding(128, thread" in many
