"""WMMA with elements for which TVM has no intrinsics: bf16, and float32 that is rounded to TF32.

TVM's rule for WMMA takes intrinsics by name. Those that are registered here are its own for fp16, with other elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm.s_tir import TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.schedule_rule import ReuseType

from autotune.tvm_backend.types import Instruction, Schedule

_SHARED = "shared.dyn"
_SUM = "float32"
_OPERANDS = ("a", "b")
_TRANSPOSED = (("", False), ("_trans", True))
# The rows of an operand in shared memory are some elements longer than a multiple of 32, so that what a warp reads at a
# time lies in different banks. A fragment begins at a multiple of 32 bytes all the same.
_BANKS = 32


@dataclass(frozen=True)
class Operands:
    """What a WMMA instruction multiplies, 16 rows by 16 columns, with sums in float32.

    Attributes:
        name: In the names of the intrinsics.
        element: The type that programs have.
        terms: How many terms an instruction sums.
        widths: How many elements a thread may copy to shared memory at a time: 4 to 16 bytes, as `cp.async` does.
        beyond: How many elements more than a multiple of 32 a row has in shared memory, by operand; `b_trans` where it
            differs from `b`.
    """

    name: str
    element: str
    terms: int
    widths: tuple[int, ...]
    beyond: Mapping[str, int]

    @property
    def mark(self) -> str:
        """What the names of the intrinsics have in common, and no other name."""
        return f"_{self.name}"

    def intrinsic(self, action: str, suffix: str = "") -> str:
        """Return the name of an intrinsic, such as that of `load` with `_a`."""
        return f"wmma_{action}_16x16x{self.terms}_{self.name}{suffix}"


TF32 = Operands("tf32", "float32", 8, (1, 2, 4), {"a": 4, "b": 8, "b_trans": 4})
BF16 = Operands("bf16", "bfloat16", 16, (2, 4, 8), {"a": 8, "b": 8})


def register() -> None:
    """Register the intrinsics. Those of TVM's for CUDA have been imported."""
    for operands in (TF32, BF16):
        _register(operands)


def _register(operands: Operands) -> None:
    from tvm.s_tir.tensor_intrin import cuda

    shape = (16, 16, operands.terms)
    intrinsics = {
        operands.intrinsic("fill"): cuda.get_wmma_fill_intrin(*shape, _SUM),
        operands.intrinsic("load", "_a"): cuda.get_wmma_load_intrin(*shape, operands.element, _SHARED, False, False),
        operands.intrinsic("store"): cuda.get_wmma_store_intrin(*shape, _SUM, _SHARED),
    }
    for suffix, transposed in _TRANSPOSED:
        load = cuda.get_wmma_load_intrin(*shape, operands.element, _SHARED, True, transposed)
        intrinsics[operands.intrinsic("load", f"_b{suffix}")] = load
        multiply = cuda.get_wmma_sync_intrin(*shape, operands.element, _SUM, transposed)
        intrinsics[operands.intrinsic("sync", suffix)] = multiply
    for name, (description, implementation) in intrinsics.items():
        TensorIntrin.register(name, description, implementation, override=True)


def rule(operands: Operands) -> ms.ScheduleRule:
    """Return MetaSchedule's rule for tensor cores with the intrinsics of some operands."""
    groups = [
        {
            "init": operands.intrinsic("fill"),
            "load_a": operands.intrinsic("load", "_a"),
            "load_b": operands.intrinsic("load", f"_b{suffix}"),
            "compute": operands.intrinsic("sync", suffix),
            "store": operands.intrinsic("store"),
        }
        for suffix, _ in _TRANSPOSED
    ]
    return ms.schedule_rule.MultiLevelTilingTensorCore(
        intrin_groups=groups,
        structure="SSSRRSRS",
        tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
        max_innermost_factor=4,
        vector_load_lens=list(operands.widths),
        reuse_read=ReuseType(req="must", levels=[4], scope=_SHARED),
        reuse_write=ReuseType(req="must", levels=[2], scope=_SHARED),
        use_software_pipeline=False,
    )


def copies_to_shared(schedule: Schedule) -> list[Instruction]:
    """Return the instructions that copy the operands of a product on tensor cores to shared memory."""
    instructions = schedule.trace.insts
    return [item for item in instructions if item.kind.name == "CacheRead" and _SHARED in map(str, item.attrs)]


def spread_over_banks(schedule: Schedule, operands: Operands) -> None:
    """Lengthen the rows of the operands in shared memory, which TVM's rule does for fp16 and int8 only."""
    suffix = "_trans" if operands.intrinsic("load", "_b_trans") in str(schedule.trace) else ""
    for item in copies_to_shared(schedule):
        operand = _OPERANDS[int(item.attrs[0])]
        beyond = operands.beyond.get(operand + suffix, operands.beyond[operand])
        schedule.storage_align(item.outputs[0], 0, -2, _BANKS, beyond)
