"""What a report says of a library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.tvm_backend.export.writing import report_json


@pytest.mark.parametrize("kernels", [["fused_add"], ["fused_add", "integer_table"]])
def test_kernels_of_bytes_that_are_no_tasks_need_their_instructions_too(target, kernels):
    spec = SimpleNamespace(
        target={"kind": "llvm", "mcpu": "icelake-server", "num-cores": 2}, tasks=(), precision="fp32"
    )
    named = report_json.required_instructions(spec, kernels)
    assert "avx512f" in named
    assert ("avx512vbmi" in named) == ("integer_table" in kernels)
