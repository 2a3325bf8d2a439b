"""Attention as one kernel for GPUs: the program that calls `attention.cuh`.

It needs no search: a block takes 32 or 64 queries of a head and 64 keys at a time, whatever the shape.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import TensorRegion
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.cuda.multiprocessors import AMPERE, generation, max_shared_default, multiprocessors
from autotune.tvm_backend.cuda.pipeline_tiles import ATTENTION_MARK, MARK, WARP
from autotune.tvm_backend.programs import OPAQUE
from autotune.tvm_backend.types import Buffer, PrimFunc, Target

ELEMENTS = {"float16": "Fp16", "bfloat16": "Bf16"}  # as `pipeline.cuh` names them
_SIZE = 2  # bytes of an element
_TOGETHER = 8  # elements that are copied at a time
_DEPTHS = (32, 64, 128)  # elements of a row of a tile
_TILE = 64  # keys
_ROWS = 16  # queries of a warp
_WARPS = (4, 2)
_MAX_INT = 2**31
_NAME = "autotune_attention"
_CODE = """\
static __device__ __forceinline__ void {name}(
    void* out, const void* q, const void* k, const void* v, {bias}void* shared, int block) {{
  {mark}Attention<{arguments}>::run(out, q, k, v, {added}, {scale!r}f, shared, block);
}}
"""


@dataclass(frozen=True)
class RowPart:
    """Where the heads of an operand lie in the rows of a tensor (batch, rows, width): at an offset."""

    width: int
    offset: int = 0

    @property
    def is_aligned(self) -> bool:
        """Whether elements that are copied together lie together in each row."""
        return self.width % _TOGETHER == 0 and self.offset % _TOGETHER == 0


@dataclass(frozen=True)
class AttentionShape:
    """The shapes of an attention: (batch, queries, heads, size), and (batch, keys, heads, size) of keys and values.

    Attributes:
        scale: What scores are multiplied by.
        added: The shape of what is added to them, of four axes; empty where nothing is.
        parts: Of which tensors queries, keys and values are parts; empty where they are tensors of their own.
        zeros: Whether a query all of whose keys are masked has zeros as its result, and not NaN.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    scale: float
    added: tuple[int, ...] = ()
    parts: tuple[RowPart, ...] = ()
    zeros: bool = False

    def fits(self, target: Target) -> bool:
        """Return whether there is a kernel for these shapes on a target.

        There is none for a few queries: their blocks would be too few, and each go over all keys.
        """
        if target.kind.name != "cuda" or generation(target) < AMPERE:
            return False
        rows = max(self.queries, self.keys) * max(part.width for part in self._operands)
        scores = (self.batch, self.heads, self.queries, self.keys)
        return (
            self.queries >= _ROWS
            and self.size % _TOGETHER == 0
            and self.size <= _DEPTHS[-1]
            and all(part.is_aligned for part in self._operands)
            and max(rows, math.prod(self.added)) < _MAX_INT
            and all(extent in (1, whole) for extent, whole in zip(self.added, scores, strict=False))
            and self.shared_bytes(_WARPS[0]) <= max_shared_default(target)
        )

    def program(self, dtype: str, target: Target) -> PrimFunc:
        """Return the program: queries, keys, values and what is added in float32 if anything is, then the result.

        Operands are (batch, rows, width), and the result is (batch, queries, heads, size).

        Args:
            dtype: That of queries, keys, values and result, of `ELEMENTS`.
        """
        enough = (warps for warps in _WARPS if self._blocks(warps) >= multiprocessors(target).count)
        warps = next(enough, _WARPS[-1])
        builder = IRBuilder()
        with builder, T.prim_func(is_private=True, s_tir=True):
            T.func_attr({"op_pattern": OPAQUE, "tirx.is_scheduled": True, "tirx.noalias": True})
            *operands, result = self._arguments(dtype)
            with T.sblock("root"):
                T.reads()
                T.writes()
                with (
                    T.thread_binding(0, self._blocks(warps), "blockIdx.x") as block,
                    T.thread_binding(0, warps * WARP, "threadIdx.x"),
                    T.sblock("attention"),
                ):
                    T.reads(*map(_whole, operands))
                    T.writes(_whole(result))
                    shared = T.alloc_buffer((self.shared_bytes(warps),), "uint8", scope="shared.dyn")
                    pointers = [result.access_ptr("w"), *(item.access_ptr("r") for item in operands)]
                    name, code = self._code(dtype, warps)
                    T.evaluate(cuda_func_call(name, *pointers, shared.access_ptr("rw"), block, source_code=code))
        return builder.get()

    def shared_bytes(self, warps: int) -> int:
        """Return the bytes of shared memory of a block: of the queries, and of two tiles of keys and values."""
        return (warps * _ROWS + 4 * _TILE) * self._depth * _SIZE

    @property
    def _operands(self) -> tuple[RowPart, ...]:
        return self.parts or (RowPart(self.heads * self.size),) * 3

    @property
    def _depth(self) -> int:
        return next(depth for depth in _DEPTHS if self.size <= depth)

    def _blocks(self, warps: int) -> int:
        return self.batch * self.heads * math.ceil(self.queries / (warps * _ROWS))

    def _arguments(self, dtype: str) -> list[Buffer]:
        """Declare the arguments of the program that is open."""
        rows = (self.queries, self.keys, self.keys)
        kinds: dict[str, tuple[tuple[int, ...], str]] = {
            name: ((self.batch, count, part.width), dtype)
            for name, count, part in zip("qkv", rows, self._operands, strict=True)
        }
        if self.added:
            kinds["bias"] = (self.added, "float32")
        kinds["out"] = ((self.batch, self.queries, self.heads, self.size), dtype)
        return [T.match_buffer(T.arg(name, T.handle()), *kind) for name, kind in kinds.items()]

    def _code(self, dtype: str, warps: int) -> tuple[str, str]:
        """Return the name and the code of the function that computes what a block does."""
        strides = [math.prod(self.added[axis + 1 :]) * (extent > 1) for axis, extent in enumerate(self.added)]
        added = f"Added<{', '.join(map(str, strides))}>" if strides else "Nothing"
        sizes = [self.heads, self.queries, self.keys, self.size, self._depth, warps, _TILE]
        places = [f"Part<{part.width}, {part.offset}>" for part in self._operands]
        classes = [f"{MARK}{ELEMENTS[dtype]}", *(ATTENTION_MARK + name for name in (added, *places))]
        arguments = ", ".join([*classes, *map(str, sizes), str(self.zeros).lower()])
        code = _CODE.format(
            name=_NAME,
            bias="const void* bias, " if strides else "",
            mark=ATTENTION_MARK,
            arguments=arguments,
            added="{static_cast<const float*>(bias)}" if strides else "{}",
            scale=self.scale,
        )
        name = f"{_NAME}_{hashlib.sha256(code.encode()).hexdigest()[:16]}"
        return name, code.replace(_NAME, name, 1)


def _whole(tensor: Buffer) -> TensorRegion:
    return tensor[tuple(slice(0, int(extent)) for extent in tensor.shape)]
