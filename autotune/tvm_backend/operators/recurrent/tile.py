"""How much of a recurrent layer is computed at a time, and on which threads: chosen without trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.tvm_backend.isa.values import Dot
from autotune.tvm_backend.operators.recurrent.layer import RecurrentLayer

Threads = Literal["", "sequences", "blocks"]


@dataclass(frozen=True)
class Tile:
    """What is computed at a time.

    Attributes:
        lanes: Elements of a vector.
        vectors: Vectors of hidden units in a block; `lanes * vectors` divides the padded hidden size.
        sequences: How many of them share a vector of weights in a register; it divides the batch.
        chains: In how many sums a product is computed, which are added up at its end.
        threads: What different threads compute: nothing; directions and tiles of sequences from the first step to the
            last; or blocks of hidden units, with a barrier after each step.
        runs: Into how many runs of blocks a step is divided, of which a thread computes one or more; it divides the
            blocks. 0 for one block each.
        dot: The intrinsic for products of 8 bits; None to compute them one by one.
    """

    lanes: int
    vectors: int
    sequences: int
    chains: int
    threads: Threads
    runs: int = 0
    dot: Dot | None = None

    @property
    def data(self) -> str:
        """The type of the data in products of 8 bits."""
        return "int16" if self.dot is not None and self.dot.words else "uint8"

    @property
    def width(self) -> int:
        """Hidden units in a block."""
        return self.lanes * self.vectors


PLAIN = Tile(1, 1, 1, 1, "")

_FEW_SUMS = 8  # to hide the latency of a multiply-add on two units
_PARALLEL_FROM = 30_000  # products of the whole layer
_BLOCKS_FROM = 100_000  # products of a step; it has a barrier
_MAX_SEQUENCES = 8


def tile_for(layer: RecurrentLayer, registers: tuple[int, int], cores: int = 1, dot: Dot | None = None) -> Tile:
    """Choose the tile of a layer without trials.

    Args:
        registers: Lanes of a vector register, and how many of them a core has.
        cores: How many threads there are.
        dot: The intrinsic for products of 8 bits, if the layer has them and the target has one.
    """
    lanes, count = (dot.lanes, registers[1]) if dot else registers
    most = count * 3 // 4
    fitting = [
        (vectors, sequences)
        for vectors in (1, 2, 4)
        for sequences in range(1, _MAX_SEQUENCES + 1)
        if layer.padded % (vectors * lanes) == 0 and layer.batch % sequences == 0
        if (vectors, sequences) == (1, 1) or vectors * sequences * layer.gates <= most
    ]
    vectors, sequences = max(fitting, key=lambda tile: _products_a_load(tile[0] * layer.gates, tile[1]))
    sums = sequences * vectors * layer.gates
    chains = 2 if sums < _FEW_SUMS and sums * 2 <= most else 1
    blocks = layer.padded // (lanes * vectors)
    return Tile(lanes, vectors, sequences, chains, _threads(layer, sequences), _runs(blocks, cores), dot)


def _products_a_load(weights: int, states: int) -> float:
    """How many vectors of products there are for each vector that is loaded: each state meets each weight."""
    return weights * states / (weights + states)


def _threads(layer: RecurrentLayer, sequences: int) -> Threads:
    if layer.products_a_step * layer.steps * layer.directions < _PARALLEL_FROM:
        return ""
    apart = layer.directions * (1 if layer.rounded else layer.batch // sequences)
    if apart > 1:
        return "sequences"
    return "blocks" if layer.products_a_step >= _BLOCKS_FROM else ""


def _runs(blocks: int, cores: int) -> int:
    """Into how many runs blocks are divided, so that no thread has more to do than if it took one after another."""
    share = -(-blocks // cores)
    return blocks // share if blocks % share == 0 else blocks
