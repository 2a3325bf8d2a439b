"""x86-64: what all of its CPUs have in common, and the features of the older ones."""

from __future__ import annotations

from autotune.tvm_backend.isa.values import Architecture, Feature, InstructionSet, Registers

ARCHITECTURE = Architecture(
    name="x86_64",
    aliases=("amd64", "x86-64"),
    elf=62,
    features_line="flags",
    large_data=0x10000000,  # LLVM names such a section `.lrodata`
    intrinsics="x86",
    spin_hint="pause",
    prefetch="prefetcht1 $0",
)
SSE = InstructionSet(
    architecture=ARCHITECTURE.name, features=(Feature("sse4.2", "sse4_2"),), registers=Registers(4, 16)
)
