"""What the estimate of tensor cores (`tensor_cores.py`) needs to know of a sketch with a pipeline.

The costs are those that were fitted to the kernels with WMMA: no GPU has timed a pipeline yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.s_tir import Schedule

from autotune.strategies.space import Floats
from autotune.tvm_backend.cuda.pipeline_tiles import INSTRUCTION, MAX_SUMS, PREFIX, SUM_SIZE, WARP
from autotune.tvm_backend.cuda.products import PIECE, ROLES, Element, element_of, extents_by_role, roles_of
from autotune.tvm_backend.search.tensor_cores import Fragments, TensorNests, annotated, shares_of
from autotune.tvm_backend.search.tiled_block import Numbers
from autotune.tvm_backend.types import IRModule, PlainInstruction

_SIDE = 16  # rows, or columns, of a fragment
_SAMPLED = ("rows", "pieces", "threads", "steps", "stages")


@dataclass(frozen=True)
class ProductExtents:
    """The product that a program has: how many matrices, their rows, columns and terms, and their elements."""

    element: Element
    batch: int
    rows: int
    columns: int
    terms: int

    @classmethod
    def read(cls, program: IRModule) -> ProductExtents | None:
        """Read a program; None where tensor cores compute none or several of its blocks."""
        schedule = Schedule(program)
        blocks = [schedule.get(item) for item in schedule.get_child_blocks(schedule.get_sblock("root"))]
        products = [
            (element, extents_by_role(roles, block))
            for block in blocks
            if (element := element_of(block)) is not None and (roles := roles_of(block)) is not None
        ]
        if len(products) != 1:
            return None
        element, extents = products[0]
        return cls(element, *(math.prod(extents[role]) for role in ROLES))


@dataclass(frozen=True)
class PipelineSketch:
    """What the sampling instructions of a sketch with a pipeline decide.

    Attributes:
        sampled: By what is decided, the position of the sampling instruction and the values of its decisions.
        vector: How many columns a piece has.
        shares: How many blocks share a sum.
    """

    sampled: Mapping[str, tuple[int, tuple[int, ...]]]
    vector: int
    shares: int

    @classmethod
    def read(cls, instructions: Sequence[PlainInstruction]) -> PipelineSketch | None:
        """Read instructions in JSON form, without postprocessing; None where they have no pipeline."""
        values = {name: annotated(instructions, PREFIX + name) for name in (*_SAMPLED, "vector")}
        if not all(values.values()):
            return None
        samples = [item for item in instructions if str(item[0]).startswith("Sample")]
        places = {item[3][0]: place for place, item in enumerate(samples)}
        sampled = {name: places[values[name][0][1]] for name in _SAMPLED}
        possible = {name: (place, tuple(map(int, samples[place][2][0]))) for name, place in sampled.items()}
        return cls(possible, int(values["vector"][0][1]), shares_of(instructions))

    def nests(self, decisions: Sequence[Floats], product: ProductExtents) -> TensorNests:
        """Return the tiles of candidates.

        Args:
            decisions: What each sampling instruction decided: [n] for those of the pipeline.
        """
        rows, pieces, threads, steps, stages = (self._values(name, decisions) for name in _SAMPLED)
        columns = pieces * self.vector
        size = product.element.size
        warps = threads / WARP
        down, across = _shared_among(rows, columns, warps)
        terms = steps * INSTRUCTION // size  # of a tile
        tile = (rows + columns) * steps * INSTRUCTION
        copies = tile / PIECE / threads
        valid = (down > 0) & (rows * columns / threads <= MAX_SUMS)
        blocks = product.batch * self.shares * np.ceil(product.rows / rows) * np.ceil(product.columns / columns)
        return TensorNests(
            fragments=Fragments(_SIDE, _SIDE, INSTRUCTION // size, size),
            shares=self.shares,
            ahead=stages - 1,
            blocks=blocks,
            warps=warps,
            rows=down / _SIDE,
            columns=across / _SIDE,
            steps=np.ceil(product.terms / self.shares / terms),
            terms=steps,
            loaded=np.ones(len(rows)),
            copies=np.ceil(copies),
            idle=copies < 1,
            waits=np.zeros(len(rows), dtype=bool),
            tile=tile,
            shared=np.where(valid, np.maximum(stages * tile, rows * columns * SUM_SIZE), np.inf),
            spills=False,  # `scripts/gpu/pipeline_table.py` shows none
        )

    def _values(self, name: str, decisions: Sequence[Floats]) -> Numbers:
        place, values = self.sampled[name]
        return np.asarray(np.array(values, dtype=np.float64)[decisions[place].astype(int)])


def _shared_among(rows: Numbers, columns: Numbers, warps: Numbers) -> tuple[Numbers, Numbers]:
    """Return the rows and the columns of results of a warp: those that need the fewest loads, as `Tiles.warps` does.

    Both are zero where no division leaves whole fragments.
    """
    down = 2.0 ** np.arange(int(np.log2(warps.max())) + 1)[:, None]
    ways = np.stack([rows / down, columns * down / warps])  # [2, ways, n]
    fits = (ways >= _SIDE).all(axis=0) & (down <= warps)
    chosen = np.where(fits, ways.sum(axis=0), np.inf).argmin(axis=0)
    best = np.where(fits.any(axis=0), ways[:, chosen, np.arange(len(rows))], 0)
    return best[0], best[1]
