"""A block that MetaSchedule tiles on many levels: its loops and buffers, and what a sketch decides about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import sym, tirx
from tvm.s_tir import Schedule, ScheduleError

from autotune.tvm_backend.types import IRModule, PlainInstruction, PrimExpr

Numbers = npt.NDArray[np.float64]

_PARTIAL_SUMS = "_rf"  # what TVM adds to the name of a block that several share


@dataclass(frozen=True)
class Einsum:
    """A block: its loops, and how the indices of its buffers depend on them.

    Attributes:
        spatial, reduction: Positions of the loops of each kind.
        extents: Of the loops, [loops].
        accesses: Of each buffer, the output last: coefficients of the loops, [dimensions of the buffer, loops].
        sources: For each input, the block of the same program that computes it; empty where it is an argument.
    """

    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    extents: Numbers
    accesses: tuple[Numbers, ...]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, program: IRModule, block: str) -> Einsum:
        """Read the block of this name in a program that is not scheduled yet."""
        schedule = Schedule(program)
        tiled = schedule.get_sblock(block)
        read = schedule.get(tiled)
        producers = [schedule.get(item) for item in schedule.get_producers(tiled)]
        variables = [item.var for item in read.iter_vars]
        spatial = [position for position, item in enumerate(read.iter_vars) if int(item.iter_type) == 0]
        reduction = [position for position in range(len(variables)) if position not in spatial]
        extents = np.array([int(item.dom.extent) for item in read.iter_vars], dtype=np.float64)
        regions = [*read.reads, *read.writes]
        accesses = tuple(
            np.array([_coefficients(dimension.min, variables) for dimension in item.region]) for item in regions
        )
        writers = {item.writes[0].source: str(item.name_hint) for item in producers}
        sources = tuple(writers.get(item.source, "") for item in read.reads)
        return cls(tuple(spatial), tuple(reduction), extents, accesses, sources)

    def share(self, loop: int, shares: int) -> Einsum:
        """Return the block of partial sums: one of its reduction loops is split, and the outer part is a result's."""
        inner = self.extents[loop] / shares
        extents = np.concatenate([[shares], self.extents])
        extents[loop + 1] = inner
        accesses = [np.hstack([access[:, [loop]] * inner, access]) for access in self.accesses]
        accesses[-1] = np.vstack([np.eye(1, len(extents)), accesses[-1]])
        spatial = (0, *(position + 1 for position in self.spatial))
        reduction = tuple(position + 1 for position in self.reduction)
        return Einsum(spatial, reduction, extents, tuple(accesses), self.sources)


def _coefficients(index: PrimExpr, variables: Sequence[PrimExpr]) -> list[float]:
    """Return the coefficient of each loop in an index.

    Where the index is no sum of loops, it is how much the first step of each loop adds: 1 for a column `pixel % width`,
    0 for a row `pixel // width`.
    """
    equation = list(sym.detect_linear_equation(index, list(variables)))
    if equation:
        return [abs(float(int(item))) for item in equation[:-1]]
    start = _value(index, dict.fromkeys(variables, 0))
    return [float(abs(_value(index, {**dict.fromkeys(variables, 0), variable: 1}) - start)) for variable in variables]


def _value(index: PrimExpr, loops: Mapping[PrimExpr, int]) -> int:
    """Return an index at one point of the loops; 0 if it depends on something else."""
    analyzer = sym.Analyzer()
    for variable, value in loops.items():
        analyzer.bind(variable, tirx.const(value, variable.ty.dtype))
    simplified = analyzer.simplify(index)
    return int(simplified) if isinstance(simplified, tirx.IntImm) else 0


