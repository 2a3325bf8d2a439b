"""The cells of recurrent layers: what a step makes of the sums of its gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.operators.recurrent.buffers import States, StepPlace, bounded, number, within
from autotune.tvm_backend.operators.recurrent.layer import Activation, RecurrentLayer
from autotune.tvm_backend.types import Buffer, PrimExpr


@dataclass(frozen=True)
class Vector:
    """A vector of hidden units of one sequence, within a vectorised loop: the sums of its gates can be read and set.

    Attributes:
        place: Where it is.
        indices: Where the sum of each gate is.
    """

    layer: RecurrentLayer
    states: States
    place: StepPlace
    unit: PrimExpr
    sums: Buffer
    indices: tuple[PrimExpr, ...]
    inputs: Callable[[int], PrimExpr]

    def __getitem__(self, gate: int) -> PrimExpr:
        return self.sums[self.indices[gate]]

    def __setitem__(self, gate: int, value: PrimExpr) -> None:
        T.buffer_store(self.sums, value, [self.indices[gate]])

    @property
    def h(self) -> PrimExpr:
        """The state before the step."""
        return self.states.h[self.place.direction, self.place.step % 2, self.place.sequence, self.unit]

    @property
    def c(self) -> PrimExpr:
        """The cell before the step."""
        return self.load(self.states.c)

    def load(self, buffer: Buffer) -> PrimExpr:
        return buffer[self.place.direction, self.place.sequence, self.unit]

    def store(self, buffer: Buffer, value: PrimExpr) -> None:
        T.buffer_store(buffer, value, [self.place.direction, self.place.sequence, self.unit])

    def set_h(self, value: PrimExpr) -> None:
        """Set the state after the step."""
        after = [self.place.direction, (self.place.step + 1) % 2, self.place.sequence, self.unit]
        T.buffer_store(self.states.h, self.within(value, self.h), after)

    def set_c(self, value: PrimExpr) -> None:
        """Set the cell after the step."""
        self.store(self.states.c, self.within(value, self.c))

    def within(self, value: PrimExpr, otherwise: PrimExpr) -> PrimExpr:
        """Return a value where the sequence is long enough for the step, else another."""
        return within(self.states, self.place, value, otherwise)

    def peep(self, gate: int, index: int, cell: PrimExpr) -> None:
        """Add what a gate sees of a cell, if the layer has peepholes."""
        if self.states.peepholes is not None:
            self[gate] = self[gate] + self.states.peepholes[self.place.direction, index, self.unit] * cell

    def activate(self, gate: int, function: int) -> None:
        """Apply one of the functions of the layer to a gate."""
        if self.layer.clip:
            self[gate] = bounded(self[gate], -self.layer.clip, self.layer.clip)
        first, *others = (item[function] for item in self.layer.activations)
        value = _ACTIVATIONS[first.name](self[gate], first)
        for other in others:
            if other != first:
                value = tirx.Select(self.place.direction == 0, value, _ACTIVATIONS[other.name](self[gate], other))
        self[gate] = value


@dataclass(frozen=True)
class Phase:
    """A part of a step, which needs the results of all blocks of the part before.

    Attributes:
        gates: Those that are computed.
        finish: Makes of their sums what the step hands on.
        factored: Whether `States.factor` is multiplied by weights, and not the state.
    """

    gates: tuple[int, ...]
    finish: Callable[[Vector], None]
    factored: bool = False


def phases(layer: RecurrentLayer) -> tuple[Phase, ...]:
    """Return the parts of a step of a layer."""
    match layer.kind:
        case "LSTM":
            return (Phase((0, 1, 2, 3), _lstm),)
        case "RNN":
            return (Phase((0,), _rnn),)
        case "GRU" if layer.late_reset:
            return (Phase((0, 1, 2), _gru),)
    return Phase((0, 1), _gru_gates), Phase((2,), _gru_candidate, factored=True)


def _rnn(vector: Vector) -> None:
    vector.activate(0, 0)
    vector.set_h(vector[0])


def _lstm(vector: Vector) -> None:
    """The gates are input, output, forget and cell, in this order."""
    vector.peep(0, 0, vector.c)
    vector.activate(0, 0)
    if vector.layer.coupled:
        vector[2] = number(1.0) - vector[0]
    else:
        vector.peep(2, 2, vector.c)
        vector.activate(2, 0)
    vector.activate(3, 1)
    vector[3] = vector[2] * vector.c + vector[0] * vector[3]
    vector.peep(1, 1, vector[3])
    vector.activate(1, 0)
    vector.set_c(vector[3])
    vector.activate(3, 2)
    vector.set_h(vector[1] * vector[3])


def _gru(vector: Vector) -> None:
    """The gates are update, reset and candidate. The product of the candidate is reset, with its bias."""
    vector.activate(0, 0)
    vector.activate(1, 0)
    vector[2] = vector.inputs(2) + vector[1] * vector[2]
    vector.activate(2, 1)
    vector.set_h(vector[2] + vector[0] * (vector.h - vector[2]))


def _gru_gates(vector: Vector) -> None:
    """Update and reset; the state is reset."""
    vector.activate(0, 0)
    vector.activate(1, 0)
    vector.store(vector.states.update, vector[0])
    vector.store(vector.states.factor, vector[1] * vector.h)


def _gru_candidate(vector: Vector) -> None:
    vector.activate(0, 1)
    vector.set_h(vector[0] + vector.load(vector.states.update) * (vector.h - vector[0]))


_ACTIVATIONS: dict[str, Callable[[PrimExpr, Activation], PrimExpr]] = {
    "Sigmoid": lambda x, _: tirx.sigmoid(x),
    "Tanh": lambda x, _: tirx.tanh(x),
    "Relu": lambda x, _: tirx.max(x, number(0.0)),
    "LeakyRelu": lambda x, function: tirx.Select(x < 0.0, function.alpha * x, x),
    "ThresholdedRelu": lambda x, function: tirx.Select(x > function.alpha, x, number(0.0)),
    "HardSigmoid": lambda x, function: bounded(function.alpha * x + function.beta, 0.0, 1.0),
    "Elu": lambda x, function: tirx.Select(x < 0.0, function.alpha * (tirx.exp(x) - 1.0), x),
    "ScaledTanh": lambda x, function: function.alpha * tirx.tanh(function.beta * x),
    "Affine": lambda x, function: function.alpha * x + function.beta,
    "Softsign": lambda x, _: x / (1.0 + tirx.abs(x)),
    "Softplus": lambda x, _: tirx.max(x, number(0.0)) + tirx.log1p(tirx.exp(-tirx.abs(x))),
}
