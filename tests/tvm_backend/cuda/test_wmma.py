"""Trials on tensor cores that were logged before there was a pipeline: they are replayed, and their kernels compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.storage.formats import Candidate
from autotune.tvm_backend.cuda import cubin, tf32
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.tasks import program_hash

# In fp16, bf16, TF32, and fp16 with eight terms, each with tiles that are copied ahead.
LOGGED = [json.loads(line) for line in (Path(__file__).parents[2] / "data/trials_with_wmma.jsonl").open()]
NAMES = ("fp16", "bf16", "tf32", "eight terms")
each = pytest.mark.parametrize("logged", LOGGED, ids=NAMES)


@pytest.fixture
def program(product_of, logged):
    """The product that a trial is of, which tensor cores may compute."""
    return tf32.allow(product_of(64, 64, 64, logged["dtype"]))


def replayed(logged, program, gpu):
    (candidate,) = replay([Candidate(logged["hash"], logged["trace"], [])], program, gpu)
    return candidate.sch.mod


@each
def test_they_are_the_schedules_that_they_were(logged, program, gpu):
    assert program_hash(replayed(logged, program, gpu)) == logged["hash"]


@each
def test_they_are_not_in_the_search_space_any_more(logged, program, gpu):
    assert Knobs(program, gpu).find(logged["trace"]) is None


@pytest.mark.parametrize("logged", LOGGED[1:3], ids=NAMES[1:3])
def test_both_compilers_take_their_kernels(logged, program, gpu, tool, tmp_path):
    build_library(replayed(logged, program, gpu), gpu, tmp_path / "kernel.so")
    (code,) = cubin.find((tmp_path / "kernel.so").read_bytes())
    assert code.arch == "sm_90"
