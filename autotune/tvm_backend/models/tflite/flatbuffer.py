"""The file of a TensorFlow Lite model, read as data: its inputs, its outputs and its operators; and its import."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import ModelError, OperatorRefused, Refusal, one_line
from autotune.tvm_backend.models.model import OpenInput, as_model_error
from autotune.tvm_backend.types import LiteOperator, ModelT

_IDENTIFIER = b"TFL3"  # at byte 4
_PACKAGES = ("tflite", "ai_edge_litert")
_NUMBERS = frozenset(
    {"BOOL", "FLOAT16", "FLOAT32", "FLOAT64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"}
)
OF_STATE = frozenset({"ASSIGN_VARIABLE", "READ_VARIABLE", "VAR_HANDLE"})  # of what is kept from run to run


@dataclass(frozen=True)
class Operator:
    """An operator of the main graph.

    Attributes:
        name: As TensorFlow Lite calls it, such as `CONV_2D`; of a custom one, its own name.
        custom: Whether it is no operator of TensorFlow Lite.
        inputs: The numbers of the tensors that it reads; those left out are missing.
        outputs: The numbers of the tensors that it makes.
        entry: What the file says of it.
    """

    name: str
    custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    entry: LiteOperator


class Flatbuffer:
    """A model in a file.

    Args:
        content: What to read in its place; None to read the file.

    Raises:
        ModelError: It cannot be read or is damaged, or a package that reads it is missing.

    Attributes:
        content: What is in it.
        model: The whole of it, as the package `tflite` has it.
        graph: The main graph.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        _check_packages(path)
        import tflite

        try:
            self.content = path.read_bytes() if content is None else content
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
        self.path = path
        with as_model_error(path, "is a damaged TensorFlow Lite model"):
            self.model = tflite.Model.GetRootAsModel(self.content, 0)
            self.graph = self.model.Subgraphs(0)
            self._types = {number: name for name, number in vars(tflite.TensorType).items() if name in _NUMBERS}
            self._names = {
                number: name for name, number in vars(tflite.BuiltinOperator).items() if isinstance(number, int)
            }
            self._operators = tuple(map(self._operator, range(self.graph.OperatorsLength())))

    def operators(self) -> tuple[Operator, ...]:
        """Return the operators in order."""
        return self._operators

    def inputs(self) -> list[OpenInput]:
        """Return the inputs in order.

        Raises:
            ModelError: An input is no tensor of numbers.
        """
        return list(map(self._input, self.input_numbers()))

    def input_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the tensors that are the inputs, in order."""
        return self._numbers(self.graph.InputsAsNumpy())

    def outputs(self) -> tuple[int, ...]:
        """Return the numbers of the tensors that are the outputs, in order."""
        return self._numbers(self.graph.OutputsAsNumpy())

    def name(self, number: int) -> str:
        """Return the name of a tensor."""
        return str((self.graph.Tensors(number).Name() or b"").decode("utf-8", "replace"))

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a tensor. An open dimension has the size that the converter gave it, which is 1."""
        tensor = self.graph.Tensors(number)
        return tuple(int(tensor.Shape(axis)) for axis in range(tensor.ShapeLength()))

    def is_constant(self, number: int) -> bool:
        """Return whether the file has the values of a tensor."""
        return bool(self.model.Buffers(self.graph.Tensors(number).Buffer()).DataLength())

    def check(self) -> None:
        """Check that a model has no operators but those of TensorFlow Lite, in floats or quantised as a whole.

        Raises:
            OperatorRefused: It has another; the first of them is named with the kinds of the others.
            ModelError: Two tensors have one name.
        """
        self._refuse(
            [item for item in self._operators if item.custom],
            "it is no operator of TensorFlow Lite",
            "convert the model without operators of its own",
        )
        self._refuse(
            list(filter(self._is_hybrid, self._operators)),
            "only its weights are quantised",
            "convert the model with a representative data set, or without quantisation",
        )
        made = Counter(self.name(number) for item in self._operators for number in item.outputs)
        made.update(map(self.name, self.input_numbers()))
        if several := [name for name, count in made.items() if count > 1]:
            raise ModelError(f"{self.path} has several tensors of the name {several[0]!r}, which TVM confuses")

    def _refuse(self, operators: Sequence[Operator], reason: str, advice: str) -> None:
        """Raise the error about operators that are not taken, if there are any: the first, and the kinds of others."""
        if not operators:
            return
        first = operators[0]
        others = ", ".join(sorted({item.name for item in operators} - {first.name}))
        node = ", ".join(map(self.name, first.outputs or first.inputs))
        reason += f"; so is it with {others}" if others else ""
        raise OperatorRefused.of(Refusal(first.name, one_line(node), reason, advice)).in_file(self.path)

    def _is_hybrid(self, operator: Operator) -> bool:
        """Whether an operator multiplies floats with quantised weights."""
        first, *others = operator.inputs or (0,)
        made = any(map(self._is_quantised, (first, *operator.outputs)))
        return not made and any(map(self._is_quantised, others))

    def _is_quantised(self, number: int) -> bool:
        tensor = self.graph.Tensors(number).Quantization()
        return tensor is not None and tensor.ScaleLength() > 0

    def _input(self, number: int) -> OpenInput:
        name = self.name(number)
        kind = self._types.get(self.graph.Tensors(number).Type())
        if kind is None:
            raise ModelError(f"{self.path}: input {name!r} has a type that NumPy lacks")
        return OpenInput(name, kind.lower(), self.shape(number))

    def _operator(self, index: int) -> Operator:
        entry = self.graph.Operators(index)
        code = self.model.OperatorCodes(entry.OpcodeIndex())
        name = self._names.get(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()), "an unknown one")
        custom = name == "CUSTOM"
        shown = (code.CustomCode() or b"").decode("utf-8", "replace") if custom else name
        inputs = self._numbers(entry.InputsAsNumpy())
        outputs = self._numbers(entry.OutputsAsNumpy())
        return Operator(one_line(shown), custom, inputs, outputs, entry)

    @staticmethod
    def _numbers(numbers: Any) -> tuple[int, ...]:
        """The numbers of tensors; the package has 0 for a list that is not there, and the file -1 for no tensor."""
        return () if isinstance(numbers, int) else tuple(int(number) for number in numbers if number >= 0)


