"""WMMA with elements for which TVM has no intrinsics: bf16, and float32 that is rounded to TF32.

Trials that were logged before there was a pipeline (`tensor_pipeline.py`) name these intrinsics, and are built again
when they are exported. Nothing new names them. They are TVM's own for fp16, with other elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.s_tir import TensorIntrin

_SHARED = "shared.dyn"
_SUM = "float32"
_TRANSPOSED = (("", False), ("_trans", True))


@dataclass(frozen=True)
class Operands:
    """What a WMMA instruction multiplies, 16 rows by 16 columns, with sums in float32.

    Attributes:
        name: In the names of the intrinsics.
        element: The type that programs have.
        terms: How many terms an instruction sums.
    """

    name: str
    element: str
    terms: int

    def intrinsic(self, action: str, suffix: str = "") -> str:
        """Return the name of an intrinsic, such as that of `load` with `_a`."""
        return f"wmma_{action}_16x16x{self.terms}_{self.name}{suffix}"


TF32 = Operands("tf32", "float32", 8)
BF16 = Operands("bf16", "bfloat16", 16)


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
