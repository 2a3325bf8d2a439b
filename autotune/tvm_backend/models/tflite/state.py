"""Values that a model of TensorFlow Lite keeps from one run to the next, made inputs and outputs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import ModelError, OperatorRefused, Refusal, one_line
from autotune.storage.formats import KeptValue
from autotune.tvm_backend.models.model import as_model_error
from autotune.tvm_backend.models.tflite.flatbuffer import OF_STATE, Flatbuffer, LiteRtSession, packed, unpacked
from autotune.tvm_backend.types import ModelT, OperatorT

NEXT = "_next"  # at the end of the name of the output that is the input of the next run
_RUNS = 4  # in which both models have to put out the same
_SEED = 2026
_ADVICE = "convert the model with its state as inputs and outputs"


def with_open_state(flatbuffer: Flatbuffer) -> tuple[Flatbuffer, tuple[KeptValue, ...]]:
    """Return a model in which each value that is kept is an input, and its next value an output.

    LiteRT runs both a few times: the model as submitted, and the new one with its outputs handed back in.

    Returns:
        The new model, and what is kept; the model itself if it keeps nothing.

    Raises:
        OperatorRefused: A value is kept in a way that cannot be written so.
        ModelError: LiteRT computes something else of the new model.
    """
    if not any(item.name in OF_STATE for item in flatbuffer.operators()):
        return flatbuffer, ()
    path = flatbuffer.path
    try:
        with as_model_error(path, "is a damaged TensorFlow Lite model"):
            graph = _Graph.read(flatbuffer.content)
            states = graph.open()
    except OperatorRefused as error:
        raise error.in_file(path) from error
    opened = Flatbuffer(path, packed(graph.model))
    with as_model_error(path, "is refused by LiteRT"):
        _check_same(path, flatbuffer.content, opened.content, states)
    return opened, states


@dataclass
class _Variable:
    """A value that is kept: its name, the tensor that it is at the moment, and the input that it began as."""

    name: str
    tensor: int | None = None
    begin: int | None = None

    @property
    def is_assigned(self) -> bool:
        return self.tensor != self.begin


@dataclass
class _Graph:
    """The main graph of a model, to be changed."""

    schema: Any  # the package's classes
    model: ModelT  # the whole of the model
    kinds: Mapping[int, str]  # the names of operators by their numbers
    handles: dict[int, _Variable] = field(default_factory=dict)  # variables by the tensors that stand for them
    variables: dict[tuple[bytes, bytes], _Variable] = field(default_factory=dict)  # variables by their names
    instead: dict[int, int] = field(default_factory=dict)  # tensors by those that they take the place of

    @classmethod
    def read(cls, content: bytes) -> _Graph:
        from ai_edge_litert import schema_py_generated as schema

        return cls(schema, unpacked(content), {number: name for name, number in vars(schema.BuiltinOperator).items()})

    @property
    def main(self) -> Any:
        return self.model.subgraphs[0]

    def open(self) -> tuple[KeptValue, ...]:
        """Take the operators of state out of the main graph; returns what was kept."""
        first = self._first_values()
        self.main.operators = [item for item in self.main.operators if not self._is_taken(item)]
        self.main.outputs = [self.instead.get(int(number), int(number)) for number in self.main.outputs]
        self.model.subgraphs = [self.main]
        self.model.signatureDefs = None
        read = {key: variable for key, variable in self.variables.items() if variable.begin is not None}
        return tuple(self._state(variable, first.get(key)) for key, variable in read.items())

    def _first_values(self) -> dict[tuple[bytes, bytes], npt.NDArray[Any]]:
        """What is assigned once before the first run, by the names of the variables.

        Raises:
            OperatorRefused: Another graph than the main one does something else.
        """
        values = {}
        for graph in self.model.subgraphs[1:]:
            handles = {}
            for item in graph.operators:
                kind = self._kind(item)
                if kind == "VAR_HANDLE":
                    handles[int(item.outputs[0])] = self._key(item)
                elif kind == "ASSIGN_VARIABLE" and (data := self._data(graph.tensors[item.inputs[1]])) is not None:
                    values[handles[int(item.inputs[0])]] = data
                else:
                    raise _refused(kind, "", "it stands in another graph than the main one")
        return values

    def _is_taken(self, item: OperatorT) -> bool:
        """Note what an operator does to variables; returns whether it does nothing else."""
        kind = self._kind(item)
        if kind == "VAR_HANDLE":
            key = self._key(item)
            name = key[1].decode("utf-8", "replace")
            self.handles[int(item.outputs[0])] = self.variables.setdefault(key, _Variable(name))
        elif kind == "READ_VARIABLE":
            self._read(self.handles[int(item.inputs[0])], int(item.outputs[0]))
        elif kind == "ASSIGN_VARIABLE":
            number = int(item.inputs[1])
            self.handles[int(item.inputs[0])].tensor = self.instead.get(number, number)
        elif kind != "CALL_ONCE":
            item.inputs = [self.instead.get(int(number), int(number)) for number in item.inputs]
            return False
        return True

    def _read(self, variable: _Variable, number: int) -> None:
        if variable.tensor is None:
            variable.tensor = variable.begin = number
        else:
            self.instead[number] = variable.tensor

    def _state(self, variable: _Variable, first: npt.NDArray[Any] | None) -> KeptValue:
        """Make a variable an input and an output, under its name.

        Raises:
            OperatorRefused: It is never assigned, or its elements have several values at first.
        """
        if variable.tensor is None or variable.begin is None or not variable.is_assigned:
            raise _refused("READ_VARIABLE", variable.name, "nothing assigns to what it reads")
        values = np.zeros(1) if first is None else first
        if not values.size or (values != values.flat[0]).any():
            raise _refused("READ_VARIABLE", variable.name, "its elements have several values before the first run")
        self.main.tensors[variable.begin].name = variable.name
        made = self._copied(variable.tensor) if self._is_shared(variable.tensor) else variable.tensor
        self.main.tensors[made].name = variable.name + NEXT
        self.main.inputs = [*self.main.inputs, variable.begin]
        self.main.outputs = [*self.main.outputs, made]
        return KeptValue(variable.name, variable.name + NEXT, float(values.flat[0]))

    def _is_shared(self, number: int) -> bool:
        """Whether a tensor has a name already that matters, or is made by no operator."""
        made = {int(output) for item in self.main.operators for output in item.outputs}
        return number not in made or number in map(int, self.main.outputs)

    def _copied(self, number: int) -> int:
        """Copy a tensor by an operator, which leaves its shape as it is."""
        schema = self.schema
        tensor = self.main.tensors[number]
        copy = schema.TensorT()
        copy.shape = tensor.shape
        copy.type = tensor.type
        copy.quantization = tensor.quantization
        self.main.tensors.append(copy)
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RESHAPE
        self.model.operatorCodes.append(code)
        entry = schema.OperatorT()
        entry.opcodeIndex = len(self.model.operatorCodes) - 1
        entry.inputs = [number, self._sizes(tensor.shape)]
        entry.outputs = [len(self.main.tensors) - 2]
        self.main.operators.append(entry)
        return int(entry.outputs[0])

    def _sizes(self, shape: Any) -> int:
        """Add a constant of these sizes."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.asarray(shape, np.int32).tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        constant = self.schema.TensorT()
        constant.name = f"sizes{len(self.model.buffers)}"
        constant.shape = [len(shape)]
        constant.type = self.schema.TensorType.INT32
        constant.buffer = len(self.model.buffers) - 1
        self.main.tensors.append(constant)
        return len(self.main.tensors) - 1

    def _kind(self, item: OperatorT) -> str:
        code = self.model.operatorCodes[item.opcodeIndex]
        return self.kinds.get(max(code.builtinCode, code.deprecatedBuiltinCode), "an unknown one")

    @staticmethod
    def _key(item: OperatorT) -> tuple[bytes, bytes]:
        return item.builtinOptions.container or b"", item.builtinOptions.sharedName or b""

    def _data(self, tensor: Any) -> npt.NDArray[Any] | None:
        data = self.model.buffers[tensor.buffer].data
        types = {value: name for name, value in vars(self.schema.TensorType).items() if isinstance(value, int)}
        return None if data is None else np.asarray(data, np.uint8).view(types[tensor.type].lower())


