"""What a target is known to have."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.target import vector_registers

X86 = [("nehalem", (4, 16)), ("znver3", (8, 16)), ("skylake-avx512", (16, 32))]
TARGETS = [({"kind": "llvm", "mcpu": mcpu}, found) for mcpu, found in X86] + [
    ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, (4, 32)),
    ({"kind": "cuda", "arch": "sm_80"}, (1, 255)),
]


@pytest.mark.parametrize(("description", "found"), TARGETS)
def test_vector_registers_are_those_of_the_instruction_set(description, found):
    import tvm

    assert vector_registers(tvm.target.Target(description)) == found
