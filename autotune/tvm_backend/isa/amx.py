"""Intel's Advanced Matrix Extensions: products of tiles, 16 pixels by 16 channels, of 64 bytes each, at once.

The elements are bytes, which are summed in 32-bit integers, or bfloat16, summed in float32. How many tiles a product
takes at once is chosen in `intrinsics/amx_and_vector_tiles.py`.

The system saves the tiles of a process only if it asks for them, which whoever loads a library does, and the first
kernel that runs again. It ends the process with a line where it is refused: its next instruction would without one.
"""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass
from typing import ClassVar

from autotune.tvm_backend.isa.tile_text import LOOPS, at
from autotune.tvm_backend.isa.values import LANES, WORD, Elements, Feature, InstructionSet, Permission, TileProduct
from autotune.tvm_backend.isa.x86 import ARCHITECTURE

_FLAG = "amx_tile"
_ROWS = 16  # of a tile
_BYTES = 64  # of a row
_TILES = 8
_FEW_ROWS = 8  # of a tile, for which a load of weights takes longer than the products with them
_WEIGHT_COST = 2  # of loading a row of weights, in rows of pixels
_INSTRUCTIONS = {1: "tdpbusd", 2: "tdpbf16ps"}  # by the bytes of an element
_BEGIN = "_begin"
_END = "autotune_tiles_end"
_REQUEST = "i64 158, i64 4131, i64 18"  # arch_prctl, ARCH_REQ_XCOMP_PERM, the data of tiles
_REGISTERS = "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}"
_WRITE = "i64 1, i64 2"  # write, to standard error
_WRITE_REGISTERS = "={rax},{rax},{rdi},{rsi},{rdx},~{rcx},~{r11},~{memory}"
_REFUSED = (
    "autotune: the system refuses the tiles of AMX to this process, perhaps because a thread has a small alternate"
    " signal stack (sigaltstack): ask for them (arch_prctl, ARCH_REQ_XCOMP_PERM) before, or set one of 64 KiB"
)
_READY = f"""
@autotune_amx_ready = weak hidden global i32 0, align 4
@autotune_amx_refused = private constant [{len(_REFUSED) + 1} x i8] c"{_REFUSED}\\0A"
declare void @llvm.trap()
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbusd(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
define i32 @{_END}() {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
define internal void @autotune_amx_begin(ptr %configuration) alwaysinline {{
  %done = load atomic i32, ptr @autotune_amx_ready monotonic, align 4
  %first = icmp eq i32 %done, 0
  br i1 %first, label %ask, label %ready
ask:
  %error = call i64 asm sideeffect "syscall", "{_REGISTERS}"({_REQUEST})
  %granted = icmp eq i64 %error, 0
  br i1 %granted, label %remember, label %refused
refused:
  call i64 asm sideeffect "syscall", "{_WRITE_REGISTERS}"({_WRITE}, ptr @autotune_amx_refused, i64 {len(_REFUSED) + 1})
  call void @llvm.trap()
  unreachable
remember:
  store atomic i32 1, ptr @autotune_amx_ready monotonic, align 4
  br label %ready
ready:
  call void @llvm.x86.ldtilecfg(ptr %configuration)
  ret void
}}
"""


