"""What a target is known to have."""

from __future__ import annotations

import json

import pytest
from tvm.target import codegen

from autotune.errors import BadTarget
from autotune.tvm_backend.isa import available
from autotune.tvm_backend.isa.available import vector_registers
from autotune.tvm_backend.target import check_tensor_cores, instructions, resolve_target

X86 = [("nehalem", (4, 16)), ("znver3", (8, 16)), ("skylake-avx512", (16, 32))]
TARGETS = [({"kind": "llvm", "mcpu": mcpu}, registers) for mcpu, registers in X86] + [
    ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, (4, 32)),
    ({"kind": "cuda", "arch": "sm_80"}, (1, 255)),
]


@pytest.mark.parametrize(("description", "registers"), TARGETS)
def test_vector_registers_are_those_of_the_instruction_set(description, registers):
    import tvm

    assert vector_registers(tvm.target.Target(description)) == registers


@pytest.mark.parametrize(
    ("text", "asked"),
    (
        ("llvm -mcpu=znver3", {"mcpu": "znver3"}),
        ("llvm -mattr=+avx2,+fma -num-cores=3", {"mattr": ["+avx2", "+fma"], "num-cores": 3}),
    ),
)
def test_options_may_follow_the_kind(text, asked):
    description = resolve_target(text, threads=2).description
    assert {**description, **asked} == description
    assert resolve_target(json.dumps({"kind": "llvm", **asked}), threads=2).description == description


def test_a_cpu_that_llvm_takes_for_an_older_one_keeps_its_instructions(monkeypatch):
    """A virtual machine may hide a feature, so that LLVM falls back to a CPU without AMX."""
    flags = frozenset({"avx512_vnni", "amx_tile", "amx_int8"})
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "icelake-server")
    monkeypatch.setattr(available, "cpu_flags", lambda: flags)
    assert resolve_target("llvm", threads=2).description["mattr"] == ["+amx-tile", "+amx-int8"]
    assert "mattr" not in resolve_target("llvm -mcpu=znver3", threads=2).description


def test_only_integer_kernels_need_the_instructions_for_them():
    here = {"kind": "llvm", "mcpu": "icelake-server"}
    assert "avx512_vnni" in instructions(here, integers=True)
    assert "avx512_vnni" not in instructions(here, integers=False)


@pytest.mark.parametrize("text", ("llvm znver3", "llvm -mcpu", "llvm -=3"))
def test_what_is_no_option_is_refused_by_name(text):
    with pytest.raises(BadTarget, match=f"{text.split()[1]}' is not an option such as -mcpu=znver3"):
        resolve_target(text, threads=1)


def test_code_that_another_machine_would_have_to_run_is_for_boards():
    text = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -num-cores=2"
    with pytest.raises(BadTarget, match=r"cannot run code for aarch64; name boards that can .*\[devices.NAME\]"):
        resolve_target(text, threads=2)
    assert resolve_target(text, threads=2, board="box").description["mcpu"] == "cortex-a76"
    assert resolve_target("llvm -mtriple=x86_64-pc-linux-gnu", threads=2).description["num-cores"] == 2


def test_an_architecture_with_a_suffix_is_the_one_that_tvm_knows():
    resolved = resolve_target('{"kind": "cuda", "arch": "sm_90a"}', threads=1)
    assert resolved.description["arch"] == "sm_90"


@pytest.mark.parametrize("arch", ["sm_70", "", None])
@pytest.mark.parametrize(("precision", "least"), [("fp16", "sm_75"), ("tf32", "sm_80"), ("bf16", "sm_80")])
def test_a_precision_of_tensor_cores_needs_those_that_compute_in_it(arch, precision, least):
    check_tensor_cores({"kind": "cuda", "arch": least}, precision)
    with pytest.raises(BadTarget, match=f"--precision {precision} is for tensor cores, which are used from {least} on"):
        check_tensor_cores({"kind": "cuda"} if arch is None else {"kind": "cuda", "arch": arch}, precision)