@dataclass(frozen=True)
class TiledSketch:
    """What the sampling instructions of a sketch decide, by their position among these.

    Attributes:
        block: Name of the tiled block.
        structure: Its levels from outside in, such as SSRSRS (S spatial, R reduction).
        tiles: For each loop of the block, the instruction that tiles it.
        parts: For each loop of the block, how many parts its tile has.
        unroll: The instruction that limits unrolling, and the limits it chooses from.
        locations: Instructions that place the producers, in order, and the block that each of them places.
        fused: The loop at which the consumers are computed, counted from outside; -1: not in this nest.
        copies: For how many steps of a pipeline the inputs are in shared memory at the same time. GPUs only.
        split: The loop of the original block whose terms several blocks share, and how many; None if none does. The
            tiled block is then that of the partial sums.
    """

    block: str
    structure: str
    tiles: Mapping[int, int]
    parts: Mapping[int, int]
    unroll: tuple[int, tuple[int, ...]] | None
    locations: Mapping[int, str]
    fused: int
    copies: int = 1
    split: tuple[int, int] | None = None

    @classmethod
    def read(cls, instructions: Sequence[PlainInstruction]) -> TiledSketch | None:
        """Read instructions in JSON form, without postprocessing. None where no block is tiled on many levels."""
        reader = _InstructionReader()
        for kind, inputs, attributes, outputs in instructions:
            getattr(reader, str(kind), lambda *_: None)(inputs, attributes, outputs)
            reader.samples += str(kind).startswith("Sample")
        return reader.sketch() if reader.block and reader.tiles else None

    def einsum(self, program: IRModule) -> Einsum | None:
        """Return the tiled block, in a program that is not scheduled yet; None if the program has no such block."""
        try:
            einsum = Einsum.of(program, self.block if self.split is None else self.block.removesuffix(_PARTIAL_SUMS))
        except ScheduleError:
            return None
        if self.split is None:
            return einsum
        loop, shares = self.split
        return einsum.share(loop, shares) if loop in einsum.reduction and shares > 0 else None

    def tiles_all(self, einsum: Einsum) -> bool:
        """Return whether each loop of a block is tiled on the levels of its kind, of which the outermost is spatial."""
        levels = {kind: self.structure.count(kind) for kind in "SR"}
        kinds = {**dict.fromkeys(einsum.spatial, "S"), **dict.fromkeys(einsum.reduction, "R")}
        wanted = {loop: levels[kind] for loop, kind in kinds.items()}
        is_structure = self.structure.startswith("S") and sum(levels.values()) == len(self.structure)
        return is_structure and bool(einsum.spatial) and self.parts == wanted


@dataclass
class _InstructionReader:
    """Reads instructions one after the other. Its methods have the names of the instructions."""

    block: str = ""
    structure: str = ""
    samples: int = 0
    fused: int = -1
    copies: int = 1
    split: tuple[int, int] | None = None
    unroll: tuple[int, tuple[int, ...]] | None = None
    tiles: dict[int, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    locations: dict[int, str] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _blocks: dict[str, str] = field(default_factory=dict)
    _loops: dict[str, tuple[str, int]] = field(default_factory=dict)
    _splits: dict[str, tuple[str, int]] = field(default_factory=dict)
    _categories: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def sketch(self) -> TiledSketch:
        decided = (self.tiles, self.parts, self.unroll, self.locations, self.fused, self.copies, self.split)
        return TiledSketch(self.block, self.structure, *decided)

    def GetSBlock(self, _: Any, attributes: Any, outputs: Any) -> None:
        self._blocks[outputs[0]] = str(attributes[0])

    def GetLoops(self, inputs: Any, _: Any, outputs: Any) -> None:
        self._loops |= {name: (self._blocks.get(inputs[0], ""), position) for position, name in enumerate(outputs)}

    def Annotate(self, inputs: Any, attributes: Any, _: Any) -> None:
        if attributes[0] == "meta_schedule.tiling_structure":
            self.block = self._blocks.get(inputs[0], "")
            self.structure = str(inputs[1]).strip('"')
        elif attributes[0] == "meta_schedule.unroll_explicit":
            self.unroll = self._categories.get(inputs[1])
        elif attributes[0] == "software_pipeline_stage":
            self.copies = 1 + max([0, *(int(stage) for stage in inputs[1])])

    def Reorder(self, inputs: Any, *_: Any) -> None:
        self._order = list(inputs)

    def ReverseComputeAt(self, inputs: Any, *_: Any) -> None:
        if inputs[1] in self._order:
            self.fused = self._order.index(inputs[1])

    def SamplePerfectTile(self, inputs: Any, attributes: Any, _: Any) -> None:
        block, loop = self._loops.get(inputs[0], ("", 0))
        if block and block == self.block:
            self.tiles[loop] = self.samples
            self.parts[loop] = int(attributes[0])

    def Split(self, inputs: Any, _: Any, outputs: Any) -> None:
        if isinstance(inputs[1], int):
            self._splits[outputs[0]] = (inputs[0], inputs[1])

    def RFactor(self, inputs: Any, *_: Any) -> None:
        loop, shares = self._splits.get(inputs[0], ("", 0))
        if loop in self._loops:
            self.split = (self._loops[loop][1], shares)

    def SampleCategorical(self, _: Any, attributes: Any, outputs: Any) -> None:
        self._categories[outputs[0]] = (self.samples, tuple(int(value) for value in attributes[0]))

    def SampleComputeLocation(self, inputs: Any, *_: Any) -> None:
        self.locations[self.samples] = self._blocks.get(inputs[0], "")
