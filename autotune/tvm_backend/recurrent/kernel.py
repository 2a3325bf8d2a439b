"""The tensor program of a recurrent layer: a loop over steps, in which states stay in the cache and sums in registers.

The products of the inputs of all steps with their weights come from outside, as they make up one matrix product. What
is left for a step is to multiply the state by the recurrent weights and to compute the gates. The weights lie in the
order in which they are read: a block of some vectors of hidden units, all gates of it, one element of the state after
another. The gates of a block are computed as soon as its sums are complete, from registers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.passes.rewrite import OPAQUE
from autotune.tvm_backend.recurrent.cell import Phase, Place, States, Vector, bounded, number, phases, within
from autotune.tvm_backend.recurrent.layer import Layer
from autotune.tvm_backend.recurrent.tile import Tile
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc


def recurrent_kernel(layer: Layer, tile: Tile) -> PrimFunc:
    """Write the scheduled program of a layer.

    Its arguments are float32, but for the lengths. With D directions, G gates, N hidden units and P of them with
    padding, they are

    - the products of the inputs with their weights, with biases: (steps, batch, D, G, P), or (batch, steps, ...);
    - the recurrent weights: (D, P / width, N, G, width);
    - the first states, h and, of an LSTM, c;
    - the bias of a GRU with a late reset that is reset, too: (D, P);
    - peepholes: (D, 3, P);
    - lengths: (batch,), int32;
    - the results: outputs of all steps, and the last states.

    Those that a layer lacks are left out.
    """
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_attr({"op_pattern": OPAQUE, "tirx.is_scheduled": True, "tirx.noalias": True})
        _Writer(layer, tile).write()
    return builder.get()


@dataclass(frozen=True)
class _Arguments:
    """The buffers of a program; those that a layer lacks are None."""

    inputs: Buffer
    weights: Buffer
    first: list[Buffer]
    bias: Buffer
    peepholes: Buffer
    lengths: Buffer
    outputs: Buffer
    last: list[Buffer]

    @classmethod
    def declare(cls, layer: Layer, tile: Tile) -> _Arguments:
        """Make them the arguments of the function that is being built."""
        gates = layer.gates
        padded = layer.padded
        directions = layer.directions
        rows = (layer.batch, layer.steps) if layer.batch_first else (layer.steps, layer.batch)
        names = ("h", "c")[: layer.states]
        return cls(
            _argument("inputs", (*rows, directions, gates, padded)),
            _argument("weights", (directions, padded // tile.width, layer.hidden, gates, tile.width)),
            [_argument(f"first_{name}", layer.state_shape) for name in names],
            _argument("bias", (directions, padded)) if layer.late_reset else None,
            _argument("peepholes", (directions, 3, padded)) if layer.peepholes else None,
            _argument("lengths", (layer.batch,), "int32") if layer.lengths else None,
            _argument("outputs", layer.outputs_shape),
            [_argument(f"last_{name}", layer.state_shape) for name in names],
        )


def _argument(name: str, shape: Sequence[int], dtype: str = "float32") -> Buffer:
    return T.arg(name, T.buffer(shape, dtype))


def _states(layer: Layer, arguments: _Arguments) -> States:
    """Allocate the states of a layer."""
    directions = layer.directions
    shape = (layer.batch, layer.padded)
    early = layer.kind == "GRU" and not layer.late_reset
    return States(
        T.alloc_buffer((directions, 2, *shape)),
        T.alloc_buffer((directions, *shape)) if layer.kind == "LSTM" else None,
        T.alloc_buffer((directions, *shape)) if early or layer.rounded else None,
        T.alloc_buffer((directions, *shape)) if early else None,
        arguments.peepholes,
        arguments.lengths,
    )


def back_and_forth(step: PrimExpr, block: PrimExpr, blocks: int) -> PrimExpr:
    """Return which block comes at a place of a step: from the first to the last, and at the next step back.

    So a step begins with the weights that the step before has read last. Where all of them are larger than a cache,
    these are still in it; always from the first to the last, no weights would be.
    """
    return block + step % 2 * (blocks - 1 - 2 * block)


class _Writer:
    """Writes the statements of a program to the builder that is open."""

    def __init__(self, layer: Layer, tile: Tile) -> None:
        self._layer = layer
        self._tile = tile
        self._arguments = _Arguments.declare(layer, tile)
        self._states = _states(layer, self._arguments)
        self._blocks = layer.padded // tile.width
        self._together = layer.batch if layer.rounded or tile.threads != "sequences" else tile.sequences

    def write(self) -> None:
        """Write the whole program."""
        if self._tile.threads == "blocks":
            self._step_by_step()
        else:
            self._apart()

    def _apart(self) -> None:
        """Each direction and group of sequences from the first step to the last."""
        groups = self._layer.batch // self._together
        loop = T.parallel if self._tile.threads else T.serial
        with loop(0, self._layer.directions * groups) as piece:
            direction = piece // groups
            sequence = piece % groups * self._together
            self._begin(Place(direction, sequence))
            with T.serial(0, self._layer.steps) as step:
                place = self._place(direction, sequence, step)
                self._round(place)
                for phase in phases(self._layer):
                    with T.serial(0, self._blocks) as block:
                        self._block(phase, place, back_and_forth(step, block, self._blocks))
                self._put_out(place)
            self._end(Place(direction, sequence))

    def _step_by_step(self) -> None:
        """Each step by all threads."""
        directions = self._layer.directions
        runs = self._tile.runs or self._blocks
        size = self._blocks // runs
        with T.serial(0, directions) as direction:
            self._begin(Place(direction, 0))
        with T.serial(0, self._layer.steps) as step:
            with T.serial(0, directions) as direction:
                self._round(self._place(direction, 0, step))
            for phase in phases(self._layer):
                with T.parallel(0, directions * runs) as piece, T.serial(0, size) as inner:
                    block = piece % runs * size + back_and_forth(step, inner, size)
                    self._block(phase, self._place(piece // runs, 0, step), block)
            with T.serial(0, directions) as direction:
                self._put_out(self._place(direction, 0, step))
        with T.serial(0, directions) as direction:
            self._end(Place(direction, 0))

    def _place(self, direction: PrimExpr, sequence: PrimExpr, step: PrimExpr) -> Place:
        backwards = self._layer.steps - 1 - step
        if len(set(self._layer.reverse)) > 1:  # forward, then reverse
            return Place(direction, sequence, step, step + direction * (backwards - step))
        return Place(direction, sequence, step, backwards if self._layer.reverse[0] else step)

    # States

    def _begin(self, place: Place) -> None:
        """Copy the first states."""

        def copy(sequence: PrimExpr, unit: PrimExpr) -> None:
            source = self._of_state(place, sequence, unit)
            h, *c = self._arguments.first
            T.buffer_store(self._states.h, h[source], [place.direction, 0, sequence, unit])
            if c:
                T.buffer_store(self._states.c, c[0][source], [place.direction, sequence, unit])

        self._for_units(place, copy)

    def _end(self, place: Place) -> None:
        """Copy the last states."""

        def copy(sequence: PrimExpr, unit: PrimExpr) -> None:
            target = self._of_state(place, sequence, unit)
            h, *c = self._arguments.last
            T.buffer_store(h, self._states.h[place.direction, self._layer.steps % 2, sequence, unit], target)
            if c:
                T.buffer_store(c[0], self._states.c[place.direction, sequence, unit], target)

        self._for_units(place, copy)

    def _put_out(self, place: Place) -> None:
        """Copy the state after a step to the outputs; zeros where a sequence has ended."""

        def copy(sequence: PrimExpr, unit: PrimExpr) -> None:
            value = self._states.h[place.direction, (place.step + 1) % 2, sequence, unit]
            value = within(self._states, replace(place, sequence=sequence), value, number(0.0))
            row = [sequence, place.time, place.direction]
            if not self._layer.batch_first:
                row = [place.time, place.direction, sequence]
            T.buffer_store(self._arguments.outputs, value, [*row, unit])

        self._for_units(place, copy)

    def _for_units(self, place: Place, write: Callable[[PrimExpr, PrimExpr], None]) -> None:
        """Write a statement for each hidden unit of all sequences that are computed together, by vectors."""
        hidden = self._layer.hidden
        lanes = self._tile.lanes
        with T.serial(0, self._together) as row:
            sequence = place.sequence + row
            if hidden >= lanes:
                with T.serial(0, hidden // lanes) as vector, T.vectorized(0, lanes) as lane:
                    write(sequence, vector * lanes + lane)
            if hidden % lanes:
                with T.serial(0, hidden % lanes) as rest:
                    write(sequence, hidden // lanes * lanes + rest)

    def _of_state(self, place: Place, sequence: PrimExpr, unit: PrimExpr) -> list[PrimExpr]:
        """The indices of a unit in the first and last states."""
        row = [place.direction, sequence]
        return [*(reversed(row) if self._layer.batch_first else row), unit]

    def _round(self, place: Place) -> None:
        """Round the state to 8 bits as DynamicQuantizeLinear does: one scale and zero point for all sequences."""
        if not self._layer.rounded:
            return
        state = place.direction, place.step % 2
        limits = T.alloc_buffer((2,), scope="local")
        scale = T.alloc_buffer((2,), scope="local")  # and the zero point
        for index in range(2):
            T.buffer_store(limits, number(0.0), [index])
        with T.serial(0, self._layer.batch) as row, T.serial(0, self._layer.hidden) as unit:
            for index, extreme in enumerate((tirx.min, tirx.max)):
                T.buffer_store(limits, extreme(limits[index], self._states.h[(*state, row, unit)]), [index])
        width = (limits[1] - limits[0]) / 255.0
        T.buffer_store(scale, tirx.Select(width > 0.0, width, number(1.0)), [0])
        T.buffer_store(scale, bounded(tirx.round(0.0 - limits[0] / scale[0]), 0.0, 255.0), [1])

        def rounded(sequence: PrimExpr, unit: PrimExpr) -> None:
            value = self._states.h[(*state, sequence, unit)]
            value = bounded(tirx.round(value / scale[0]) + scale[1], 0.0, 255.0)
            T.buffer_store(self._states.factor, (value - scale[1]) * scale[0], [place.direction, sequence, unit])

        self._for_units(place, rounded)

    # Blocks of hidden units

    def _block(self, phase: Phase, place: Place, block: PrimExpr) -> None:
        """Write what a phase does for a block, one tile of sequences after another."""
        with T.serial(0, self._together // self._tile.sequences) as tile:
            first = replace(place, sequence=place.sequence + tile * self._tile.sequences)
            sums = _Sums(self._layer, self._tile, self._arguments, self._states, phase, first, block)
            sums.start()
            sums.multiply()
            for vector in sums.vectors():
                phase.finish(vector)


class _Sums:
    """The sums of the gates of a phase, for a tile of sequences and a block of hidden units: all in registers."""

    def __init__(
        self,
        layer: Layer,
        tile: Tile,
        arguments: _Arguments,
        states: States,
        phase: Phase,
        place: Place,
        block: PrimExpr,
    ) -> None:
        self._layer = layer
        self._tile = tile
        self._arguments = arguments
        self._states = states
        self._phase = phase
        self._place = place
        self._block = block
        size = tile.chains * tile.sequences * len(phase.gates) * tile.width
        self._buffer = T.alloc_buffer((size,), scope="local")

    def start(self) -> None:
        """Set each sum to what is added to the products, and its other chains to zero.

        The product of a candidate that is reset late begins with its bias; its input is added after the reset.
        """
        for chain, row, gate, vector in self._all():
            with T.vectorized(0, self._tile.lanes) as lane:
                unit = self._unit(vector, lane)
                if chain:
                    value = number(0.0)
                elif self._layer.late_reset and gate == 2:
                    value = self._arguments.bias[self._place.direction, unit]
                else:
                    value = self._input(row, unit, gate)
                T.buffer_store(self._buffer, value, [self._index(chain, row, gate, vector, lane)])

    def multiply(self) -> None:
        """Add the products of states and weights, and the chains to the first."""
        chains = self._tile.chains
        hidden = self._layer.hidden
        with T.serial(0, hidden // chains) as group:
            for chain in range(chains):
                self._add_products(chain, group * chains + chain)
        for rest in range(hidden - hidden % chains, hidden):
            self._add_products(0, rest)
        for chain, row, gate, vector in self._all():
            if chain:
                with T.vectorized(0, self._tile.lanes) as lane:
                    first = self._index(0, row, gate, vector, lane)
                    value = self._buffer[first] + self._buffer[self._index(chain, row, gate, vector, lane)]
                    T.buffer_store(self._buffer, value, [first])

    def vectors(self) -> Iterator[Vector]:
        """Yield the vectors of hidden units of each sequence, each within a vectorised loop."""
        for row in range(self._tile.sequences):
            for vector in range(self._tile.vectors):
                with T.vectorized(0, self._tile.lanes) as lane:
                    unit = self._unit(vector, lane)
                    yield Vector(
                        self._layer,
                        self._states,
                        replace(self._place, sequence=self._place.sequence + row),
                        unit,
                        self._buffer,
                        tuple(self._index(0, row, gate, vector, lane) for gate in self._phase.gates),
                        partial(self._input, row, unit),
                    )

    def _all(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield chain, sequence, gate and vector of each sum."""
        tile = self._tile
        yield from itertools.product(range(tile.chains), range(tile.sequences), self._phase.gates, range(tile.vectors))

    def _index(self, chain: int, row: int, gate: int, vector: int, lane: PrimExpr) -> PrimExpr:
        tile = self._tile
        gates = self._phase.gates
        number_of_sum = (chain * tile.sequences + row) * len(gates) + gates.index(gate)
        return (number_of_sum * tile.vectors + vector) * tile.lanes + lane

    def _unit(self, vector: int, lane: PrimExpr) -> PrimExpr:
        return self._block * self._tile.width + vector * self._tile.lanes + lane

    def _input(self, row: int, unit: PrimExpr, gate: int) -> PrimExpr:
        """The product of the input and the weights of a gate."""
        place = self._place
        rows = [place.time, place.sequence + row]
        if self._layer.batch_first:
            rows.reverse()
        return self._arguments.inputs[(*rows, place.direction, gate, unit)]

    def _add_products(self, chain: int, source: PrimExpr) -> None:
        """Add the products of one element of the states."""
        place = self._place
        tile = self._tile
        for row, gate, vector in itertools.product(range(tile.sequences), self._phase.gates, range(tile.vectors)):
            if self._phase.factored:
                factor = self._states.factor[place.direction, place.sequence + row, source]
            else:
                factor = self._states.h[place.direction, place.step % 2, place.sequence + row, source]
            with T.vectorized(0, tile.lanes) as lane:
                weight = self._arguments.weights[place.direction, self._block, source, gate, vector * tile.lanes + lane]
                target = self._index(chain, row, gate, vector, lane)
                T.buffer_store(self._buffer, self._buffer[target] + factor * weight, [target])
