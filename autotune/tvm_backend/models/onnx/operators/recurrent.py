"""LSTM, GRU and RNN, unrolled: one matrix product for all inputs, then one step after another.

The formulas, the order of the gates and what is left out by default are those of the ONNX operator specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.operators.recurrent.layer import ALPHA, BETA, GATES, Activation, Kind, activations
from autotune.tvm_backend.types import NodeProto

State = tuple[str, ...]
_MAX_STEPS = 1024


@dataclass(frozen=True)
class _Layer:
    """A recurrent operator. `given` are its inputs by position, empty where it has none.

    If it is `rounded`, what is multiplied by weights is rounded to 8 bits before.
    """

    nodes: Nodes
    kind: Kind
    given: tuple[str, ...]
    attributes: dict[str, Any]
    steps: int
    batch: int
    hidden: int
    rounded: bool

    def input(self, index: int) -> str:
        return self.given[index] if index < len(self.given) else ""

    def factor(self, x: str) -> str:
        """A value as it enters a product with weights."""
        if not self.rounded:
            return x
        whole, scale, zero = self.nodes.ops("DynamicQuantizeLinear", 3, x)
        centred = self.nodes.op("Sub", self.nodes.cast(whole, 1), self.nodes.cast(zero, 1))
        return self.nodes.op("Mul", centred, scale)

    def of(self, index: int, direction: int, *shape: int) -> str:
        """One direction's part of an input."""
        return self.nodes.reshape(self.nodes.slice(self.input(index), 0, direction, direction + 1), shape)


