"""The intrinsics of x86-64, which tests run here."""

from __future__ import annotations

from autotune.tvm_backend.isa.available import dot_named
from autotune.tvm_backend.isa.instruction_sets import SETS
from autotune.tvm_backend.isa.values import Dot


def _named(name: str) -> Dot:
    dot = dot_named(name)
    assert dot is not None
    return dot


_ON_X86 = [item for item in SETS if item.architecture == "x86_64"]
DOTS = tuple(dot for item in _ON_X86 for dot in item.dots if dot.elements == "integers")
DPBF16PS = _named("autotune_dpbf16ps_512")
MULTIPLY_ADD = _named("autotune_bf16_multiply_add")
