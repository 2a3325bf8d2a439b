"""What a target is known to have."""

from __future__ import annotations

import json

import pytest

from autotune.errors import BadTarget
from autotune.tvm_backend.target import check_tensor_cores, resolve_target, vector_registers

X86 = [("nehalem", (4, 16)), ("znver3", (8, 16)), ("skylake-avx512", (16, 32))]
TARGETS = [({"kind": "llvm", "mcpu": mcpu}, found) for mcpu, found in X86] + [
    ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, (4, 32)),
    ({"kind": "cuda", "arch": "sm_80"}, (1, 255)),
]


@pytest.mark.parametrize(("description", "found"), TARGETS)
def test_vector_registers_are_those_of_the_instruction_set(description, found):
    import tvm

    assert vector_registers(tvm.target.Target(description)) == found


@pytest.mark.parametrize(
    ("text", "asked"),
    (
        ("llvm -mcpu=znver3", {"mcpu": "znver3"}),
        ("llvm -mattr=+avx2,+fma -num-cores=3", {"mattr": ["+avx2", "+fma"], "num-cores": 3}),
    ),
)
def test_options_may_follow_the_kind(text, asked):
    found = resolve_target(text, threads=2).description
    assert {**found, **asked} == found
    assert resolve_target(json.dumps({"kind": "llvm", **asked}), threads=2).description == found


@pytest.mark.parametrize("text", ("llvm znver3", "llvm -mcpu", "llvm -=3"))
def test_what_is_no_option_is_refused_by_name(text):
    with pytest.raises(BadTarget, match=f"{text.split()[1]}' is no option such as -mcpu=znver3"):
        resolve_target(text, threads=1)


def test_an_architecture_with_a_suffix_is_the_one_that_tvm_knows():
    found = resolve_target('{"kind": "cuda", "arch": "sm_90a"}', threads=1)
    assert found.description["arch"] == "sm_90"


@pytest.mark.parametrize("arch", ["sm_70", "", None])
def test_fp16_needs_tensor_cores_that_tvm_uses(arch):
    check_tensor_cores({"kind": "cuda", "arch": "sm_75"})
    with pytest.raises(BadTarget, match="from sm_75 on"):
        check_tensor_cores({"kind": "cuda"} if arch is None else {"kind": "cuda", "arch": arch})
