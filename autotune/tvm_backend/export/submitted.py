"""The model of a job as it was submitted: what is compiled, and what it is verified and timed against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx

from autotune import devices
from autotune.devices import Device
from autotune.options import Activations, Constant
from autotune.processes.messages import ExportRequest
from autotune.storage.formats import INPUTS_VERSION, Entry, JobSpec
from autotune.storage.kept_objects import KeptObjects
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.models.gguf.decoder import KEYS, LOGITS, VALUES, Decoder
from autotune.tvm_backend.models.gguf.plain_text import english, tokens_of
from autotune.tvm_backend.models.gguf.tokenizer import end_tokens, tokenizer_json
from autotune.tvm_backend.models.hints import Hints, onnx_hints, pytorch_hints, tflite_hints
from autotune.tvm_backend.models.onnx.choices import with_outputs
from autotune.tvm_backend.models.onnx.counted import NO_COUNTS, CountedOutputs, counted_outputs
from autotune.tvm_backend.models.onnx.in_floats import in_floats
from autotune.tvm_backend.models.onnx.read import freeze, import_rewritten, open_dims, parse_file, read_rewritten
from autotune.tvm_backend.models.onnx.simplify import fix_shapes, graphs
from autotune.tvm_backend.models.onnx.snapshot import is_large
from autotune.tvm_backend.models.pytorch.archive import read_archive
from autotune.tvm_backend.models.pytorch.checked import output_names
from autotune.tvm_backend.models.pytorch.program import import_program
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer
from autotune.tvm_backend.models.tflite.program import import_flatbuffer
from autotune.tvm_backend.types import IRModule, ModelProto

_ROUNDING = frozenset({"ArgMax", "ArgMin", "Ceil", "Floor", "QAttention", "QuantizeLinear", "Round", "TopK"})
_RESIZING = frozenset({"Resize", "Upsample"})  # whose constants say how large the output is
_QUANTISING = ("DynamicQuantize", "QLinear")  # what the names of other operators that round begin with
_MOVED_TIMES = 4
_MOVED_UNITS = 4  # in the last place: what elementary functions and sums of float32 are off by in any runtime
_MOVED_SEED = 2026


class Submitted(Protocol):
    """A model as submitted, at one set of shapes.

    Attributes:
        runtime: The key of `timed_process.RUNTIMES` that runs it.
        title: The name of that runtime for the user.
        file: The copy of the model.
        kept: The inputs that the compiled model changes in place, and that it is handed again as they are.
        is_usual: Whether users have its runtime: the time of another, and how far it is from itself, say nothing.
        inputs_version: By which version of `drawn_inputs` its random inputs are drawn.
    """

    kept: tuple[str, ...] = ()
    is_usual: bool = True
    inputs_version: int = INPUTS_VERSION
    runtime: str
    title: str
    file: Path

    def module(self) -> IRModule:
        """Import it into a Relax module."""

    def hints(self) -> Hints:
        """Read what its operators say of its inputs and outputs."""

    def output_names(self) -> list[str]:
        """Return the names of its outputs in order."""

    def counted(self, more: Sequence[str] = ()) -> CountedOutputs:
        """Return which of its outputs have a count, and of these tensors, if they are outputs after its own."""
        return NO_COUNTS

    def open_dims(self) -> Mapping[str, tuple[str, ...]]:
        """Return the names of the dimensions of its inputs that the file leaves open; an empty one for others."""
        return {}

    def runner(self, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
        """Return a function that runs it once in this process."""

    def outputs(self, several: Iterable[Arrays], threads: int) -> Iterator[Arrays]:
        """Load it, and yield its outputs for several inputs."""

    def consistent(self, arrays: Arrays) -> Arrays:
        """Return random inputs as they are, or with some made of the others where they depend on each other."""
        return arrays

    def other_ways(self, arrays: Arrays, threads: int) -> Iterator[Arrays]:
        """Yield its outputs as its runtime computes them in other ways, which are as right as that of `runner`."""


class OnnxModel(Submitted):
    """An ONNX model. Where `submit` has rewritten it, that graph is compiled, and the file as submitted is verified."""

    runtime = "onnxruntime"
    title = "ONNX Runtime"

    def __init__(self, paths: JobPaths, index: int, entry: Entry, values: Mapping[str, Constant]) -> None:
        self.file = paths.model
        rewritten = paths.rewritten_model(index)
        self._rewritten = rewritten if rewritten.exists() else None
        self.inputs = entry.inputs
        self._values = values

    @cached_property
    def _said(self) -> tuple[Hints, bool, CountedOutputs]:
        """What the operators say, whether they round, and what has a count: the graph is parsed once for all."""
        graph = self.graph()
        return onnx_hints(graph), rounds(graph), counted_outputs(graph)

    def module(self) -> IRModule:
        return read_rewritten(self._rewritten or self.file, self.inputs).module

    def graph(self) -> ModelProto:
        """Return the graph that is compiled."""
        return parse_file(self._rewritten or self.file)

    def module_with(self, names: Sequence[str]) -> IRModule:
        """Import it with these tensors of `graph` as outputs, too, after its own."""
        return import_rewritten(self.file, with_outputs(self.graph(), names), self.inputs).module

    def hints(self) -> Hints:
        return self._said[0]

    def output_names(self) -> list[str]:
        return runners.output_names(self.file)

    def counted(self, more: Sequence[str] = ()) -> CountedOutputs:
        return counted_outputs(with_outputs(self.graph(), more)) if more else self._said[2]

    def open_dims(self) -> Mapping[str, tuple[str, ...]]:
        return open_dims(self.file)

    def runner(self, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
        session = runners.onnx_session(self.file, threads)
        return runners.onnx_runner(session, self.inputs, arrays, self._values)

    def outputs(self, several: Iterable[Arrays], threads: int, *, plain: bool = False) -> Iterator[Arrays]:
        session = runners.onnx_session(self.file, threads, plain=plain)
        for arrays in several:
            yield runners.onnx_runner(session, self.inputs, arrays, self._values)()

    def in_floats(self) -> ModelProto | None:
        """Return the graph as submitted without what it rounds to integers; None if there is no such form of it."""
        graph = fix_shapes(freeze(self.file, parse_file(self.file), self._values), self.inputs)
        return None if is_large(graph) else in_floats(graph)

    def other_ways(self, arrays: Arrays, threads: int) -> Iterator[Arrays]:
        yield from self.outputs([arrays], threads, plain=True)
        if threads > 1:
            yield from self.outputs([arrays], 1)
        # The graph that is compiled computes no sizes, which other constants would change.
        for content in with_moved_constants(self.graph()) if self._said[1] else ():
            session = runners.onnx_session(content, threads)
            yield runners.onnx_runner(session, self.inputs, arrays, self._values)()


def rounds(proto: ModelProto) -> bool:
    """Return whether a model rounds values as it runs, or chooses among them."""
    kinds = {node.op_type for graph in graphs(proto.graph) for node in graph.node}
    return bool(kinds & _ROUNDING) or any(kind.startswith(_QUANTISING) for kind in kinds)


def with_moved_constants(proto: ModelProto) -> Iterator[bytes]:
    """Yield a model several times, its float32 constants moved by some units in the last place.

    Of a model that rounds as it runs, as one with dynamic quantisation does, this shows how far its outputs jump. One
    of 2 GiB is not yielded at all.
    """
    nodes = [node for graph in graphs(proto.graph) for node in graph.node]
    sizes = {name for node in nodes if node.op_type in _RESIZING for name in node.input[1:]}
    generator = np.random.default_rng(_MOVED_SEED)
    for _ in range(0 if is_large(proto) else _MOVED_TIMES):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        for tensor in copy.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name not in sizes:
                values = onnx.numpy_helper.to_array(tensor)
                signs = np.where(generator.random(values.shape) < 0.5, -1, 1)
                moved = (values + signs * _MOVED_UNITS * np.spacing(values)).astype(np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
        yield copy.SerializeToString()


class TorchProgram(Submitted):
    """A program that PyTorch exported."""

    runtime = "torch"
    title = "PyTorch"

    def __init__(self, paths: JobPaths, entry: Entry) -> None:
        self.file = paths.program
        self._inputs = entry.inputs

    def module(self) -> IRModule:
        return import_program(self.file, self._inputs).module

    def hints(self) -> Hints:
        return pytorch_hints(read_archive(self.file).program)

    def output_names(self) -> list[str]:
        return output_names(read_archive(self.file).program)

    def runner(self, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
        return runners.torch_runner(self.file, arrays, threads)

    def outputs(self, several: Iterable[Arrays], threads: int) -> Iterator[Arrays]:
        return (self.runner(arrays, threads)() for arrays in several)

    def other_ways(self, arrays: Arrays, threads: int) -> Iterator[Arrays]:
        return iter(())


class LiteModel(Submitted):
    """A model of TensorFlow Lite."""

    runtime = "litert"
    title = "LiteRT"

    def __init__(self, paths: JobPaths) -> None:
        self.file = paths.flatbuffer

    def module(self) -> IRModule:
        return import_flatbuffer(Flatbuffer(self.file), {}, {}).module

    def hints(self) -> Hints:
        return tflite_hints(Flatbuffer(self.file))

    def output_names(self) -> list[str]:
        flatbuffer = Flatbuffer(self.file)
        return list(map(flatbuffer.name, flatbuffer.outputs()))

    def runner(self, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
        return runners.litert_runner(self.file, arrays, threads)

    def outputs(self, several: Iterable[Arrays], threads: int) -> Iterator[Arrays]:
        return (self.runner(arrays, threads)() for arrays in several)

    def other_ways(self, arrays: Arrays, threads: int) -> Iterator[Arrays]:
        if threads > 1:
            yield from self.outputs([arrays], 1)


class GgufModel(Submitted):
    """A language model in a GGUF file, for one number of tokens at a time."""

    runtime = "gguf"
    title = "NumPy"
    kept = (KEYS, VALUES)
    is_usual = False

    def __init__(self, paths: JobPaths, decoder: Decoder, entry: Entry) -> None:
        self.file = paths.gguf
        self._decoder = decoder
        self._rows = entry.inputs[0].shape[0]

    def module(self) -> IRModule:
        return self._decoder.model(self._rows).module

    def hints(self) -> Hints:
        rows = self._decoder.tables(self._rows)
        nothing = (0.0, 0.0)  # is drawn of the cache, which `consistent` fills
        return Hints(rows, rows, (False,), {KEYS: nothing, VALUES: nothing})

    def output_names(self) -> list[str]:
        return [LOGITS]

    def runner(self, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
        return partial(self._decoder.run, arrays)

    def outputs(self, several: Iterable[Arrays], threads: int) -> Iterator[Arrays]:
        return map(self._decoder.run, several)

    def tokenizer(self) -> str | None:
        """Return the content of `tokenizer.json`; None where the file's tokenizer is of a kind that is not known."""
        return tokenizer_json(self._decoder.network.file)

    def english(self) -> list[int] | None:
        """Return the tokens of some pages of English; None where the tokenizer is of a kind that is not known."""
        return tokens_of(self._decoder.network.file, english())

    def every_logits(self, ids: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the logits after each of some tokens, in float32, (rows, vocabulary) at a time."""
        return self._decoder.reference.every_logits(ids)

    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text."""
        return end_tokens(self._decoder.network)

    def consistent(self, arrays: Arrays) -> Arrays:
        return self._decoder.filled(arrays)

    def other_ways(self, arrays: Arrays, threads: int) -> Iterator[Arrays]:
        return iter(())


def submitted(paths: JobPaths, spec: JobSpec) -> list[Submitted]:
    """Return the model of a job at each of its sets of shapes."""
    models = models_of(paths, spec.all_entries, spec.values, spec.activations)
    for model in models:
        model.inputs_version = spec.inputs_version
    return models


def models_of(
    paths: JobPaths, entries: Sequence[Entry], values: Mapping[str, Constant], activations: Activations = "fp32"
) -> list[Submitted]:
    """Return the model in the folder of a job at each of these sets of shapes."""
    if paths.gguf.exists():
        decoder = Decoder.of_inputs(paths.gguf, entries[0].inputs, activations)
        return [GgufModel(paths, decoder, entry) for entry in entries]
    if paths.program.exists():
        return [TorchProgram(paths, entries[0])]
    if paths.flatbuffer.exists():
        return [LiteModel(paths)]
    return [OnnxModel(paths, index, entry, values) for index, entry in enumerate(entries)]


@dataclass(frozen=True)
class ExportJob:
    """A job to export: the request, the job, and its model at each set of shapes."""

    request: ExportRequest
    workspace: Workspace
    paths: JobPaths
    spec: JobSpec
    models: list[Submitted]

    @property
    def kept(self) -> KeptObjects | None:
        """The compiled kernels of the workspace; None where all are compiled together, as those of C++ source are."""
        return None if self.request.source else KeptObjects(self.workspace.objects, self.request.kept_bytes)

    @property
    def device(self) -> type[Device]:
        """The kind of device that the job is for."""
        return devices.kind_of(self.spec)