def _refused(kind: str, name: str, reason: str) -> OperatorRefused:
    return OperatorRefused.of(Refusal(kind, one_line(name), reason, _ADVICE))


def _check_same(path: Path, before: bytes, opened: bytes, states: tuple[KeptValue, ...]) -> None:
    """Check that a model that keeps its values and one that is handed them put out the same, run after run.

    Raises:
        ModelError: They do not.
    """
    kept = LiteRtSession(before)
    handed = LiteRtSession(opened)
    pairs = zip(handed.inputs[len(kept.inputs) :], states, strict=True)
    values = [np.full(item["shape"], state.first, item["dtype"]) for item, state in pairs]
    rng = np.random.default_rng(_SEED)
    for _ in range(_RUNS):
        arrays = [_drawn(rng, item["shape"], np.dtype(item["dtype"])) for item in kept.inputs]
        expected = kept.run(arrays)
        outputs = handed.run([*arrays, *values])
        values = outputs[len(expected) :]
        if not all(map(_is_same, outputs, expected)):
            reason = "LiteRT computes something else when the values that it keeps are handed in"
            raise ModelError(f"{path}: {reason}; {_ADVICE}")


def _drawn(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Floats of a normal distribution, any bytes, and else 0 or 1."""
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape), dtype)
    if dtype.kind in "iu" and dtype.itemsize == 1:
        return np.asarray(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape), dtype)
    return np.asarray(rng.integers(0, 2, shape), dtype)


def _is_same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
