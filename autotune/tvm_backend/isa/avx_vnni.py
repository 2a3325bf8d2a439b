"""AVX-VNNI: products of bytes in vectors of 32 bytes, on CPUs without AVX-512."""

from __future__ import annotations

from autotune.tvm_backend.isa.avx512 import vnni
from autotune.tvm_backend.isa.values import Dot, Feature, InstructionSet
from autotune.tvm_backend.isa.x86 import ARCHITECTURE

AVX_VNNI = InstructionSet(
    architecture=ARCHITECTURE.name,
    features=(Feature("avxvnni", "avx_vnni", ("integers",)),),
    dots=(Dot("autotune_vpdpbusd_256", 8, ("avxvnni",), 14, vnni),),  # as AVX-512 names it: LLVM encodes it for both
)
