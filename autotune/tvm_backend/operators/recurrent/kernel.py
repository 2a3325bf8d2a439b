"""The tensor program of a recurrent layer: a loop over steps, in which states stay in the cache and sums in registers.

The products of the inputs of all steps with their weights come from outside, as they make up one matrix product. What
is left for a step is to multiply the state by the recurrent weights and to compute the gates. The weights lie in the
order in which they are read: a block of some vectors of hidden units, all gates of it, one element of the state after
another. The gates of a block are computed as soon as its sums are complete, from registers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.operators.activations import over_lanes, vector
from autotune.tvm_backend.operators.element_types import LEVELS, to_byte
from autotune.tvm_backend.operators.recurrent.buffers import Arguments, States, StepPlace, bounded, number, within
from autotune.tvm_backend.operators.recurrent.cell import Phase, phases
from autotune.tvm_backend.operators.recurrent.layer import RecurrentLayer
from autotune.tvm_backend.operators.recurrent.sums import IntegerSums, Sums
from autotune.tvm_backend.operators.recurrent.tile import Tile
from autotune.tvm_backend.programs import OPAQUE
from autotune.tvm_backend.types import PrimExpr, PrimFunc

_LARGEST = float(LEVELS - 1)  # of an unsigned byte


def recurrent_kernel(layer: RecurrentLayer, tile: Tile) -> PrimFunc:
    """Write the scheduled program of a layer.

    Its arguments are float32, but for what is said to be something else. With D directions, G gates, N hidden units and
    P of them with padding, they are

    - the products of the inputs with their weights, with biases: (steps, batch, D, G, P), or (batch, steps, ...);
    - the recurrent weights: (D, P / width, N, G, width); of 8 bits, (D, P / width, N / 4 rounded up, G, width * 4);
    - scales of weights of 8 bits: (D, G, P); and, as int32, their sums and their zero points: (D, 2, G, P);
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


def back_and_forth(step: PrimExpr, block: PrimExpr, blocks: int) -> PrimExpr:
    """Return which block comes at a place of a step: from the first to the last, and at the next step back.

    So a step begins with the weights that the step before has read last. Where all of them are larger than a cache,
    these are still in it; always from the first to the last, no weights would be.
    """
    return block + step % 2 * (blocks - 1 - 2 * block)


