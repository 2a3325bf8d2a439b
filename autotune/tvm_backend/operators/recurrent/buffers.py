"""The buffers of a recurrent kernel: its arguments, the states that steps hand to each other, and places in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.isa.values import WORD
from autotune.tvm_backend.operators.recurrent.layer import RecurrentLayer
from autotune.tvm_backend.operators.recurrent.tile import Tile
from autotune.tvm_backend.types import Buffer, PrimExpr

_CACHE_LINE = 16  # numbers: those of directions, which different threads write, lie apart


def number(value: float) -> PrimExpr:
    """Return a float32 constant."""
    return tirx.const(value, "float32")


def bounded(value: PrimExpr, low: float, high: float) -> PrimExpr:
    """Return a value, not below `low` nor above `high`."""
    return tirx.min(tirx.max(value, number(low)), number(high))


@dataclass(frozen=True)
class Arguments:
    """The buffers of a program, as `recurrent_kernel` describes them; those that a layer lacks are None."""

    inputs: Buffer
    weights: Buffer
    scales: Buffer
    terms: Buffer
    first: list[Buffer]
    bias: Buffer
    peepholes: Buffer
    lengths: Buffer
    outputs: Buffer
    last: list[Buffer]

    @classmethod
    def declare(cls, layer: RecurrentLayer, tile: Tile) -> Arguments:
        """Make them the arguments of the function that is being built."""
        gates = layer.gates
        padded = layer.padded
        directions = layer.directions
        rows = (layer.batch, layer.steps) if layer.batch_first else (layer.steps, layer.batch)
        names = ("h", "c")[: layer.states]
        blocks = (directions, padded // tile.width)
        weights = (*blocks, layer.hidden, gates, tile.width)
        if layer.rounded:
            weights = (*blocks, layer.words, gates, tile.width * WORD)
        return cls(
            _argument("inputs", (*rows, directions, gates, padded)),
            _argument("weights", weights, "int8" if layer.rounded else "float32"),
            _argument("scales", (directions, gates, padded)) if layer.rounded else None,
            _argument("terms", (directions, 2, gates, padded), "int32") if layer.rounded else None,
            [_argument(f"first_{name}", layer.state_shape) for name in names],
            _argument("bias", (directions, padded)) if layer.late_reset else None,
            _argument("peepholes", (directions, 3, padded)) if layer.peepholes else None,
            _argument("lengths", (layer.batch,), "int32") if layer.lengths else None,
            _argument("outputs", layer.outputs_shape),
            [_argument(f"last_{name}", layer.state_shape) for name in names],
        )


def _argument(name: str, shape: Sequence[int], dtype: str = "float32") -> Buffer:
    return T.arg(name, T.buffer(shape, dtype))


@dataclass(frozen=True)
class Rounded:
    """The state before a step in 8 bits, for each direction.

    Attributes:
        values: Of each sequence and hidden unit: unsigned bytes, or what holds them.
        scale: What a unit of them is, at 0 of each row.
        point: What stands for zero, at 0 of each row.
        totals: The sum of the values of each sequence.
    """

    values: Buffer
    scale: Buffer
    point: Buffer
    totals: Buffer

    @classmethod
    def allocate(cls, layer: RecurrentLayer, dtype: str) -> Rounded:
        """Allocate them in the function that is being built."""
        directions = layer.directions
        return cls(
            T.alloc_buffer((directions, layer.batch, layer.padded), dtype),
            T.alloc_buffer((directions, _CACHE_LINE)),
            T.alloc_buffer((directions, _CACHE_LINE), "int32"),
            T.alloc_buffer((directions, layer.batch), "int32"),
        )


@dataclass(frozen=True)
class States:
    """What steps hand to each other, for each direction, sequence and hidden unit. What a layer lacks is None.

    Attributes:
        h: The state before a step and after it, by turns.
        c: The cells of an LSTM.
        factor: What is multiplied by recurrent weights, where that is not the state itself.
        update: The update gate of a GRU, where its candidate needs a second product.
        rounded: What is multiplied by recurrent weights of 8 bits.
        peepholes: The weights of cells in an LSTM's gates.
        lengths: How many steps each sequence has, where it has a length of its own.
    """

    h: Buffer
    c: Buffer
    factor: Buffer
    update: Buffer
    rounded: Rounded | None
    peepholes: Buffer
    lengths: Buffer

    @classmethod
    def allocate(cls, layer: RecurrentLayer, tile: Tile, arguments: Arguments) -> States:
        """Allocate them in the function that is being built."""
        shape = (layer.directions, layer.batch, layer.padded)
        early = layer.kind == "GRU" and not layer.late_reset
        return cls(
            T.alloc_buffer((layer.directions, 2, *shape[1:])),
            T.alloc_buffer(shape) if layer.kind == "LSTM" else None,
            T.alloc_buffer(shape) if early else None,
            T.alloc_buffer(shape) if early else None,
            Rounded.allocate(layer, tile.data) if layer.rounded else None,
            arguments.peepholes,
            arguments.lengths,
        )


@dataclass(frozen=True)
class StepPlace:
    """A step of a direction for one sequence or more, of which `sequence` is the first.

    `time` is the row of the inputs and outputs that the step takes.
    """

    direction: PrimExpr
    sequence: PrimExpr
    step: PrimExpr = 0
    time: PrimExpr = 0


def within(states: States, place: StepPlace, value: PrimExpr, otherwise: PrimExpr) -> PrimExpr:
    """Return a value where a sequence is long enough for a step, else another."""
    if states.lengths is None:
        return value
    return tirx.Select(place.time < states.lengths[place.sequence], value, otherwise)
