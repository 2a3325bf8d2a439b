"""The bytes of tensors that are alive at once while the operators of a graph run in a given order, at most."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.network_plan.arena import BufferLife, peak

# Their result is their first input in another shape.
ALIASES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# What these write may replace any input of the same size: an element, or a row, depends on no other.
IN_PLACE = frozenset(
    {"Abs", "Add", "And", "BiasGelu", "BitShift", "Cast", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Equal", "Erf"}
    | {"Exp", "FastGelu", "Floor", "Gelu", "Greater", "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "Log"}
    | {"LogSoftmax", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuickGelu"}
    | {"Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt"}
    | {"Sub", "Sum", "Tanh", "ThresholdedRelu", "Where", "Xor"}
)
# These add an input to their result, and may write over it.
ADDED = {"Conv": 3, "FusedConv": 3}


@dataclass(frozen=True)
class Step:
    """An operator that runs.

    Attributes:
        operator: Its type.
        reads: The names of its inputs; empty where an optional one is missing.
        writes: The bytes of its outputs, by name.
    """

    operator: str
    reads: tuple[str, ...]
    writes: Mapping[str, int]


@dataclass(frozen=True)
class Execution:
    """The operators of a graph in the order in which they run.

    Attributes:
        inputs: The bytes of the inputs of the graph, by name. They are alive all the time, and never written over.
        steps: The operators. What they read that is neither an input nor written by one of them is a weight.
        outputs: The names of the outputs of the graph. They are alive to the end.
    """

    inputs: Mapping[str, int]
    steps: Sequence[Step]
    outputs: Collection[str]


def most_alive(execution: Execution) -> int:
    """Return the most bytes of activations that are alive at once, each tensor rounded up as `BufferLife` is."""
    return peak(lives(execution))


def lives(execution: Execution) -> list[BufferLife]:
    """Return the buffers that an execution needs. Weights need none."""
    buffers = _Buffers(execution)
    for number, step in enumerate(execution.steps):
        for name, size in step.writes.items():
            buffers.write(number, step, name, size)
    return [BufferLife(item.bytes, item.first, item.last) for item in buffers.all]


@dataclass
class _Buffer:
    bytes: int
    first: int
    last: int


class _Buffers:
    """The buffers of the tensors that were written so far."""

    def __init__(self, execution: Execution) -> None:
        end = len(execution.steps)
        self._last_reads = {name: number for number, step in enumerate(execution.steps) for name in step.reads}
        self._last_reads.update(dict.fromkeys(execution.outputs, end))
        self._of = {name: _Buffer(size, 0, end) for name, size in execution.inputs.items()}
        self.all = list(self._of.values())

    def write(self, number: int, step: Step, name: str, size: int) -> None:
        """Give a tensor that a step writes a buffer: that of an input if it can have it, else a new one."""
        buffer = self._shared(number, step, size)
        if buffer is None and step.operator in ALIASES:
            return  # it shows a weight
        if buffer is None:
            buffer = _Buffer(size, number, number)
            self.all.append(buffer)
        buffer.last = max(buffer.last, self._last_reads.get(name, number))
        self._of[name] = buffer

    def _shared(self, number: int, step: Step, size: int) -> _Buffer | None:
        if step.operator in ALIASES:
            return self._of.get(step.reads[0])
        sources = (self._of.get(name) for name in _replaceable(step))
        return next((item for item in sources if item and item.last == number and item.bytes == size), None)


def _replaceable(step: Step) -> Iterable[str]:
    """Return the inputs that a step may write over."""
    if step.operator in IN_PLACE:
        return step.reads
    added = ADDED.get(step.operator, len(step.reads))
    return step.reads[added : added + 1]
