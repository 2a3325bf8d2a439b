"""What the CPU of a target has: the best instructions for products, its registers, and its features.

LLVM aborts the process when it is asked for an instruction that the CPU lacks. So a target is asked for its features
before a schedule names an intrinsic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, get_args

from tvm.target import codegen

from autotune.tvm_backend.isa.instruction_sets import SETS, architecture_of, cpu_flags
from autotune.tvm_backend.isa.values import (
    Architecture,
    ByteTable,
    Depthwise,
    Dot,
    Elements,
    Feature,
    InstructionSet,
    Registers,
    TileProduct,
)
from autotune.tvm_backend.types import Target

DOTS: tuple[Dot, ...] = tuple(dot for item in SETS for dot in item.dots)
TILES: tuple[type[TileProduct], ...] = tuple(item.tiles for item in SETS if item.tiles is not None)
_ON_GPU = Registers(1, 255)  # a thread of a GPU has so many of one element
_Kernel = TypeVar("_Kernel", Depthwise, ByteTable)


@dataclass(frozen=True)
class Instructions:
    """The instructions that may compute a product.

    Attributes:
        vector: The name of the intrinsic for vectors; "" for none.
        tiles: The kind of tiles that may compute it, too; None for none.
    """

    vector: str
    tiles: type[TileProduct] | None = None

    @property
    def dot(self) -> Dot | None:
        """The intrinsic for vectors."""
        return dot_named(self.vector)

    @property
    def words(self) -> bool:
        """Whether the intrinsic reads data as 16-bit words."""
        return self.dot is not None and self.dot.words

    @property
    def offset(self) -> int:
        """What the intrinsic takes from each element of the data."""
        return 0 if self.dot is None else self.dot.offset


def dot_named(name: str) -> Dot | None:
    """Return the intrinsic of this name; None if there is none."""
    return next((dot for dot in DOTS if dot.name == name), None)


def dot_instructions(target: Target, elements: Elements, *, narrow: bool = False) -> Instructions:
    """Return the best instructions for products that the CPU of a target has.

    Args:
        elements: What is multiplied.
        narrow: Whether all weights are integers in -64..63.
    """
    dot = best_dot(target, elements, narrow=narrow)
    return Instructions("" if dot is None else dot.name, _tiles(target, elements))


def best_dot(target: Target, elements: Elements, *, narrow: bool = False) -> Dot | None:
    """Return the best intrinsic for products that the CPU of a target has the instructions of; None if none.

    Args:
        elements: What is multiplied.
        narrow: Whether all weights are integers in -64..63.
    """
    fitting = (dot for dot in _dots(target, elements) if narrow or not dot.narrow)
    return next(fitting, None)


def rate(target: Target, elements: Elements) -> float:
    """Return how many multiply-adds of elements the CPU of a target does at most for each one of float32."""
    tiles = _tiles(target, elements)
    return max([1.0 if tiles is None else tiles.rates[elements], *(dot.rate for dot in _dots(target, elements))])


def computes_bfloat16(target: Target) -> bool:
    """Return whether the CPU of a target has instructions for products of bfloat16."""
    return rate(target, "bfloat16") > 1.0


def depthwise(target: Target) -> Depthwise | None:
    """Return the best instructions for depthwise convolutions of integers that the CPU of a target has."""
    return next(_having(target, [item.depthwise for item in sets_of(target)]), None)


def byte_table(target: Target) -> ByteTable | None:
    """Return the best instructions for tables of bytes that the CPU of a target has."""
    return next(_having(target, [item.byte_table for item in sets_of(target)]), None)


def vector_registers(target: Target) -> tuple[int, int]:
    """Return how many 32-bit elements a vector register has, and how many such registers a core has."""
    if str(target.kind) != "llvm":
        return _ON_GPU.lanes, _ON_GPU.count
    given = (item.registers for item in sets_of(target) if item.registers is not None)
    fitting = (item for item in given if not item.feature or has(target, item.feature))
    registers = next(fitting, Registers(4, 16))
    return registers.lanes, registers.count


def sets_of(target: Target) -> Iterator[InstructionSet]:
    """Yield the sets of the architecture of a target's CPU. It may lack some of them, or of their instructions."""
    if str(target.kind) == "llvm" and (architecture := architecture_of(triple_of(target))) is not None:
        yield from (item for item in SETS if item.architecture == architecture.name)


def architecture(target: Target) -> Architecture | None:
    """Return the architecture of a target's CPU; None of one that is not listed."""
    return architecture_of(triple_of(target))


def triple_of(target: Target) -> str:
    """Return the triple of a target for CPUs: its own, or that of this machine."""
    return str(target.attrs.get("mtriple") or codegen.llvm_get_system_triple())


def has(target: Target, *features: str) -> bool:
    """Return whether the CPU of a target has features, named as LLVM names them."""
    return all(codegen.llvm_cpu_has_features(feature, target) for feature in features)


def used_features(target: Target, *kernels: Elements) -> list[str]:
    """Return the features that code for the CPU of a target may use, as the system lists them.

    Args:
        kernels: Of which elements the code has kernels, beside those of float32.
    """
    own = [item for group in reversed(list(sets_of(target))) for item in group.features if not item.kernels]
    asked = [item for elements in kernels for item in _features_of(sets_of(target), elements)]
    return list(dict.fromkeys(item.reported for item in (*own, *asked) if has(target, item.llvm)))


def unnamed_features(target: Target) -> list[str]:
    """Return the features for products that this CPU has and that of a target has not, as LLVM names them.

    LLVM takes a virtual machine that hides some features for an older CPU.
    """
    flags = cpu_flags()
    asked = [item for elements in get_args(Elements) for item in _features_of(sets_of(target), elements)]
    present = dict.fromkeys(item.llvm for item in asked if item.reported in flags)
    return [name for name in present if not has(target, name)]


def _features_of(sets: Iterator[InstructionSet], elements: Elements) -> Iterator[Feature]:
    return (feature for item in sets for feature in item.features if elements in feature.kernels)


def _dots(target: Target, elements: Elements) -> Iterator[Dot]:
    dots = (dot for item in sets_of(target) for dot in item.dots)
    return (dot for dot in dots if dot.elements == elements and has(target, *dot.features))


def _having(target: Target, kernels: list[_Kernel | None]) -> Iterator[_Kernel]:
    return (item for item in kernels if item is not None and has(target, *item.features))


def _tiles(target: Target, elements: Elements) -> type[TileProduct] | None:
    """The kind of tiles of a target's CPU. A virtual machine may hide those of the CPU that it is."""
    here = not target.attrs.get("mtriple")
    for item in sets_of(target):
        name = item.tiles.features.get(elements) if item.tiles else None
        reported = next((feature.reported for feature in item.features if feature.llvm == name), "")
        hidden = here and reported not in cpu_flags()
        if name and has(target, name) and not hidden:
            return item.tiles
    return None
