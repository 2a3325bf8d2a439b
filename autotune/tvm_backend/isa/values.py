"""What the files of instruction sets are written in: features, instructions and tiles as values. It needs no TVM."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from autotune.tvm_backend.types import PrimExpr

if TYPE_CHECKING:
    from autotune.tvm_backend.isa.vectors import Vectors

Elements = Literal["integers", "bfloat16"]
Load = Callable[[int, str], PrimExpr]  # the elements of the data from an index on, as a vector of a type
# Adds products to a vector of sums: how, the sums, the data, the weights, and how many sums there are.
Step = Callable[["Vectors", PrimExpr, Load, PrimExpr, int], PrimExpr]
# The sums that four rows of sixteen bytes add to: how, the sums, the rows, the weights.
DepthwiseStep = Callable[["Vectors", PrimExpr, list[PrimExpr], PrimExpr], PrimExpr]
# Looks bytes up: how, four vectors that are the table of 256 bytes, the indices.
LookUp = Callable[["Vectors", list[PrimExpr], PrimExpr], PrimExpr]

WORD = 4  # bytes that an instruction for dot products multiplies and sums at once
LANES = 16  # channels that the engines keep together


@dataclass(frozen=True)
class Feature:
    """What some CPUs can do.

    Attributes:
        llvm: As LLVM calls it.
        reported: As the system lists it.
        kernels: Of which elements the kernels are that ask for it; none for one that compilers use by themselves.
    """

    llvm: str
    reported: str
    kernels: tuple[Elements, ...] = ()


@dataclass(frozen=True)
class Dot:
    """An intrinsic for c[i] += sum over k of (a[k] - offset) * b[i, k].

    Of integers, a has unsigned and b signed bytes, four of each for a sum. Of bfloat16, both have two.

    Attributes:
        name: Under which it is registered.
        lanes: Sums that it computes, i.
        features: Of the CPU, as LLVM names them.
        registers: Those that the sums and the weights of a tile may fill, in units of `lanes`.
        step: Writes it.
        elements: What it multiplies.
        narrow: Whether weights must lie in -64..63, as otherwise sums of two products would saturate.
        words: Whether it reads data as 16-bit words, and weights in the order of `channel_at`.
        rate: The multiply-adds that a CPU does with it at most for each one of float32: those of one of its multiplying
            instructions for each lane.
        offset: What it takes from each element of the data, as an instruction for two signed bytes does.
    """

    name: str
    lanes: int
    features: tuple[str, ...]
    registers: int
    step: Step
    elements: Elements = "integers"
    narrow: bool = False
    words: bool = False
    rate: float = 4.0
    offset: int = 0

    @property
    def depth(self) -> int:
        """Products that are summed at once."""
        return WORD // ELEMENT_BYTES[self.elements]

    @property
    def types(self) -> tuple[str, str, str]:
        """The types of the data, the weights and the sums."""
        if self.elements == "bfloat16":
            return "uint16", "uint16", "float32"
        return "int16" if self.words else "uint8", "int8", "int32"


ELEMENT_BYTES: dict[Elements, int] = {"integers": 1, "bfloat16": 2}


@dataclass(frozen=True)
class Depthwise:
    """An intrinsic for c[i] += sum over k of a[k, i] * b[i, k], with four rows a of sixteen unsigned bytes.

    Attributes:
        name: Under which it is registered.
        features: Of the CPU, as LLVM names them.
        registers: Those that the sums and the weights of a tile may fill.
        step: Writes it.
    """

    name: str
    features: tuple[str, ...]
    registers: int
    step: DepthwiseStep


@dataclass(frozen=True)
class ByteTable:
    """Instructions that look vectors of 64 bytes up in a table of 256.

    Attributes:
        features: Of the CPU, as LLVM names them.
        look_up: Writes them.
    """

    features: tuple[str, ...]
    look_up: LookUp


@dataclass(frozen=True)
class LlvmFunctions:
    """Functions in LLVM's language, for instructions on types that TVM lacks.

    Attributes:
        feature: Of the CPU, as LLVM names it.
        names: The functions that programs call.
        code: Their definitions.
        rounding: That of them which rounds a vector of sixteen floats to bfloat16; "" for none.
    """

    feature: str
    names: tuple[str, ...]
    code: str
    rounding: str = ""


@dataclass(frozen=True)
class Permission:
    """What a process must ask the system for before it runs some instructions.

    Attributes:
        reported: The feature that needs it, as the system lists it.
        ask: Asks; returns 0, or the number of the error with which the system refuses. Its source goes into scripts.
        refusal: Returns why it was refused, and what to do, from that number. Its source goes into scripts, too.
        header: The file beside the set's with the same in C++, which `machine.h` includes.
    """

    reported: str
    ask: Callable[[], int]
    refusal: Callable[[int], str]
    header: str


Product = TypeVar("Product", bound="TileProduct")


@dataclass(frozen=True)
class TileProduct:
    """The geometry of a kernel that computes a tile of an image from all of the reduction.

    Schedules name it, also those that are read from a log. A kind of tiles is a class below this one.

    Attributes:
        rows, columns: Pixels of the output that it computes.
        chunks: Vectors of sixteen channels that it computes.
        high, wide: Size of the window.
        inner, lanes: Chunks of the input, and their channels.
        step_y, step_x: Strides.
        gap: Dilation downwards.
        size: Bytes of an element: 1 for integers, 2 for bfloat16.
    """

    rows: int
    columns: int
    chunks: int
    high: int
    wide: int
    inner: int
    lanes: int
    step_y: int
    step_x: int
    gap: int
    size: int = 1

    prefix: ClassVar[str]  # of the names of kernels
    features: ClassVar[dict[Elements, str]]  # of the CPU, as LLVM names them
    rates: ClassVar[dict[Elements, float]]  # as `Dot.rate`
    vector_rate: ClassVar[float]  # of `Dot`s, as `rate` estimates that of tiles
    declarations: ClassVar[str]  # in LLVM's language, before the code of kernels
    end: ClassVar[str] = ""  # the function that is called after the kernels of a thread, where `begin` is before them

    @property
    def name(self) -> str:
        numbers = astuple(self) if self.size > 1 else astuple(self)[:-1]
        return self.prefix + "_".join(map(str, numbers))

    @classmethod
    def of(cls: type[Product], name: str) -> Product | None:
        """Return the geometry that a name says; None if it is no such name."""
        match = re.fullmatch(cls.prefix + r"([0-9]{1,9}(?:_[0-9]{1,9})*)", name)
        numbers = [int(item) for item in match[1].split("_")] if match else []
        most = len(fields(cls))
        whole = most - 1 <= len(numbers) <= most and min(numbers) > 0
        product = cls(*numbers) if whole else None
        return product if product and product.size in ELEMENT_BYTES.values() and product.name == name else None

    @property
    def run(self) -> int:
        """Bytes of a row of the window, which lie one after the other."""
        return self.wide * self.inner * self.lanes * self.size

    @property
    def word(self) -> int:
        """Elements that are multiplied and summed at once."""
        return WORD // self.size

    @property
    def work(self) -> int:
        """The multiplications of a step: one for each pixel and vector of channels."""
        return self.rows * self.columns * self.chunks

    @property
    def begin(self) -> str:
        """The function that a thread calls before such kernels; "" for none."""
        return ""

    def fits(self) -> bool:
        """Return whether there is such a kernel: sums and operands have room in the registers."""
        raise NotImplementedError

    def rate(self) -> float:
        """Estimate the products per cycle."""
        raise NotImplementedError

    def loads(self) -> float:
        """Estimate the cycles of the loads of a step."""
        raise NotImplementedError

    def code(self, from_zero: str) -> str:
        """Return the definitions of the kernel in LLVM's language, and of one that begins with sums of zero.

        A kernel takes pointers to the image, to the weights and to the sums, and the bytes of a row of the image.

        Args:
            from_zero: What the name of the other kernel ends in.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Registers:
    """Vector registers.

    Attributes:
        lanes: 32-bit elements of one.
        count: How many a core has.
        feature: Of the CPUs that have them, as LLVM names it; "" for all.
    """

    lanes: int
    count: int
    feature: str = ""


