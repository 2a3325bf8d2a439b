"""The sums of the gates of a block of hidden units: all in registers, in floats or in 32-bit integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.intrinsics.dots import add_products
from autotune.tvm_backend.isa.values import WORD, Dot
from autotune.tvm_backend.operators.recurrent.buffers import Arguments, Rounded, States, StepPlace, number
from autotune.tvm_backend.operators.recurrent.cell import Phase, Vector
from autotune.tvm_backend.operators.recurrent.layer import RecurrentLayer
from autotune.tvm_backend.operators.recurrent.tile import Tile
from autotune.tvm_backend.types import Buffer, PrimExpr


class Sums:
    """The sums of the gates of a phase, for a tile of sequences and a block of hidden units."""

    def __init__(
        self,
        layer: RecurrentLayer,
        tile: Tile,
        arguments: Arguments,
        states: States,
        phase: Phase,
        place: StepPlace,
        block: PrimExpr,
    ) -> None:
        self._layer = layer
        self._tile = tile
        self._arguments = arguments
        self._states = states
        self._phase = phase
        self._place = place
        self._block = block
        self._size = tile.chains * tile.sequences * len(phase.gates) * tile.width
        self._buffer = T.alloc_buffer((self._size,), scope="local")

    def compute(self) -> None:
        """Set each sum to what is added to the products, and its other chains to zero, and add the products.

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
        self._add_all_products(self._layer.hidden)
        self._add_chains(self._buffer)

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

    def _add_all_products(self, count: int) -> None:
        """Add the products of so many elements of the states, or of words of them."""
        chains = self._tile.chains
        with T.serial(0, count // chains) as group:
            for chain in range(chains):
                self._add_products(chain, group * chains + chain)
        for rest in range(count - count % chains, count):
            self._add_products(0, rest)

    def _add_chains(self, buffer: Buffer) -> None:
        """Add the other chains to the first."""
        for chain, row, gate, vector in self._all():
            if chain:
                with T.vectorized(0, self._tile.lanes) as lane:
                    first = self._index(0, row, gate, vector, lane)
                    value = buffer[first] + buffer[self._index(chain, row, gate, vector, lane)]
                    T.buffer_store(buffer, value, [first])

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


class IntegerSums(Sums):
    """The same of a layer whose weights and states have 8 bits: products are added up in integers, and then scaled."""

    _rounded: Rounded

    def compute(self) -> None:
        """Add the products, and scale them to floats."""
        assert self._states.rounded is not None
        self._rounded = self._states.rounded
        self._integers = T.alloc_buffer((self._size,), "int32", scope="local")
        self._start()
        self._add_all_products(self._layer.words)
        self._add_chains(self._integers)
        self._scale()

    def _start(self) -> None:
        """Set sums to what makes the products those of differences from the zero points, of states and weights.

        The sum of (q - p) * (w - z) over N units is that of q * w - p * w, less z * (the sum of q - N * p). An
        instruction that takes an offset from each q leaves less of p * w.
        """
        direction = self._place.direction
        point = self._rounded.point[direction, 0]
        offset = self._tile.dot.offset if self._tile.dot is not None else 0
        left = point - offset if offset else point
        for chain, row, gate, vector in self._all():
            total = self._rounded.totals[direction, self._place.sequence + row] - self._layer.hidden * point
            with T.vectorized(0, self._tile.lanes) as lane:
                weights, zero = (
                    self._arguments.terms[direction, index, gate, self._unit(vector, lane)] for index in range(2)
                )
                value = tirx.const(0, "int32") if chain else -(left * weights) - total * zero
                T.buffer_store(self._integers, value, [self._index(chain, row, gate, vector, lane)])

    def _add_products(self, chain: int, source: PrimExpr) -> None:
        """Add the products of one word of the states."""
        tile = self._tile
        for row, gate, vector in itertools.product(range(tile.sequences), self._phase.gates, range(tile.vectors)):
            if tile.dot is not None:
                self._add_by_intrinsic(tile.dot, (chain, row, gate, vector), source)
                continue
            with T.vectorized(0, tile.lanes) as lane:
                target = self._index(chain, row, gate, vector, lane)
                value = self._integers[target]
                for byte in range(WORD):
                    value = value + self._product(row, gate, source, vector * tile.lanes + lane, byte)
                T.buffer_store(self._integers, value, [target])

    def _product(self, row: int, gate: int, source: PrimExpr, unit: PrimExpr, byte: int) -> PrimExpr:
        place = self._place
        state = self._rounded.values[place.direction, place.sequence + row, source * WORD + byte]
        weight = self._arguments.weights[place.direction, self._block, source, gate, unit * WORD + byte]
        return state.astype("int32") * weight.astype("int32")

    def _add_by_intrinsic(self, dot: Dot, which: tuple[int, int, int, int], source: PrimExpr) -> None:
        _, row, gate, vector = which
        weights = self._arguments.weights.vload(
            [self._place.direction, self._block, source, gate, vector * dot.lanes * WORD], f"int8x{dot.lanes * WORD}"
        )

        def load(byte: int, dtype: str) -> PrimExpr:
            index = [self._place.direction, self._place.sequence + row, source * WORD + byte]
            return self._rounded.values.vload(index, dtype)

        first = self._index(*which, 0)
        sums = self._integers.vload([first], f"int32x{dot.lanes}")
        T.buffer_store(self._integers, add_products(dot, sums, load, weights), [tirx.Ramp(first, 1, dot.lanes)])

    def _scale(self) -> None:
        """Add the sums, as floats, to the inputs."""
        direction = self._place.direction
        step = self._rounded.scale[direction, 0]
        for chain, row, gate, vector in self._all():
            if chain:
                continue
            with T.vectorized(0, self._tile.lanes) as lane:
                unit = self._unit(vector, lane)
                place = self._index(0, row, gate, vector, lane)
                scaled = self._integers[place].astype("float32") * (
                    step * self._arguments.scales[direction, gate, unit]
                )
                T.buffer_store(self._buffer, scaled + self._input(row, unit, gate), [place])