def recurrent(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write an LSTM, GRU or RNN of known length; returns the names of its outputs.

    Raises:
        ValueError: The shape of its input is not known, or it has more steps than can be unrolled.
    """
    return _unrolled(nodes, node.op_type, tuple(node.input), attributes_of(node), nodes.shape(node.input[2])[-1], False)


def dynamic_lstm(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write ONNX Runtime's LSTM on 8-bit weights, whose inputs and states are rounded to 8 bits at each product.

    Its weights are [directions, features, gates], and after an LSTM's inputs come their scales and zero points.

    Raises:
        ValueError: As for `recurrent`.
    """
    given = list(node.input)
    attributes = attributes_of(node)
    for index, scale in ((1, 8), (2, 10)):
        directions = nodes.shape(given[index])[0]
        factor, zero = (nodes.reshape(given[number], (directions, 1, -1)) for number in (scale, scale + 1))
        wide = nodes.op("Sub", nodes.cast(given[index], 1), nodes.cast(zero, 1))
        given[index] = nodes.op("Transpose", nodes.op("Mul", wide, factor), perm=[0, 2, 1])
    return _unrolled(nodes, "LSTM", tuple(given[:8]), attributes, int(attributes["hidden_size"]), True)


def _unrolled(
    nodes: Nodes, kind: Kind, given: tuple[str, ...], attributes: dict[str, Any], hidden: int, rounded: bool
) -> list[str]:
    shape = nodes.shape(given[0])
    steps, batch = (shape[1], shape[0]) if attributes.get("layout") else (shape[0], shape[1])
    if steps > _MAX_STEPS:
        raise ValueError(f"{kind} over {steps} steps; at most {_MAX_STEPS} are unrolled")
    layer = _Layer(nodes, kind, given, attributes, steps, batch, hidden, rounded)
    direction = attributes.get("direction", "forward")
    directions = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    return _outputs(layer, [_run(layer, index, name == "reverse") for index, name in enumerate(directions)])


def _outputs(layer: _Layer, ran: list[tuple[list[str], State]]) -> list[str]:
    """Y, Y_h and, for an LSTM, Y_c, from each direction's outputs and last state."""
    nodes = layer.nodes
    size = (layer.batch, layer.hidden)
    steps = [nodes.reshape(nodes.concat(outputs, 0), (layer.steps, 1, *size)) for outputs, _ in ran]
    last = [[nodes.reshape(value, (1, *size)) for value in values] for values in zip(*(s for _, s in ran), strict=True)]
    written = [nodes.concat(steps, 1), *(nodes.concat(values, 0) for values in last)]
    if not layer.attributes.get("layout"):
        return written
    batch_first = [nodes.op("Transpose", written[0], perm=[2, 0, 1, 3])]
    return batch_first + [nodes.op("Transpose", value, perm=[1, 0, 2]) for value in written[1:]]


def _run(layer: _Layer, direction: int, reverse: bool) -> tuple[list[str], State]:
    """The output of each step, in order of time, and the state after the last."""
    step = _CELLS[layer.kind](layer, direction)
    rows = layer.nodes.split(_project(layer, direction), 0, layer.batch, layer.steps)
    state = _start(layer, direction)
    outputs = []
    for time in reversed(range(layer.steps)) if reverse else range(layer.steps):
        after = step(rows[time], state)
        state, output = _masked(layer, time, after, state) if layer.input(4) else (after, after[0])
        outputs.append(output)
    return outputs[::-1] if reverse else outputs, state


def _project(layer: _Layer, direction: int) -> str:
    """The inputs of all steps times their weights, plus the bias that is not multiplied: [steps * batch, gates]."""
    nodes = layer.nodes
    gates = GATES[layer.kind]
    hidden = layer.hidden
    x = layer.input(0)
    features = nodes.shape(layer.input(0))[-1]
    if layer.attributes.get("layout"):
        x = nodes.op("Transpose", x, perm=[1, 0, 2])
    rows = nodes.reshape(x, (layer.steps * layer.batch, features))
    weight = nodes.op("Transpose", layer.of(1, direction, gates * hidden, features), perm=[1, 0])
    projected = nodes.op("MatMul", layer.factor(rows), weight)
    return nodes.op("Add", projected, _bias(layer, direction)) if layer.input(3) else projected


def _bias(layer: _Layer, direction: int) -> str:
    """Both biases where they come to a sum; of a GRU that resets after the product, the last of them does not."""
    nodes = layer.nodes
    width = GATES[layer.kind] * layer.hidden
    both = layer.of(3, direction, 2 * width)
    first = nodes.slice(both, 0, 0, width)
    second = nodes.slice(both, 0, width, 2 * width)
    if layer.kind == "GRU" and layer.attributes.get("linear_before_reset"):
        kept = nodes.slice(second, 0, 0, 2 * layer.hidden)
        second = nodes.op("Concat", kept, nodes.constant(np.zeros(layer.hidden)), axis=0)
    return nodes.op("Add", first, second)


def _start(layer: _Layer, direction: int) -> State:
    """The state before the first step: zero where none is given."""
    size = (layer.batch, layer.hidden)
    state = []
    for index in (5, 6) if layer.kind == "LSTM" else (5,):
        if not layer.input(index):
            state.append(layer.nodes.constant(np.zeros(size)))
        elif layer.attributes.get("layout"):
            part = layer.nodes.slice(layer.input(index), 1, direction, direction + 1)
            state.append(layer.nodes.reshape(part, size))
        else:
            state.append(layer.of(index, direction, *size))
    return tuple(state)


def _masked(layer: _Layer, time: int, after: State, before: State) -> tuple[State, str]:
    """State and output of a step that only some sequences of the batch are long enough for."""
    nodes = layer.nodes
    lengths = nodes.reshape(layer.input(4), (layer.batch, 1))
    inside = nodes.op("Greater", nodes.cast(lengths, 1), nodes.constant(time))
    state = tuple(nodes.op("Where", inside, new, old) for new, old in zip(after, before, strict=True))
    return state, nodes.op("Where", inside, after[0], nodes.constant(np.zeros((layer.batch, layer.hidden))))


def _activations(layer: _Layer, direction: int) -> list[Callable[[str], str]]:
    """The functions of one direction."""
    given = (layer.attributes.get(name) or () for name in ("activations", "activation_alpha", "activation_beta"))
    bound = float(layer.attributes.get("clip") or 0)
    mine = activations(layer.kind, direction + 1, *given)[direction]
    return [partial(_activated, layer.nodes, activation, bound) for activation in mine]


def _activated(nodes: Nodes, function: Activation, bound: float, x: str) -> str:
    if bound:
        x = nodes.clip(x, -bound, bound)
    name = function.name
    if name == "Affine":
        return nodes.op("Add", nodes.op("Mul", x, nodes.constant(function.alpha)), nodes.constant(function.beta))
    if name == "ScaledTanh":
        inner = nodes.op("Mul", x, nodes.constant(function.beta))
        return nodes.op("Mul", nodes.constant(function.alpha), nodes.op("Tanh", inner))
    options = {"alpha": function.alpha} if name in ALPHA else {}
    options |= {"beta": function.beta} if name in BETA else {}
    return nodes.op(name, x, **options)


def _recurrence(layer: _Layer, direction: int) -> str:
    """The weights that the state is multiplied by: [hidden, gates]."""
    width = GATES[layer.kind] * layer.hidden
    return layer.nodes.op("Transpose", layer.of(2, direction, width, layer.hidden), perm=[1, 0])


def _rnn(layer: _Layer, direction: int) -> Callable[[str, State], State]:
    nodes = layer.nodes
    weight = _recurrence(layer, direction)
    (f,) = _activations(layer, direction)
    return lambda row, state: (f(nodes.op("Add", row, nodes.op("MatMul", state[0], weight))),)


def _gru(layer: _Layer, direction: int) -> Callable[[str, State], State]:
    nodes = layer.nodes
    hidden = layer.hidden
    f, g = _activations(layer, direction)
    weight = _recurrence(layer, direction)
    gates = nodes.slice(weight, 1, 0, 2 * hidden)
    candidate = nodes.slice(weight, 1, 2 * hidden, 3 * hidden)
    late = bool(layer.attributes.get("linear_before_reset"))
    bias = nodes.slice(layer.of(3, direction, 6 * hidden), 0, 5 * hidden, 6 * hidden) if late and layer.input(3) else ""

    def propose(row: str, reset: str, h: str) -> str:
        if not late:
            return nodes.op("Add", row, nodes.op("MatMul", nodes.op("Mul", reset, h), candidate))
        product = nodes.op("MatMul", h, candidate)
        return nodes.op("Add", row, nodes.op("Mul", reset, nodes.op("Add", product, bias) if bias else product))

    def step(row: str, state: State) -> State:
        (h,) = state
        both = nodes.op("Add", nodes.slice(row, 1, 0, 2 * hidden), nodes.op("MatMul", h, gates))
        update, reset = (f(part) for part in nodes.split(both, 1, hidden, 2))
        proposed = g(propose(nodes.slice(row, 1, 2 * hidden, 3 * hidden), reset, h))
        # (1 - update) * proposed + update * h, with one product less
        return (nodes.op("Add", proposed, nodes.op("Mul", update, nodes.op("Sub", h, proposed))),)

    return step


def _lstm(layer: _Layer, direction: int) -> Callable[[str, State], State]:
    nodes = layer.nodes
    hidden = layer.hidden
    weight = _recurrence(layer, direction)
    f, g, h_ = _activations(layer, direction)
    peepholes = nodes.split(layer.of(7, direction, 3 * hidden), 0, hidden, 3) if layer.input(7) else []

    def peep(x: str, cell: str, gate: int) -> str:
        return nodes.op("Add", x, nodes.op("Mul", peepholes[gate], cell)) if peepholes else x

    def step(row: str, state: State) -> State:
        gates = nodes.op("Add", row, nodes.op("MatMul", layer.factor(state[0]), weight))
        i, o, forget, c = nodes.split(gates, 1, hidden, 4)
        entering = f(peep(i, state[1], 0))
        if layer.attributes.get("input_forget"):
            staying = nodes.op("Sub", nodes.constant(1), entering)
        else:
            staying = f(peep(forget, state[1], 2))
        cell = nodes.op("Add", nodes.op("Mul", staying, state[1]), nodes.op("Mul", entering, g(c)))
        return nodes.op("Mul", f(peep(o, cell, 1)), h_(cell)), cell

    return step


_CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
