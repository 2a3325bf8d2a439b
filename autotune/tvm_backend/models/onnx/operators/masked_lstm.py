"""An LSTM that leaves out steps by a mask, in ONNX's operators.

A step that is left out keeps the state. So the others are moved to the front, LSTM reads only these, and its outputs
are moved back to their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import TensorProto

from autotune.tvm_backend.models.onnx.operators.nodes import Nodes

Kind = Literal["same", "count", "state", "cell", "all", "last"]
GATES = 4


@dataclass(frozen=True)
class MaskedLstm:
    """The layer. Its attributes are names of values.

    Attributes:
        x: The inputs of all steps: [steps, batch, features].
        weight: What they are multiplied by: [features, gates].
        recurrence: What the state is multiplied by: [hidden, gates].
        biases: What is added to the gates.
        order: The place of each gate in these, in the order of ONNX: input, output, forget, cell.
        mask: Which steps are taken: [steps, batch, 1]. Empty if all are.
    """

    x: str
    weight: str
    recurrence: str
    biases: tuple[str, ...]
    order: tuple[int, ...]
    mask: str


@dataclass(frozen=True)
class Wanted:
    """A value that is wanted of a layer.

    Attributes:
        kind: A value that stays the same, the number of steps, the last state or cell, or all outputs or the last one.
        start: The value that stays the same, or the one before the first step; of outputs, what stands in their place
            where a step is left out.
        mask: Which steps are taken, by name. Empty if all are.
        holds: Whether outputs stay where a step is left out.
    """

    kind: Kind
    start: str
    mask: str = ""
    holds: bool = False


def fits(layer: MaskedLstm, nodes: Nodes, steps: int, first: Sequence[str]) -> bool:
    """Whether shapes and types are those of so many steps of a layer. `first` are its first state and cell."""
    shape = nodes.shape(layer.x)
    states = {nodes.shape(name) for name in first}
    if len(shape) != 3 or shape[0] != steps or len(states) != 1 or nodes.dtype(layer.x) != TensorProto.FLOAT:
        return False
    (state,) = states
    of_mask = not layer.mask or nodes.shape(layer.mask) == (*shape[:2], 1)
    return of_mask and len(state) == 2 and state[0] == shape[1]


def write(layer: MaskedLstm, nodes: Nodes, first: Sequence[str], wanted: Sequence[Wanted]) -> list[str]:
    """Write the layer; returns the names of what is wanted of it."""
    return _Writer(layer, nodes, first).all(wanted)


class _Writer:
    def __init__(self, layer: MaskedLstm, nodes: Nodes, first: Sequence[str]) -> None:
        self._nodes = nodes
        self._steps, self._batch, self._features = nodes.shape(layer.x)
        self._hidden = nodes.shape(first[0])[1]
        self._first = first
        self._mask = nodes.cast(layer.mask, TensorProto.BOOL) if layer.mask else ""
        self._places = self._counted() if self._mask else ""
        self._outputs, self._states = self._layer(layer)

    def all(self, wanted: Sequence[Wanted]) -> list[str]:
        return [self._one(item) for item in wanted]

    def _one(self, item: Wanted) -> str:
        nodes = self._nodes
        if item.kind == "same":
            return item.start
        if item.kind == "count":
            return nodes.constant_like(np.full(nodes.shape(item.start), self._steps), item.start)
        if item.kind in ("state", "cell"):
            return self._states[item.kind == "cell"]
        outputs = self._in_place(item) if self._mask else self._outputs
        if item.kind == "all":
            return outputs
        last = nodes.slice(outputs, 0, self._steps - 1, self._steps)
        return nodes.reshape(last, (self._batch, self._hidden))

    def _layer(self, layer: MaskedLstm) -> tuple[str, list[str]]:
        """The outputs of the steps that are taken, one after the other, and the last state and cell."""
        nodes = self._nodes
        gates = GATES * self._hidden
        inputs = [self._taken(layer.x) if self._mask else layer.x]
        inputs += [nodes.reshape(self._rows(layer, layer.weight), (1, gates, self._features))]
        inputs += [nodes.reshape(self._rows(layer, layer.recurrence), (1, gates, self._hidden))]
        inputs += [self._bias(layer), self._lengths() if self._mask else ""]
        shape = (1, self._batch, self._hidden)
        inputs += [nodes.reshape(name, shape) for name in self._first]
        outputs, *states = nodes.ops("LSTM", 3, *inputs, hidden_size=self._hidden)
        flat = [nodes.reshape(name, shape[1:]) for name in states]
        return nodes.reshape(outputs, (self._steps, *shape[1:])), list(map(self._or_first, flat, self._first))

    def _rows(self, layer: MaskedLstm, weight: str) -> str:
        """Weights as ONNX has them: [gates, features], its gates in their order."""
        nodes = self._nodes
        turned = nodes.op("Transpose", weight, perm=[1, 0])
        return nodes.concat([self._gate(turned, place) for place in layer.order], 0)

    def _gate(self, x: str, place: int) -> str:
        return self._nodes.slice(x, 0, place * self._hidden, (place + 1) * self._hidden)

    def _bias(self, layer: MaskedLstm) -> str:
        """The sum of the biases, and zeros for those of the state."""
        if not layer.biases:
            return ""
        nodes = self._nodes
        gates = GATES * self._hidden
        total = nodes.reshape(layer.biases[0], (-1,))
        for name in layer.biases[1:]:
            total = nodes.op("Add", total, nodes.reshape(name, (-1,)))
        ordered = [self._gate(total, place) for place in layer.order]
        return nodes.reshape(nodes.concat([*ordered, nodes.constant(np.zeros(gates))], 0), (1, 2 * gates))

    def _or_first(self, state: str, first: str) -> str:
        """The state of each sequence, which is the first one where no step is taken."""
        if not self._mask:
            return state
        nodes = self._nodes
        none = nodes.op("Equal", nodes.reshape(self._lengths(), (self._batch, 1)), nodes.constant(0, np.int32))
        return nodes.op("Where", none, first, state)

    def _counted(self) -> str:
        """How many steps are taken up to each one: [steps, batch]."""
        nodes = self._nodes
        taken = nodes.reshape(nodes.cast(self._mask, TensorProto.INT64), (1, self._steps, self._batch))
        until = nodes.constant(np.tril(np.ones((self._steps, self._steps)))[:, :, None], np.int64)
        return self._nodes.sum(nodes.op("Mul", taken, until), 1)

    def _lengths(self) -> str:
        """How many steps are taken of each sequence."""
        last = self._nodes.slice(self._places, 0, self._steps - 1, self._steps)
        return self._nodes.cast(self._nodes.reshape(last, (self._batch,)), TensorProto.INT32)

    def _taken(self, x: str) -> str:
        """The inputs of the steps that are taken at the front. What follows them is not read."""
        nodes = self._nodes
        shape = (self._steps, self._steps, self._batch)
        numbers = nodes.constant(np.arange(1, self._steps + 1)[:, None, None], np.int64)
        found_at = nodes.op("Equal", nodes.reshape(self._places, (1, *shape[1:])), numbers)
        chosen = nodes.op("And", found_at, nodes.reshape(self._mask, (1, *shape[1:])))
        earlier = nodes.constant(np.arange(self._steps)[None, :, None], np.int64)
        steps = self._nodes.sum(nodes.op("Mul", nodes.cast(chosen, TensorProto.INT64), earlier), 1)
        return self._gathered(x, steps, self._features)

    def _in_place(self, item: Wanted) -> str:
        """The outputs where their inputs were, and in their place what is wanted where a step is left out."""
        nodes = self._nodes
        number = nodes.op("Max", nodes.op("Sub", self._places, self._whole(1)), self._whole(0))
        outputs = self._gathered(self._outputs, number, self._hidden)
        if not item.holds:
            return nodes.op("Where", self._mask, outputs, item.start)
        reached = nodes.op("Greater", self._places, self._whole(0))
        return nodes.op("Where", nodes.reshape(reached, (self._steps, self._batch, 1)), outputs, item.start)

    def _gathered(self, x: str, steps: str, size: int) -> str:
        nodes = self._nodes
        shape = (self._steps, self._batch, size)
        index = nodes.op("Expand", nodes.reshape(steps, (*shape[:2], 1)), nodes.constant(shape, np.int64))
        return nodes.op("GatherElements", x, index, axis=0)

    def _whole(self, value: int) -> str:
        return self._nodes.constant(value, np.int64)
