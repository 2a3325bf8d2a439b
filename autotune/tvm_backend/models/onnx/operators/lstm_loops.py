"""A Loop whose body is the step of an LSTM, as the operator LSTM: unrolled it would be thousands of kernels.

Exporters of TensorFlow write a layer so that leaves out steps by a mask. A step that is left out keeps the state. So
the others are moved to the front, an LSTM reads only these, and its outputs are moved back to their places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from autotune.tvm_backend.models.onnx.operators import masked_lstm
from autotune.tvm_backend.models.onnx.operators.masked_lstm import GATES, Kind, Wanted
from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.types import GraphProto, NodeProto

_FIRST = 2  # the first input, of a loop and of its body, that is carried


class _OtherForm(Exception):
    """A body computes something else, or is written in another way."""


@dataclass(frozen=True)
class _Step:
    """What the step of an LSTM reads. Values are named as outside of the loop.

    Attributes:
        x: The inputs of all steps.
        weight: What they are multiplied by.
        recurrence: What the state is multiplied by.
        biases: What is added.
        order: The place of each gate among those of the step, in the order of ONNX: input, output, forget, cell.
        state: The state and the cell, by their places among what is carried.
    """

    x: str
    weight: str
    recurrence: str
    biases: tuple[str, ...]
    order: tuple[int, ...]
    state: tuple[int, int]


def lstm_loop(node: NodeProto, graph: GraphProto, nodes: Nodes, shared: Mapping[str, str]) -> list[str] | None:
    """Write a Loop as an LSTM; returns the names of its outputs, or None if its body is another.

    Args:
        nodes: Where it is written.
        shared: What the constants of the body are called outside of it.

    Raises:
        UnknownValue: A shape is not known.
    """
    body = _Body(node, graph, nodes, shared)
    try:
        step = _step(body)
        steps = body.steps()
        wanted = [_wanted(body, step, place) for place in range(len(body.results) - 1)]
    except _OtherForm:
        return None
    masks = {item.mask for item in wanted if item.kind not in ("same", "count")}
    layer = masked_lstm.MaskedLstm(step.x, step.weight, step.recurrence, step.biases, step.order, max(masks))
    first = [body.given[place] for place in step.state]
    if len(masks) > 1 or not masked_lstm.fits(layer, nodes, steps, first):
        return None
    return masked_lstm.write(layer, nodes, first, wanted)


class _Body:
    """The body of a Loop, in which operators are looked up by what they put out."""

    def __init__(self, node: NodeProto, graph: GraphProto, nodes: Nodes, shared: Mapping[str, str]) -> None:
        self._nodes = nodes
        self._shared = shared
        self._made = {name: item for item in graph.node for name in item.output}
        self._constants = {item.name: item for item in graph.initializer}
        self.given: list[str] = list(node.input[_FIRST:])
        self._most, self._condition = node.input[:_FIRST]
        self.inputs = [item.name for item in graph.input]
        self.results = [self.plain(item.name) for item in graph.output]
        self.carried = self.inputs[_FIRST:]

    def plain(self, name: str) -> str:
        """The value that another is a copy of."""
        while (item := self._made.get(name)) is not None and item.op_type == "Identity":
            name = item.input[0]
        return name

    def operands(self, name: str, kind: str) -> list[str]:
        """The inputs of the operator of that kind that makes a value."""
        item = self._made.get(name)
        if item is None or item.op_type != kind:
            raise _OtherForm
        return [self.plain(operand) for operand in item.input]

    def is_made_by(self, name: str, kind: str) -> bool:
        return name in self._made and self._made[name].op_type == kind

    def attributes(self, name: str) -> dict[str, object]:
        return attributes_of(self._made[name])

    def part(self, name: str) -> tuple[str, int]:
        """What a Split cuts, and the place of this part."""
        whole = self.operands(name, "Split")[0]
        item = self._made[name]
        if attributes_of(item).get("axis") not in (1, -1) or len(item.output) != GATES:
            raise _OtherForm
        return whole, list(item.output).index(name)

    def uncast(self, name: str) -> str:
        while self.is_made_by(name, "Cast"):
            name = self.operands(name, "Cast")[0]
        return name

    def outside(self, name: str) -> str:
        """The name outside of the loop of a value that is the same in each step."""
        if name in self._shared:
            return self._shared[name]
        if name in self.carried and self.results[1 + self.carried.index(name)] == name:
            return self.given[self.carried.index(name)]
        if name in self._made or name in self.inputs:
            raise _OtherForm
        return name

    def slices(self, name: str) -> str:
        """The value outside of the loop of which each step reads its own slice."""
        whole, index = self.operands(name, "Gather")
        if self.attributes(name).get("axis", 0) != 0 or not self._is_counter(index):
            raise _OtherForm
        return self.outside(whole)

    def steps(self) -> int:
        """How many steps there are, from the number that is given and the condition."""
        if self._condition and self._number(self._condition) != 1:
            raise _OtherForm
        limits = [*self._limits(self.results[0]), *([self._number(self._most)] if self._most else [])]
        if not limits or not min(limits) >= 1 or math.isnan(sum(limits)):
            raise _OtherForm
        return int(min(limits))

    def is_counter(self, place: int) -> bool:
        return self._is_counter(self.carried[place])

    def _is_counter(self, name: str) -> bool:
        """Whether a value is the number of the step, from 0."""
        if name == self.inputs[0]:
            return True
        if name not in self.carried:
            return False
        place = self.carried.index(name)
        return self._follows(self.results[1 + place], name) and self._number(self.given[place]) == 0

    def _follows(self, name: str, counter: str) -> bool:
        if not self.is_made_by(name, "Add"):
            return False
        first, second = self.operands(name, "Add")
        return any(a == counter and self._number(b) == 1 for a, b in ((first, second), (second, first)))

    def _limits(self, condition: str) -> Iterator[float]:
        """The numbers of steps after which a condition fails."""
        if self.is_made_by(condition, "And"):
            for operand in self.operands(condition, "And"):
                yield from self._limits(operand)
        elif condition != self.inputs[1]:
            counter, limit = map(self.uncast, self.operands(condition, "Less"))
            if not any(self._is_counter(name) and self._follows(counter, name) for name in self.inputs):
                raise _OtherForm
            yield self._number(self.outside(limit))

    def _number(self, name: str) -> float:
        """A constant; not a number if it is none."""
        if name in self._constants:
            value = onnx.numpy_helper.to_array(self._constants[name])
            return float(value.item()) if value.size == 1 else float("nan")
        return self._nodes.numbers.get(name, float("nan"))


def _step(body: _Body) -> _Step:
    """Read the step of an LSTM.

    Raises:
        _OtherForm: It is none.
    """
    for place in range(len(body.carried)):
        try:
            return _step_of(body, place, _new(body, body.results[1 + place]))
        except _OtherForm:
            continue
    raise _OtherForm


def _new(body: _Body, name: str) -> str:
    """What a step computes, where a mask may choose between that and what was there."""
    chosen = _choice(body, name)
    return chosen[1] if chosen else name


def _step_of(body: _Body, place: int, state: str) -> _Step:
    """Read the step whose new state is at this place and has this name."""
    for gate, squashed in itertools.permutations(body.operands(state, "Mul")):
        if body.is_made_by(gate, "Sigmoid") and body.is_made_by(squashed, "Tanh"):
            break
    else:
        raise _OtherForm
    (cell,) = body.operands(squashed, "Tanh")
    whole, out = body.part(body.operands(gate, "Sigmoid")[0])
    places = [index for index, name in enumerate(body.results[1:]) if _is_carried(body, index, name, cell)]
    if len(places) != 1:
        raise _OtherForm
    forget, entering, proposed = _cell_gates(body, body.carried[places[0]], cell, whole)
    x, weight, recurrence, biases = _sums(body, whole, body.carried[place])
    return _Step(x, weight, recurrence, biases, (entering, out, forget, proposed), (place, places[0]))


def _is_carried(body: _Body, place: int, result: str, value: str) -> bool:
    """Whether what is carried at a place is this value, or the one before it where a mask says so."""
    if place >= len(body.carried):
        return False
    chosen = _choice(body, result)
    return result == value or (chosen is not None and chosen[1:] == (value, body.carried[place]))


def _cell_gates(body: _Body, before: str, cell: str, whole: str) -> tuple[int, int, int]:
    """The places of the gates that make a cell: forget * before + input * tanh(candidate)."""
    for kept, added in itertools.permutations(body.operands(cell, "Add")):
        kept_factors = body.operands(kept, "Mul")
        if before not in kept_factors:
            continue
        forget = next(name for name in kept_factors if name != before)
        for gate, candidate in itertools.permutations(body.operands(added, "Mul")):
            if body.is_made_by(candidate, "Tanh"):
                found_parts = [(forget, "Sigmoid"), (gate, "Sigmoid"), (candidate, "Tanh")]
                cuts = [body.part(body.operands(name, kind)[0]) for name, kind in found_parts]
                if {cut for cut, _ in cuts} == {whole}:
                    return cuts[0][1], cuts[1][1], cuts[2][1]
    raise _OtherForm


def _sums(body: _Body, name: str, state: str) -> tuple[str, str, str, tuple[str, ...]]:
    """What gates are the sum of: the inputs and their weights, the weights of the state, and biases."""
    weights: list[tuple[str, str]] = []
    recurrences: list[str] = []
    biases: list[str] = []
    waiting = [name]
    while waiting:
        term = waiting.pop()
        if body.is_made_by(term, "Add"):
            waiting += body.operands(term, "Add")
        elif body.is_made_by(term, "MatMul") or _is_plain_gemm(body, term):
            left, right, *rest = body.operands(term, "MatMul" if body.is_made_by(term, "MatMul") else "Gemm")
            waiting += rest
            if left == state:
                recurrences.append(body.outside(right))
            else:
                weights.append((body.slices(left), body.outside(right)))
        else:
            biases.append(body.outside(term))
    if len(weights) != 1 or len(recurrences) != 1:
        raise _OtherForm
    return *weights[0], recurrences[0], tuple(biases)


def _is_plain_gemm(body: _Body, name: str) -> bool:
    if not body.is_made_by(name, "Gemm"):
        return False
    attributes = body.attributes(name)
    scaled = attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1
    return not scaled and not attributes.get("transA") and not attributes.get("transB")


def _choice(body: _Body, name: str) -> tuple[str, str, str] | None:
    """The mask, and what it chooses between, where a value is a choice.

    It is written as Where, or as mask * new + not mask * old.
    """
    if body.is_made_by(name, "Where"):
        mask, new, old = body.operands(name, "Where")
        return mask, new, old
    if not body.is_made_by(name, "Add"):
        return None
    terms = body.operands(name, "Add")
    if not all(body.is_made_by(term, "Mul") for term in terms):
        return None
    factors = [body.operands(term, "Mul") for term in terms]
    for one, other in itertools.permutations(factors):
        for (mask, new), (rest, old) in itertools.product(itertools.permutations(one), itertools.permutations(other)):
            opposite = body.uncast(rest)
            if body.is_made_by(opposite, "Not") and body.operands(opposite, "Not")[0] == body.uncast(mask):
                return body.uncast(mask), new, old
    return None


def _wanted(body: _Body, step: _Step, place: int) -> Wanted:
    """Say what an output of the loop is.

    Raises:
        _OtherForm: It is something else than outputs, states, the counter and what stays the same.
    """
    result = body.results[1 + place]
    is_slice = place >= len(body.carried)
    if not is_slice and result == body.carried[place]:
        return Wanted("same", body.given[place])
    if not is_slice and body.is_counter(place):
        return Wanted("count", body.given[place])
    chosen = _choice(body, result)
    mask, new, old = chosen or ("", result, "")
    mask = mask and body.slices(mask)
    if place in step.state:
        return Wanted("state" if place == step.state[0] else "cell", body.given[place], mask)
    if new != _new(body, body.results[1 + step.state[0]]):
        raise _OtherForm
    kind: Kind = "all" if is_slice else "last"
    if old in body.carried and chosen == _choice(body, body.results[1 + body.carried.index(old)]):
        return Wanted(kind, body.given[body.carried.index(old)], mask, holds=True)
    return Wanted(kind, old and body.outside(old), mask)