@dataclass(frozen=True)
class AmxProduct(TileProduct):
    """A kernel for tiles of AMX."""

    prefix: ClassVar[str] = "autotune_amx_"
    features: ClassVar[dict[Elements, str]] = {"integers": "amx-int8", "bfloat16": "amx-bf16"}
    rates: ClassVar[dict[Elements, float]] = {"integers": 32.0, "bfloat16": 16.0}  # 1,024 bytes for 32 of float32
    vector_rate: ClassVar[float] = 128
    declarations: ClassVar[str] = _READY
    end: ClassVar[str] = _END

    @property
    def begin(self) -> str:
        return self.name + _BEGIN

    @property
    def pixels(self) -> int:
        """Pixels of a tile: the most that divide the columns, or of one row as many as there can be."""
        dividing = max(size for size in range(1, _ROWS + 1) if self.columns % size == 0)
        return dividing if self.rows > 1 or dividing >= _FEW_ROWS else min(_ROWS, self.columns)

    @property
    def rest(self) -> int:
        """Pixels of the last tile, where it has fewer; otherwise 0."""
        return self.columns % self.pixels

    @property
    def depth(self) -> int:
        """Bytes of a row of a tile: the most that divide a row of the window."""
        return max(size for size in range(WORD, _BYTES + 1, WORD) if self.run % size == 0)

    @property
    def images(self) -> int:
        """Tiles of pixels."""
        return self.rows * -(-self.columns // self.pixels)

    @property
    def operands(self) -> int:
        """Registers for tiles of pixels: two, so that one is loaded while the other is used, and one for the rest."""
        return min(self.images - bool(self.rest), 2) + bool(self.rest)

    def fits(self) -> bool:
        return self.images * self.chunks + self.chunks + self.operands <= _TILES

    def rate(self) -> float:
        """Estimate the products per cycle: of the multiplication, or of the loads where they take longer."""
        return self.work * LANES * self.depth / max(self.work, self.loads())

    def loads(self) -> float:
        """Estimate the cycles of the loads. Weights come from farther away than pixels, which are read again."""
        return (self.rows * self.columns + _WEIGHT_COST * self.chunks * self.depth / WORD) / 2

    def code(self, from_zero: str) -> str:
        return _kernel(self, from_zero)


def _kernel(product: AmxProduct, from_zero: str) -> str:
    """LLVM's code of a kernel: load the sums, go over the window, store the sums."""
    images = product.images
    chunks = product.chunks
    pixel = product.inner * product.lanes * product.size
    instruction = _INSTRUCTIONS[product.size]
    sums = [(image, chunk) for image in range(images) for chunk in range(chunks)]
    weights = [len(sums) + chunk for chunk in range(chunks)]
    data = [len(sums) + chunks + number for number in range(product.operands)]
    zeros = [f"  call void @llvm.x86.tilezero(i8 {number})" for number in range(len(sums))]
    offsets = [(image * product.pixels * chunks + chunk) * _BYTES for image, chunk in sums]
    loads = [at(f"c{number}", "%c", offset) for number, offset in enumerate(offsets)]
    stores: list[str] = []
    for number in range(len(sums)):
        loads += [f"  call void @llvm.x86.tileloadd64(i8 {number}, ptr %c{number}, i64 {chunks * _BYTES})"]
        stores += [f"  call void @llvm.x86.tilestored64(i8 {number}, ptr %c{number}, i64 {chunks * _BYTES})"]
    body: list[str] = []
    for chunk in range(chunks):
        body += [at(f"b{chunk}", "%weights", chunk * product.high * product.run * LANES)]
        body += [f"  call void @llvm.x86.tileloadd64(i8 {weights[chunk]}, ptr %b{chunk}, i64 {_BYTES})"]
    across = images // product.rows
    for image in range(images):
        line, column = divmod(image, across)
        whole = data[:-1] if product.rest else data
        is_rest = product.rest > 0 and image == images - 1
        register = data[-1] if is_rest else whole[image % len(whole)]
        body += [f"  %line{image} = mul i64 %row, {line * product.step_y}"]
        body += [f"  %r{image} = getelementptr i8, ptr %pixels, i64 %line{image}"]
        body += [at(f"a{image}", f"%r{image}", column * product.pixels * product.step_x * pixel)]
        body += [f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr %a{image}, i64 {product.step_x * pixel})"]
        for chunk in range(chunks):
            tiles = (sums.index((image, chunk)), register, weights[chunk])
            body += [f"  call void @llvm.x86.{instruction}({', '.join(f'i8 {tile}' for tile in tiles)})"]
    geometry = {"high": product.high, "gap": product.gap, "depth": product.depth}
    steps = {"weight_step": product.depth * LANES, "steps": product.run // product.depth}
    texts = {"body": "\n".join(body), **geometry, **steps}
    ends = [at(f"c{number}", "%c", offset) for number, offset in enumerate(offsets)] + stores
    return (
        _CONFIGURATION.format(name=product.name, begin=_BEGIN, bytes=_configuration(product, sums, weights, data))
        + LOOPS.format(name=product.name, start="\n".join(loads), end="\n".join(stores), **texts)
        + LOOPS.format(name=product.name + from_zero, start="\n".join(zeros), end="\n".join(ends), **texts)
    )


_CONFIGURATION = """
@{name}_tiles = private constant [64 x i8] [{bytes}], align 64
define i32 @{name}{begin}() {{
  call void @autotune_amx_begin(ptr @{name}_tiles)
  ret i32 0
}}
"""


def _configuration(product: AmxProduct, sums: list[tuple[int, int]], weights: list[int], data: list[int]) -> str:
    """The 64 bytes that say how many rows and bytes each tile has."""
    rest = product.rest or product.pixels  # of the last tile of pixels
    sizes = {
        number: (rest if image == product.images - 1 else product.pixels, _BYTES)
        for number, (image, _) in enumerate(sums)
    }
    sizes |= {number: (product.depth // WORD, _BYTES) for number in weights}
    sizes |= {number: (rest if number == data[-1] else product.pixels, product.depth) for number in data}
    configuration = [1] + [0] * 63
    for tile, (rows, size) in sizes.items():
        configuration[16 + 2 * tile] = size
        configuration[48 + tile] = rows
    return ", ".join(f"i8 {item}" for item in configuration)


# `run.py`, which an export writes, has the source of these two functions in it.


def ask_for_tiles() -> int:
    """Ask for the tiles. The system then keeps them for all threads, and refuses stacks of signals that are too small.

    Returns:
        0, or the number of the error with which the system refuses.
    """
    system = ctypes.CDLL(None, use_errno=True)
    request = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    refused = system.syscall(*map(ctypes.c_long, request))
    return ctypes.get_errno() if refused else 0


def refusal(error: int) -> str:
    """Return why there are no tiles, and what to do. The C++ programs and `run.py` say the same.

    Args:
        error: What `ask_for_tiles` returned; empty text for 0.
    """
    if not error:
        return ""
    if error == errno.ENOSPC:
        return (
            "a thread of this process has an alternate signal stack (sigaltstack) that is too small for the tiles of"
            " AMX; load the library before that stack is set, or set one of 64 KiB"
        )
    return (
        f"the system refuses the tiles of AMX to this process ({os.strerror(error)}); allow arch_prctl and use Linux"
        " 5.16 or later, or export the model for a CPU without them"
    )


AMX = InstructionSet(
    architecture=ARCHITECTURE.name,
    features=(
        Feature("amx-tile", _FLAG, ("integers", "bfloat16")),
        Feature("amx-int8", "amx_int8", ("integers",)),
        Feature("amx-bf16", "amx_bf16", ("bfloat16",)),
    ),
    tiles=AmxProduct,
    permission=Permission(_FLAG, ask_for_tiles, refusal, "amx.h"),
    operations=2048,
)
