"""AArch64: NEON, and its instructions for products of bytes (DotProd, I8MM) and of bfloat16 (BF16)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from autotune.tvm_backend.isa.multiply_add import bfloat16_dot, multiply_add, repeated_bytes
from autotune.tvm_backend.isa.tile_text import LOOPS, at
from autotune.tvm_backend.isa.values import (
    LANES,
    WORD,
    Architecture,
    Dot,
    Elements,
    Feature,
    InstructionSet,
    LlvmFunctions,
    Load,
    Registers,
    TileProduct,
)
from autotune.tvm_backend.types import PrimExpr

if TYPE_CHECKING:
    from autotune.tvm_backend.isa.vectors import Vectors

ARCHITECTURE = Architecture(
    name="aarch64",
    aliases=("arm64",),
    elf=183,
    features_line="Features",
    intrinsics="arm_cpu",
    spin_hint="yield",
)

# ---- Products of vectors

_SIGN = 128  # taken from an unsigned byte, it leaves a signed one: the same bits but for the first
_DOT = "autotune_bfdot"
_ROUND = "autotune_round_bf16"
# LLVM's intrinsics take bfloat16, and TVM has no type for it.
_BFLOAT16 = LlvmFunctions(
    "bf16",
    (_DOT, _ROUND),
    f"""
