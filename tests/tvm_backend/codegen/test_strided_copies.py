"""A pipeline of a GPU copies columns as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.kernels.build_kernel import lowering

from ...cuda_stand_in.on_cpu import image
from . import copied_sums


@pytest.mark.parametrize(("name", "sizes"), [("columns", {"4"}), ("rows", {"16"}), ("planes", {"4"})])
def test_numbers_of_a_column_are_copied_one_by_one_and_those_of_a_row_together(gpu, name, sizes):
    module = copied_sums.scheduled(name)
    with gpu, lowering(module, gpu):
        built = tvm.tirx.build(module, target=gpu, pipeline=pipeline(gpu))
    assert set(re.findall(r'"n"\((\d+)\)', built.imports[0].inspect_source())) == sizes


SCRIPT = """
import sys
from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import tvm
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.target import resolve_target, tvm_target

sys.path.insert(0, sys.argv[2])
import copied_sums

description = resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description
for name in copied_sums.SUMS:
    library = f"{sys.argv[1]}/{name}.so"
    build_library(copied_sums.scheduled(name), tvm_target(description), library)
    truth = verify.compute(copied_sums.program(name), description["host"])
    verify.Verifier(truth, tvm.cuda(0)).check(tvm.runtime.load_module(library)["main"])
    print(name)
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")
def test_the_sums_of_what_was_copied_are_right(computing_gpu, tmp_path):
    done = computing_gpu.python(SCRIPT, tmp_path, Path(__file__).parent)
    assert done.stdout.split() == list(copied_sums.SUMS), done.stderr
