"""What a block of threads does in a pipeline of tensor cores: its tile of results, and what it keeps for it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from autotune.tvm_backend.types import Block

PREFIX = "autotune.pipeline_"  # of the annotations of a block
MARK = "autotune::pipeline::"  # of the names in `pipeline.cuh`
ATTENTION_MARK = "autotune::attention::"  # of those in `attention.cuh`, which needs it
WARP = 32
INSTRUCTION = 32  # bytes that one instruction sums
_FRAGMENT = 16  # rows, and columns, of a warp's results are multiples of it
MAX_SUMS = 128  # registers of a thread for sums
SUM_SIZE = 4  # bytes


@dataclass(frozen=True)
class Tiles:
    """What a block of threads does, as the annotations of the block that computes a tile say it.

    Attributes:
        pieces, vector: Its columns are `pieces` times `vector`, which a thread takes at a time.
        steps: How many instructions sum the terms of a tile, one after the other.
        stages: How many tiles of the operands are in shared memory.
    """

    rows: int
    pieces: int
    vector: int
    threads: int
    steps: int
    stages: int

    @classmethod
    def read(cls, block: Block) -> Tiles | None:
        """Read the annotations of a block; None where it has none."""
        names = [item.name for item in fields(cls)]
        values = {name: block.annotations.get(PREFIX + name) for name in names}
        if any(value is None for value in values.values()):
            return None
        return cls(**{name: int(value) for name, value in values.items()})

    @property
    def columns(self) -> int:
        """Of the tile."""
        return self.pieces * self.vector

    @property
    def warps(self) -> tuple[int, int] | None:
        """How many warps share the rows and the columns, so that each loads least; None where they cannot."""
        count = self.threads // WARP
        ways = [(down, count // down) for down in range(1, count + 1) if count % down == 0]
        fitting = [
            (self.rows / down + self.columns / across, down, across)
            for down, across in ways
            if self.rows % (down * _FRAGMENT) == 0 and self.columns % (across * _FRAGMENT) == 0
        ]
        return min(fitting)[1:] if fitting else None

    def shared_bytes(self) -> int:
        """Return the bytes of shared memory of a block: of the tiles of the operands, and later of the results."""
        stage = (self.rows + self.columns) * self.steps * INSTRUCTION
        return max(self.stages * stage, self.rows * self.columns * SUM_SIZE)

    def fits(self, max_shared: int) -> bool:
        """Return whether the warps have whole fragments, and registers and shared memory suffice."""
        sums = self.rows * self.columns // self.threads
        return self.warps is not None and sums <= MAX_SUMS and self.shared_bytes() <= max_shared