def check_runs(flatbuffer: Flatbuffer) -> None:
    """Check that LiteRT takes a model: without it nothing can be verified.

    Raises:
        ModelError: It does not.
    """
    with as_model_error(flatbuffer.path, "is refused by LiteRT"):
        from ai_edge_litert.interpreter import Interpreter

        Interpreter(model_content=flatbuffer.content).allocate_tensors()


class LiteRtSession:
    """A model in LiteRT, without the kernels of XNNPACK, so that equal operators have equal results.

    Args:
        content: The file.
        keep: Whether what each operator makes can be read after a run.
    """

    def __init__(self, content: bytes, *, keep: bool = False) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        self._interpreter = Interpreter(
            model_content=content, experimental_op_resolver_type=plain, experimental_preserve_all_tensors=keep
        )
        self._interpreter.allocate_tensors()
        self.inputs = self._interpreter.get_input_details()

    def run(self, arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Run it once; returns its outputs."""
        for item, array in zip(self.inputs, arrays, strict=True):
            self._interpreter.set_tensor(item["index"], array)
        self._interpreter.invoke()
        return [self.value(item["index"]) for item in self._interpreter.get_output_details()]

    def value(self, number: int) -> npt.NDArray[Any]:
        """Return the value of a tensor."""
        return np.asarray(self._interpreter.get_tensor(number))


def unpacked(content: bytes) -> ModelT:
    """Return a model as objects that can be changed."""
    from ai_edge_litert import schema_py_generated as schema

    return schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))


def packed(model: ModelT) -> bytes:
    """Return the file of a model that is objects."""
    import flatbuffers

    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def is_flatbuffer(path: Path) -> bool:
    """Return whether a file is a model of TensorFlow Lite. Its name does not matter."""
    try:
        with path.open("rb") as file:
            return file.read(8)[4:] == _IDENTIFIER
    except OSError:
        return False


def _check_packages(path: Path) -> None:
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise ModelError(
            f"{path} is a TensorFlow Lite model, and {missing[0]} is not installed: pip install 'autotune-tvm[tflite]'"
        )