class _Writer:
    """Writes the statements of a program to the builder that is open."""

    def __init__(self, layer: RecurrentLayer, tile: Tile) -> None:
        self._layer = layer
        self._tile = tile
        self._arguments = Arguments.declare(layer, tile)
        self._states = States.allocate(layer, tile, self._arguments)
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
            self._begin(StepPlace(direction, sequence))
            with T.serial(0, self._layer.steps) as step:
                place = self._place(direction, sequence, step)
                self._round(place)
                for phase in phases(self._layer):
                    with T.serial(0, self._blocks) as block:
                        self._block(phase, place, back_and_forth(step, block, self._blocks))
                self._put_out(place)
            self._end(StepPlace(direction, sequence))

    def _step_by_step(self) -> None:
        """Each step by all threads."""
        directions = self._layer.directions
        runs = self._tile.runs or self._blocks
        size = self._blocks // runs
        with T.serial(0, directions) as direction:
            self._begin(StepPlace(direction, 0))
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
            self._end(StepPlace(direction, 0))

    def _place(self, direction: PrimExpr, sequence: PrimExpr, step: PrimExpr) -> StepPlace:
        backwards = self._layer.steps - 1 - step
        if len(set(self._layer.reverse)) > 1:  # forward, then reverse
            return StepPlace(direction, sequence, step, step + direction * (backwards - step))
        return StepPlace(direction, sequence, step, backwards if self._layer.reverse[0] else step)

    # States

    def _begin(self, place: StepPlace) -> None:
        """Copy the first states."""

        def copy(sequence: PrimExpr, unit: PrimExpr) -> None:
            source = self._of_state(place, sequence, unit)
            h, *c = self._arguments.first
            T.buffer_store(self._states.h, h[source], [place.direction, 0, sequence, unit])
            if c:
                T.buffer_store(self._states.c, c[0][source], [place.direction, sequence, unit])

        self._for_units(place, copy)

    def _end(self, place: StepPlace) -> None:
        """Copy the last states."""

        def copy(sequence: PrimExpr, unit: PrimExpr) -> None:
            target = self._of_state(place, sequence, unit)
            h, *c = self._arguments.last
            T.buffer_store(h, self._states.h[place.direction, self._layer.steps % 2, sequence, unit], target)
            if c:
                T.buffer_store(c[0], self._states.c[place.direction, sequence, unit], target)

        self._for_units(place, copy)

    def _put_out(self, place: StepPlace) -> None:
        """Copy the state after a step to the outputs; zeros where a sequence has ended."""

        def copy(sequence: PrimExpr, unit: PrimExpr) -> None:
            value = self._states.h[place.direction, (place.step + 1) % 2, sequence, unit]
            value = within(self._states, replace(place, sequence=sequence), value, number(0.0))
            row = [sequence, place.time, place.direction]
            if not self._layer.batch_first:
                row = [place.time, place.direction, sequence]
            T.buffer_store(self._arguments.outputs, value, [*row, unit])

        self._for_units(place, copy)

    def _for_units(self, place: StepPlace, write: Callable[[PrimExpr, PrimExpr], None]) -> None:
        """Write a statement for each hidden unit of all sequences that are computed together, by vectors."""
        with T.serial(0, self._together) as row:
            self._for_units_of(lambda unit, _: write(place.sequence + row, unit))

    def _for_units_of(self, write: Callable[[PrimExpr, PrimExpr], None]) -> None:
        """Write a statement for each hidden unit and its lane, by vectors."""
        hidden = self._layer.hidden
        lanes = self._tile.lanes
        if hidden >= lanes:
            with T.serial(0, hidden // lanes) as part, T.vectorized(0, lanes) as lane:
                write(part * lanes + lane, lane)
        if hidden % lanes:
            with T.serial(0, hidden % lanes) as rest:
                write(hidden // lanes * lanes + rest, rest)

    def _of_state(self, place: StepPlace, sequence: PrimExpr, unit: PrimExpr) -> list[PrimExpr]:
        """The indices of a unit in the first and last states."""
        row = [place.direction, sequence]
        return [*(reversed(row) if self._layer.batch_first else row), unit]

    def _round(self, place: StepPlace) -> None:
        """Round the state to 8 bits as DynamicQuantizeLinear does: one scale and zero point for all sequences."""
        if self._states.rounded is None:
            return
        rounded = self._states.rounded
        direction = place.direction
        low, high = self._limits(place)
        width = (high - low) / number(_LARGEST)
        T.buffer_store(rounded.scale, tirx.Select(width > 0.0, width, number(1.0)), [direction, 0])
        scale = rounded.scale[direction, 0]
        point = tirx.round(bounded(0.0 - low / scale, 0.0, _LARGEST))
        T.buffer_store(rounded.point, point.astype("int32"), [direction, 0])
        point = rounded.point[direction, 0].astype("float32")
        with T.serial(0, self._layer.batch) as row:
            totals = vector(self._tile.lanes, "int32")

            def round_unit(unit: PrimExpr, lane: PrimExpr) -> None:
                value = self._states.h[direction, place.step % 2, row, unit] / scale
                byte = to_byte(value, point, number(0.0), number(_LARGEST))
                T.buffer_store(rounded.values, byte.astype(self._tile.data), [direction, row, unit])
                T.buffer_store(totals, totals[lane] + byte.astype("int32"), [lane])

            self._for_units_of(round_unit)
            T.buffer_store(rounded.totals, over_lanes(totals, self._tile.lanes, operator.add), [direction, row])

    def _limits(self, place: StepPlace) -> tuple[PrimExpr, PrimExpr]:
        """Write what finds the lowest and the highest element of the state, or zero. Return them."""
        extremes = (tirx.min, tirx.max)
        limits = [vector(self._tile.lanes) for _ in extremes]
        with T.serial(0, self._layer.batch) as row:

            def look(unit: PrimExpr, lane: PrimExpr) -> None:
                value = self._states.h[place.direction, place.step % 2, row, unit]
                for buffer, extreme in zip(limits, extremes, strict=True):
                    T.buffer_store(buffer, extreme(buffer[lane], value), [lane])

            self._for_units_of(look)
        low, high = (
            over_lanes(buffer, self._tile.lanes, extreme) for buffer, extreme in zip(limits, extremes, strict=True)
        )
        return low, high

    # Blocks of hidden units

    def _block(self, phase: Phase, place: StepPlace, block: PrimExpr) -> None:
        """Write what a phase does for a block, one tile of sequences after another."""
        with T.serial(0, self._together // self._tile.sequences) as tile:
            first = replace(place, sequence=place.sequence + tile * self._tile.sequences)
            kind = IntegerSums if self._layer.rounded else Sums
            sums = kind(self._layer, self._tile, self._arguments, self._states, phase, first, block)
            sums.compute()
            for units in sums.vectors():
                phase.finish(units)