@dataclass(frozen=True)
class InstructionSet:
    """Instructions that some CPUs of an architecture have. Of each kind, those of preference come first.

    Attributes:
        architecture: As the triples of targets name it.
        features: By which its instructions are known.
        registers: The vector registers; None for those of another set.
        dots: For products.
        depthwise: For depthwise convolutions of integers.
        functions: Code that its instructions need.
        tiles: Kinds of kernels for tiles.
        permission: What a process must ask the system for.
        operations: On bytes that a core does in a cycle at most; a multiply-add counts as two.
    """

    architecture: str
    features: tuple[Feature, ...]
    registers: Registers | None = None
    dots: tuple[Dot, ...] = ()
    depthwise: Depthwise | None = None
    byte_table: ByteTable | None = None
    functions: LlvmFunctions | None = None
    tiles: type[TileProduct] | None = None
    permission: Permission | None = None
    operations: int = 512


@dataclass(frozen=True)
class Architecture:
    """What all CPUs of an architecture have in common.

    Attributes:
        name: As triples of targets begin.
        aliases: Other names of it.
        elf: Its number in files of ELF.
        features_line: How the line of /proc/cpuinfo begins that lists what a CPU can do.
        large_data: The flag of a section of ELF that may lie more than 2 GiB from the code; 0 for none.
        intrinsics: TVM's module with tensor intrinsics for it.
        spin_hint: The instruction of a thread that spins, so that the other thread of its core runs on.
        prefetch: The instruction, in assembly, that fetches the line of `$0` to the second cache; "" for none.
    """

    name: str
    aliases: tuple[str, ...]
    elf: int
    features_line: str
    intrinsics: str
    spin_hint: str
    prefetch: str = ""
    large_data: int = 0
