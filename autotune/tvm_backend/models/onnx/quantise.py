"""Quantise an ONNX model to 8 bits with ONNX Runtime's quantiser, and find out what that costs.

The recipe: QDQ operators, activations in unsigned bytes with a scale each, weights in signed bytes with a scale for
each channel, ranges from the least and the greatest value on the calibration data. What has no kernel for bytes stays
in floats. In a network without convolutions only products with constants are quantised, and what they put out stays
in floats: attention and normalisation lose too much.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import resource
import shlex
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from autotune.errors import ModelError, first_line
from autotune.processes.keeper import CommandLimits, Keeper
from autotune.storage.quantisation import Quantisation
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.models.arrays_file import ArraysFile, opened
from autotune.tvm_backend.models.onnx.mixed import Arrays, MixedGraph, mixed, name_nodes
from autotune.tvm_backend.models.onnx.operators.nodes import opset_of
from autotune.tvm_backend.models.onnx.simplify import open_session
from autotune.tvm_backend.types import ModelProto, ValueInfoProto

_OLDEST = 13  # opset: scales for each channel
_FEW = 8  # samples
_LABELS = "labels"
# What a command of the user may use. The import that waits for it has its own limits.
_ANY = CommandLimits(timeout_s=1e9, file_bytes=resource.RLIM_INFINITY, output_bytes=1 << 16)
_PRODUCTS = ("Gemm", "MatMul")
# Operators that have kernels for bytes, in a network with convolutions.
_QUANTISED = (
    *_PRODUCTS,
    *("Add", "AveragePool", "Clip", "Concat", "Conv", "Flatten", "GlobalAveragePool", "HardSigmoid", "HardSwish"),
    *("LeakyRelu", "MaxPool", "Mul", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Squeeze", "Tanh", "Transpose"),
    "Unsqueeze",
)


def quantise(
    path: Path, proto: ModelProto, calibration: Path, max_drop: float | None = None, accuracy: str = ""
) -> tuple[ModelProto, Quantisation]:
    """Quantise a model, but for the layers that have to stay in floats.

    Args:
        path: The file that it is from, for errors.
        calibration: A file of NumPy with an array for each input. Its first axis counts samples, or the rows of the
            batches that the model takes. It may have the right answers, too: an array `labels`, of indices.
        max_drop: By which part the answers on the calibration data may become worse; None for any.
        accuracy: The command that prints how good outputs are, as `score` runs it; "" for none.

    Returns:
        The quantised model, and what quantising it cost on the calibration data.

    Raises:
        ModelError: The data do not fit the model, or ONNX Runtime cannot quantise it.
    """
    if any(node.op_type in ("QuantizeLinear", "QLinearConv", "QLinearMatMul") for node in proto.graph.node):
        raise ModelError(f"{path} is quantised already; leave --precision int8 out")
    weights = {item.name for item in proto.graph.initializer}
    inputs = [item for item in proto.graph.input if item.name not in weights]
    samples = read_samples(calibration, inputs)
    has_labels = not accuracy and all(item.name != _LABELS for item in inputs)
    labels = read_labels(calibration) if has_labels else None
    with scratch_folder("quantise") as folder, _judge(accuracy) as judge:
        try:
            source = _simplified(proto, Path(folder) / "simplified.onnx")
            quantised = _quantised(source, samples, Path(folder) / "quantised.onnx")
            answers = _Answers(proto, samples, labels, judge)
            whole = answers.cost(quantised)
            if max_drop is None or whole.within(max_drop):
                return quantised, whole
            return mixed(MixedGraph(source, quantised, samples[0]), answers.cost, answers.few().cost, whole, max_drop)
        except ModelError:
            raise
        except Exception as error:  # ONNX, ONNX Runtime and its quantiser have no common class of exceptions
            raise ModelError(f"cannot quantise {path} with {calibration}: {first_line(error)}") from error


def read_samples(path: Path, inputs: Sequence[ValueInfoProto]) -> list[Arrays]:
    """Return the inputs in a file, sample by sample.

    Raises:
        ModelError: It cannot be read, lacks an input, or has other numbers of samples for another input.
    """
    with opened(path, ModelError) as file:
        missing = [item.name for item in inputs if item.name not in file.names]
        if missing:
            names = ", ".join(item.name for item in inputs)
            raise ModelError(f"{path} has no array {missing[0]!r}; the model's inputs: {names}")
        batches = {item.name: _batches(path, item, file) for item in inputs}
    counts = {len(item) for item in batches.values()}
    if len(counts) != 1 or 0 in counts:
        shown = ", ".join(f"{name} {len(item)}" for name, item in batches.items())
        raise ModelError(f"{path} must have as many samples of each input, at least one: {shown}")
    return [{name: item[index] for name, item in batches.items()} for index in range(counts.pop())]


def read_labels(path: Path) -> npt.NDArray[Any] | None:
    """Return the right answers in a file of samples, one after the other; None if there are none.

    Raises:
        ModelError: They are no indices.
    """
    with opened(path, ModelError) as file:
        labels = file.read(_LABELS) if _LABELS in file.names else None
    if labels is not None and labels.dtype.kind not in "iu":
        raise ModelError(f"{path}: labels are the indices of the right answers, and these are {labels.dtype}")
    return None if labels is None else np.asarray(labels).ravel()


Judge = Callable[[Mapping[str, Sequence[npt.NDArray[Any]]]], float]


@contextmanager
def _judge(command: str) -> Iterator[Judge | None]:
    """Return what scores outputs by a command of the user; None without one. Nothing of the command is left behind."""
    if not command:
        yield None
        return
    with closing(Keeper()) as keeper:
        yield partial(score, keeper, command)


def score(keeper: Keeper, command: str, outputs: Mapping[str, Sequence[npt.NDArray[Any]]]) -> float:
    """Return the number that a command prints for outputs: the last line of what it prints.

    The path of a file of NumPy is added to its words. The file has an array for each output, by its name, whose first
    axis counts the runs of the model. Where shapes differ between runs, there are NAME/0, NAME/1 and so on instead.

    Raises:
        ModelError: It cannot be run, fails, or prints something else.
    """
    with scratch_folder("outputs") as folder:
        file = Path(folder) / "outputs.npz"
        _save(file, outputs)
        ended = keeper.run([*_words(command), str(file)], os.getcwd(), os.environ, _ANY)
    if not ended.succeeded:
        raise ModelError(f"the command {command!r} of --accuracy {ended.fault}")
    said = ended.output.strip().splitlines() or ["nothing"]
    try:
        number = float(said[-1])
    except ValueError:
        number = math.nan
    if not (said[-1].isascii() and math.isfinite(number)):
        raise ModelError(f"the command {command!r} of --accuracy must print a number, and prints {said[-1]!r}")
    return number


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ModelError(f"cannot read the command {command!r} of --accuracy: {error}") from error


def _save(file: Path, outputs: Mapping[str, Sequence[npt.NDArray[Any]]]) -> None:
    """Write outputs as `score` describes; `numpy.savez` takes some names for its own."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, arrays in outputs.items():
            same = len({array.shape for array in arrays}) == 1
            members = {name: np.stack(arrays)} if same else {f"{name}/{run}": item for run, item in enumerate(arrays)}
            for member, array in members.items():
                with archive.open(f"{member}.npy", "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)


def _batches(path: Path, item: ValueInfoProto, file: ArraysFile) -> list[npt.NDArray[Any]]:
    """The arrays that a model is run with, one after the other."""
    dims = item.type.tensor_type.shape.dim
    rank = len(dims)
    shape = file.header(item.name).shape
    batch = max(dims[0].dim_value, 1) if rank else 1
    sample = dims if len(shape) == rank + 1 else dims[1:]
    fits = len(shape) > len(sample) and all(
        size == dim.dim_value or dim.dim_value <= 0 for size, dim in zip(shape[1:], sample, strict=False)
    )
    if len(shape) not in (rank, rank + 1) or not fits or (len(shape) == rank and shape[0] % batch):
        wanted = "x".join(str(dim.dim_value or dim.dim_param or "?") for dim in dims) or "a scalar"
        given = "x".join(map(str, shape)) or "a scalar"
        raise ModelError(f"{path}: {item.name!r} is {given}, which is no row of samples of {wanted}")
    array = _converted(path, item, file.read(item.name))
    if len(shape) == rank + 1:
        return list(array)
    return [array[first : first + batch] for first in range(0, len(array), batch)]


def _converted(path: Path, item: ValueInfoProto, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array in the type that the model takes."""
    wanted = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
    with np.errstate(all="ignore"):  # what does not fit is told
        converted = array.astype(wanted)
    if converted.dtype.kind not in "biu" and not np.isfinite(converted).all():
        raise ModelError(f"{path}: {item.name!r} has elements that are no finite numbers as {wanted}")
    if converted.dtype.kind in "biu" and not np.array_equal(converted, array):
        raise ModelError(f"{path}: {item.name!r} is {array.dtype}, and has elements that {wanted} has not")
    return converted


def _simplified(proto: ModelProto, result: Path) -> ModelProto:
    """Fold constants and batch normalisation, which the quantiser does not do."""
    newer = proto if opset_of(proto) >= _OLDEST else onnx.version_converter.convert_version(proto, _OLDEST)
    open_session(newer, (), result)
    return name_nodes(onnx.load(str(result)))


def _quantised(source: ModelProto, samples: Sequence[Arrays], result: Path) -> ModelProto:
    convolutional = any(node.op_type == "Conv" for node in source.graph.node)
    # Clips that bytes would do by themselves stay: without them a layer could not be had in floats.
    options: dict[str, Any] = {"MatMulConstBOnly": True, "QDQKeepRemovableActivations": True}
    if not convolutional:
        options["OpTypesToExcludeOutputQuantization"] = list(_PRODUCTS)
    with _quiet():
        quantize_static(
            copy.deepcopy(source),  # the quantiser moves the weights of what it is given to a file
            result,
            _Samples(samples),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_QUANTISED if convolutional else _PRODUCTS),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options=options,
        )
    return onnx.load(str(result))


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Gives the quantiser a sample after the other, and None at the end."""

    def __init__(self, samples: Sequence[Arrays]) -> None:
        self._left = iter(samples)

    def get_next(self) -> Arrays | None:
        return next(self._left, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the quantiser's advice from standard error: what it recommends is done already."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


class _Answers:
    """The outputs of a model on samples, which those of its quantised forms are compared with.

    Both run without optimisations, so that a quantised one computes what it says and saturates nowhere.
    """

    def __init__(
        self, proto: ModelProto, samples: Sequence[Arrays], labels: npt.NDArray[Any] | None, judge: Judge | None
    ) -> None:
        session = open_session(proto, ())
        self._names = [item.name for item in session.get_outputs()]
        self._judge = judge
        self._samples = samples
        self._exact = [session.run(None, dict(sample)) for sample in samples]
        self._labels = labels
        self._answers = list(map(_top, self._exact))
        count = sum(item.size for item in self._answers)
        if labels is not None and labels.size != count:
            raise ModelError(f"there are {labels.size} labels, and {count} answers")
        if labels is not None and count:
            _check_labels(labels, [item.size for item in self._answers], list(map(_classes, self._exact)))
        self._score = self._scored(self._exact)

    def few(self) -> _Answers:
        """Those of the first samples, for what is asked often: the errors of its outputs."""
        few = copy.copy(self)
        few._samples = self._samples[:_FEW]
        few._exact = self._exact[:_FEW]
        few._answers = self._answers[:_FEW]
        few._labels = None
        few._judge = None
        return few

    def cost(self, quantised: ModelProto) -> Quantisation:
        session = open_session(quantised, ())
        outputs = [session.run(None, dict(sample)) for sample in self._samples]
        pairs = (pair for sets in zip(self._exact, outputs, strict=True) for pair in zip(*sets, strict=True))
        error = max(_difference(*pair) for pair in pairs)
        if not math.isfinite(error):
            raise ModelError("on the calibration data the model puts out NaN or infinity, or does in int8")
        answers = list(map(_top, outputs))
        cost = Quantisation(len(self._samples), error, _agreement(answers, self._answers))
        if self._judge:
            return replace(cost, score=self._scored(outputs), score_before=self._score)
        if self._labels is None:
            return cost
        labels = np.split(self._labels, np.cumsum([item.size for item in self._answers])[:-1])
        right, right_before = (_agreement(item, labels) for item in (answers, self._answers))
        return replace(cost, right=right, right_before=right_before)

    def _scored(self, outputs: Sequence[Sequence[npt.NDArray[Any]]]) -> float | None:
        if self._judge is None:
            return None
        by_output = zip(self._names, zip(*outputs, strict=True), strict=True)
        return self._judge(dict(by_output))


def _top(outputs: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The place of the largest element in each row of the first output of a sample."""
    first = np.atleast_1d(outputs[0])
    return first.argmax(axis=-1).ravel() if first.shape[-1] else np.zeros(0, np.int64)


def _classes(outputs: Sequence[npt.NDArray[Any]]) -> int:
    """How many elements a row of the first output has."""
    return int(np.atleast_1d(outputs[0]).shape[-1])


def _check_labels(labels: npt.NDArray[Any], answers: Sequence[int], counts: Sequence[int]) -> None:
    """Check that there are classes of these numbers, given how many answers and classes each sample has.

    Raises:
        ModelError: One has none: as no answer would ever be right, no drop would ever be seen.
    """
    classes = np.repeat(counts, answers)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        place = int(wrong[0])
        raise ModelError(
            f"label {place} of the calibration data is {labels[place]}; the model has {classes[place]} classes,"
            " counted from 0"
        )


def _agreement(answers: Sequence[npt.NDArray[Any]], others: Sequence[npt.NDArray[Any]]) -> float:
    """Which part of the answers to all samples is the same. Of a sample with more or fewer answers, none is."""
    pairs = list(zip(answers, others, strict=True))
    same = sum(int((one == other).sum()) for one, other in pairs if one.shape == other.shape)
    count = sum(max(one.size, other.size) for one, other in pairs)
    return same / count if count else 1.0


def _difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    if one.shape != other.shape:
        return 1.0
    if one.dtype.kind != "f" or not one.size:
        return 0.0
    return float(np.abs(one - other).max() / max(float(np.abs(one).max()), 1e-30))
