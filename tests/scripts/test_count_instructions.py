"""Which instructions of a GPU are in the kernels of schedules."""

from __future__ import annotations

import pytest

from autotune.errors import MachineProblem
from autotune.tvm_backend.cuda import compiler
from autotune.tvm_backend.load import load_for_tuning


@pytest.fixture
def script(load_script):
    load_for_tuning("cuda", ())
    try:
        compiler.find_compiler()
    except MachineProblem as problem:
        pytest.skip(str(problem))
    return load_script("count_instructions")


@pytest.mark.slow
def test_tensor_cores_multiply_in_sixteen_terms_and_load_matrices_whole(script):
    try:
        disassembler = script.find_disassembler()
    except SystemExit as end:
        pytest.skip(str(end))
    done = script.count("few_rows_fp16", 2, disassembler)
    assert (done.compiled, done.refusals) == (2, [])
    assert done.having["HMMA.16816"] == done.having["LDSM"] == 2


def test_what_a_compiler_refuses_is_counted(script, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no matching function")

    monkeypatch.setattr(script, "build", refuse)
    done = script.count("few_rows_fp16", 2, "nvdisasm")
    assert (done.compiled, done.refusals) == (0, ["no matching function"] * 2)