define <16 x i16> @{_ROUND}(<16 x float> %numbers) alwaysinline {{
  %a = fptrunc <16 x float> %numbers to <16 x bfloat>
  %b = bitcast <16 x bfloat> %a to <16 x i16>
  ret <16 x i16> %b
}}
declare <4 x float> @llvm.aarch64.neon.bfdot.v4f32.v8bf16(<4 x float>, <8 x bfloat>, <8 x bfloat>)
define <4 x float> @{_DOT}(<4 x float> %sums, <8 x i16> %data, <8 x i16> %weights) alwaysinline {{
  %a = bitcast <8 x i16> %data to <8 x bfloat>
  %b = bitcast <8 x i16> %weights to <8 x bfloat>
  %c = call <4 x float> @llvm.aarch64.neon.bfdot.v4f32.v8bf16(<4 x float> %sums, <8 x bfloat> %a, <8 x bfloat> %b)
  ret <4 x float> %c
}}
""",
    rounding=_ROUND,
)


def _usdot(v: Vectors, sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    name = "llvm.aarch64.neon.usdot.v4i32.v16i8"
    return v.intrinsic(f"int32x{lanes}", name, sums, repeated_bytes(v, load, lanes), weights)


def _sdot(v: Vectors, sums: PrimExpr, load: Load, weights: PrimExpr, lanes: int) -> PrimExpr:
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    data = v.bitwise_xor(repeated_bytes(v, load, lanes), v.all(-_SIGN, "int8", WORD * lanes))
    return v.intrinsic(f"int32x{lanes}", name, sums, data, weights)


# ---- Products of tiles: two pixels by two channels, of eight bytes each, at once

_DEPTH = 8  # bytes
_REGISTERS = 32
_ROW_LOADS = 8  # of weights for sixteen channels in a step
_BODY = {  # by the bytes of an element: the types of sums and of operands, and the instruction
    1: ("i32", "<16 x i8>", "llvm.aarch64.neon.usmmla.v4i32.v16i8"),
    2: ("float", "<8 x bfloat>", "llvm.aarch64.neon.bfmmla"),
}


@dataclass(frozen=True)
class MatrixProduct(TileProduct):
    """A kernel whose sums are tiles of two pixels by two channels, each in a register."""

    prefix: ClassVar[str] = "autotune_mmla_"
    features: ClassVar[dict[Elements, str]] = {"integers": "i8mm", "bfloat16": "bf16"}
    rates: ClassVar[dict[Elements, float]] = {"integers": 8.0, "bfloat16": 4.0}
    vector_rate: ClassVar[float] = 16
    declarations: ClassVar[str] = "".join(
        f"\ndeclare <4 x {sums}> @{name}(<4 x {sums}>, {operand}, {operand})" for sums, operand, name in _BODY.values()
    )

    @property
    def pixels(self) -> int:
        """Pixels of the output."""
        return self.rows * self.columns

    @property
    def pairs(self) -> int:
        """Pairs of pixels. Of an odd number the last is paired with itself."""
        return -(-self.pixels // 2)

    @property
    def multiplications(self) -> int:
        """Those of a step."""
        return self.pairs * self.chunks * LANES // 2

    def fits(self) -> bool:
        operands = self.pairs + 3  # two vectors of weights, and one of pairs of them
        return self.run % _DEPTH == 0 and self.multiplications + operands <= _REGISTERS

    def rate(self) -> float:
        """Estimate the bytes per cycle: of the multiplication, or of the loads where they take longer."""
        return self.work * LANES * _DEPTH / max(self.multiplications, self.loads())

    def loads(self) -> float:
        return self.pixels + self.chunks * _ROW_LOADS

    def code(self, from_zero: str) -> str:
        sums = _sums(self)
        places = [line for number, _, _ in sums for line in [f"  %s{number} = alloca <4 x {_BODY[self.size][0]}>"]]
        texts = {
            "body": "\n".join([*_weights(self), *_data(self), *_products(self)]),
            "high": self.high,
            "gap": self.gap,
            "depth": _DEPTH,
            "weight_step": _DEPTH * LANES,
            "steps": self.run // _DEPTH,
            "end": "\n".join(line for item in sums for line in _stored(self, *item)),
        }
        zeros = [f"  store <4 x {_BODY[self.size][0]}> zeroinitializer, ptr %s{number}" for number, _, _ in sums]
        loads = [line for item in sums for line in _loaded(self, *item)]
        return LOOPS.format(name=self.name, start="\n".join([*places, *loads]), **texts) + LOOPS.format(
            name=self.name + from_zero, start="\n".join([*places, *zeros]), **texts
        )


def _sums(product: MatrixProduct) -> list[tuple[int, int, int]]:
    """The number of each register of sums, its pair of pixels and its pair of channels."""
    channels = product.chunks * LANES // 2
    return [(pair * channels + two, pair, two) for pair in range(product.pairs) for two in range(channels)]


def _second(product: MatrixProduct, pair: int) -> int | None:
    """The second pixel of a pair; None where there is none."""
    return 2 * pair + 1 if 2 * pair + 1 < product.pixels else None


def _place(product: MatrixProduct, name: str, pixel: int, two: int) -> str:
    return at(name, "%c", (pixel * product.chunks * LANES + 2 * two) * WORD)


def _loaded(product: MatrixProduct, number: int, pair: int, two: int) -> list[str]:
    kind = _BODY[product.size][0]
    lines = []
    for half, pixel in enumerate((2 * pair, _second(product, pair))):
        given = 2 * pair if pixel is None else pixel
        lines += [_place(product, f"l{number}_{half}", given, two)]
        lines += [f"  %v{number}_{half} = load <2 x {kind}>, ptr %l{number}_{half}, align 4"]
    halves = f"<2 x {kind}> %v{number}_0, <2 x {kind}> %v{number}_1"
    lines += [f"  %v{number} = shufflevector {halves}, <4 x i32> <i32 0, i32 1, i32 2, i32 3>"]
    return [*lines, f"  store <4 x {kind}> %v{number}, ptr %s{number}"]


def _stored(product: MatrixProduct, number: int, pair: int, two: int) -> list[str]:
    kind = _BODY[product.size][0]
    lines = [f"  %e{number} = load <4 x {kind}>, ptr %s{number}"]
    for half, pixel in enumerate((2 * pair, _second(product, pair))):
        if pixel is None:
            continue
        lanes = f"<2 x i32> <i32 {2 * half}, i32 {2 * half + 1}>"
        lines += [_place(product, f"p{number}_{half}", pixel, two)]
        lines += [f"  %e{number}_{half} = shufflevector <4 x {kind}> %e{number}, <4 x {kind}> poison, {lanes}"]
        lines += [f"  store <2 x {kind}> %e{number}_{half}, ptr %p{number}_{half}, align 4"]
    return lines


def _weights(product: MatrixProduct) -> list[str]:
    """Words of sixteen channels lie together; those of two channels are what is multiplied."""
    lines = []
    for four in range(product.chunks * LANES // 4):
        chunk, inside = divmod(four, LANES // 4)
        start = chunk * product.high * product.run * LANES + inside * 4 * WORD
        for word in range(2):
            lines += [at(f"a{four}_{word}", "%weights", start + word * WORD * LANES)]
            lines += [f"  %w{four}_{word} = load <4 x i32>, ptr %a{four}_{word}, align 4"]
        for half in range(2):
            order = ", ".join(f"i32 {lane}" for lane in (2 * half, 2 * half + 4, 2 * half + 1, 2 * half + 5))
            words = f"<4 x i32> %w{four}_0, <4 x i32> %w{four}_1"
            lines += [f"  %z{2 * four + half} = shufflevector {words}, <4 x i32> <{order}>"]
            lines += [_as_operand(product, f"b{2 * four + half}", f"<4 x i32> %z{2 * four + half}")]
    return lines


def _data(product: MatrixProduct) -> list[str]:
    """Eight bytes of two pixels are what is multiplied."""
    pixel_bytes = product.inner * product.lanes * product.size
    lines = []
    for pixel in range(product.pixels):
        line, column = divmod(pixel, product.columns)
        lines += [f"  %line{pixel} = mul i64 %row, {line * product.step_y}"]
        lines += [f"  %r{pixel} = getelementptr i8, ptr %pixels, i64 %line{pixel}"]
        lines += [at(f"x{pixel}", f"%r{pixel}", column * product.step_x * pixel_bytes)]
        lines += [f"  %d{pixel} = load i64, ptr %x{pixel}, align 1"]
    for pair in range(product.pairs):
        second = _second(product, pair)
        lines += [f"  %h{pair} = insertelement <2 x i64> poison, i64 %d{2 * pair}, i32 0"]
        other = 2 * pair if second is None else second
        lines += [f"  %g{pair} = insertelement <2 x i64> %h{pair}, i64 %d{other}, i32 1"]
        lines += [_as_operand(product, f"o{pair}", f"<2 x i64> %g{pair}")]
    return lines


def _as_operand(product: MatrixProduct, name: str, value: str) -> str:
    return f"  %{name} = bitcast {value} to {_BODY[product.size][1]}"


def _products(product: MatrixProduct) -> list[str]:
    kind, operand, name = _BODY[product.size]
    lines = []
    for number, pair, two in _sums(product):
        arguments = f"<4 x {kind}> %t{number}, {operand} %o{pair}, {operand} %b{two}"
        lines += [f"  %t{number} = load <4 x {kind}>, ptr %s{number}"]
        lines += [f"  %m{number} = call <4 x {kind}> @{name}({arguments})"]
        lines += [f"  store <4 x {kind}> %m{number}, ptr %s{number}"]
    return lines


NEON = InstructionSet(
    architecture=ARCHITECTURE.name,
    features=(
        Feature("neon", "asimd"),
        Feature("dotprod", "asimddp", ("integers",)),
        Feature("i8mm", "i8mm", ("integers",)),
        Feature("bf16", "bf16", ("bfloat16",)),
    ),
    registers=Registers(4, 32),
    dots=(
        Dot("autotune_usdot_128", 4, ("i8mm",), 28, _usdot),
        Dot("autotune_sdot_128", 4, ("dotprod",), 28, _sdot, offset=_SIGN),
        Dot("autotune_bfdot_128", 4, ("bf16",), 28, partial(bfloat16_dot, _DOT), "bfloat16", rate=2.0),
        Dot("autotune_bf16_multiply_add_128", 4, ("neon",), 20, multiply_add, "bfloat16", rate=1.0),
    ),
    functions=_BFLOAT16,
    tiles=MatrixProduct,
)
