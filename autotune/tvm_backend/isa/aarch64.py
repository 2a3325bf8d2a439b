"""AArch64."""

from __future__ import annotations

from autotune.tvm_backend.isa.values import Architecture, Feature, InstructionSet, Registers

ARCHITECTURE = Architecture(name="aarch64", aliases=("arm64",), elf=183, intrinsics="arm_cpu", spin_hint="yield")
NEON = InstructionSet(
    architecture=ARCHITECTURE.name,
    features=(Feature("neon", "asimd"),),
    registers=Registers(4, 32),
)
