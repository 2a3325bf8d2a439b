"""Modules of PyTorch that run the library that was exported for them, and run as they are until there is one.

    model = autotune.compile(module, (x,))                    # or torch.compile(module, backend="autotune")

A library is found by what the module computes and by its weights, in the registry that `export --register` writes. With
`submit` the module is put into the queue of a workspace where there is no library yet.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.api.job import Job
from autotune.api.libraries import ChosenLibrary, SoughtModel, choose
from autotune.api.queue import SubmitKeywords, jobs, submit_program
from autotune.errors import AutotuneError, BadInput, MachineProblem, one_line
from autotune.storage.job_files import read_spec
from autotune.storage.model_digest import ModelDigest
from autotune.tvm_backend.export.loadable import LIBRARY
from autotune.tvm_backend.export.loaded import LoadedModel, load

_STATIC = "_dynamo_static_input_type"  # by which Dynamo marks parameters and buffers among the inputs of a graph


@dataclass(frozen=True)
class _Weight:
    """A weight as it was when the library was chosen. Its version counts the changes in place."""

    tensor: Any
    version: int
    address: int

    @classmethod
    def of(cls, tensor: Any) -> _Weight:
        version = 0 if tensor.is_inference() else tensor._version
        return cls(tensor, version, tensor.data_ptr())

    def is_unchanged(self) -> bool:
        return _Weight.of(self.tensor) == self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Weight):
            return NotImplemented
        return (self.version, self.address) == (other.version, other.address) and self.tensor is other.tensor

    __hash__ = None  # type: ignore[assignment]


class Compiled:
    """A module that runs its library, where there is one for these inputs, and else the module itself.

    Attributes:
        module: The module.
        chosen: What runs it, and why.
        job: The job that it was submitted as; None if it was not.
    """

    def __init__(self, module: Callable[..., Any], chosen: str, job: Job | None = None) -> None:
        self.module = module
        self.chosen = chosen
        self.job = job
        self._library: LoadedModel | None = None
        self._weights: list[_Weight] = []
        self._kind: type = tuple

    def use(self, library: LoadedModel, program: Any) -> None:
        """Run a library, until one of the weights of its program is changed in place."""
        import torch

        from autotune.api.program_digest import weights_of

        self._library = library
        self._weights = [_Weight.of(tensor) for tensor in weights_of(program)]
        self._kind = program.call_spec.out_spec.type or torch.Tensor

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the module. Arguments and results are its own."""
        import torch

        if self._library is None or named or not self._fits(inputs):
            return self.module(*inputs, **named)
        arrays = [tensor.detach().numpy() for tensor in inputs]
        try:
            result = self._library(*arrays)
        except BadInput:  # of an index that its table lacks, say: PyTorch takes some, and words its own errors
            return self.module(*inputs)
        outputs = map(torch.from_numpy, result if isinstance(result, tuple) else (result,))
        return next(outputs) if self._kind is torch.Tensor else self._kind(outputs)

    def _fits(self, inputs: Sequence[Any]) -> bool:
        import torch

        assert self._library is not None
        if getattr(self.module, "training", False) or not all(weight.is_unchanged() for weight in self._weights):
            self._library = None
            self.chosen = "PyTorch: its weights were changed, or it is in training mode"
            return False
        wanted = list(self._library.inputs.values())
        if len(wanted) != len(inputs) or (torch.is_grad_enabled() and any(map(_needs_gradient, inputs))):
            return False
        return all(_is_such(tensor, *item) for tensor, item in zip(inputs, wanted, strict=True))


def _needs_gradient(tensor: Any) -> bool:
    return bool(getattr(tensor, "requires_grad", False))


def _is_such(tensor: Any, shape: tuple[int, ...], dtype: str) -> bool:
    import torch

    is_here = isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.layout is torch.strided
    return is_here and tuple(tensor.shape) == shape and str(tensor.dtype) == f"torch.{dtype}"


def compile(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    threads: int = 0,
    submit: bool = False,
    workspace: str | Path = ".",
    **options: Any,
) -> Compiled:
    """Return a module that runs the library that was exported for it, and runs as it is until there is one.

    The library computes no gradients, and takes inputs of the shapes and types of the examples. All else runs in the
    module. Weights that are changed in place are noticed, but not if that is done through `.data`.

    Args:
        module: A `torch.nn.Module` in evaluation mode.
        example_inputs: Its inputs: tensors.
        threads: How many threads it is to use; 0 for as many as there are.
        submit: Whether to put it into the queue if there is neither a library nor a job for it.
        workspace: The folder with that queue.
        options: Those of `autotune.submit`.

    Returns:
        The module. Its `chosen` says what runs it, and its `job` is what was submitted.

    Raises:
        BadInput: `submit` was asked for, and the module or an option cannot be submitted.
        MachineProblem: PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MachineProblem("autotune.compile is for modules of PyTorch, which is not installed")
    name = type(module).__name__
    if getattr(module, "training", False):
        return _told(name, Compiled(module, "PyTorch: it is in training mode; call eval() before"))
    keywords = SubmitKeywords(workspace=workspace, **options) if submit else None
    return _told(name, _compiled(module, name, tuple(example_inputs), threads, keywords))


def backend(graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Any:
    """Compile a graph of Dynamo: `torch.compile(model, backend="autotune", options={"submit": True})`.

    Args:
        graph: The graph.
        example_inputs: Its inputs; parameters and buffers are among them.
        options: `threads`, `submit`, `workspace` and the options of `autotune.submit`.
    """
    import torch

    places = [node.meta.get("tensor_dict", {}) for node in graph.graph.nodes if node.op == "placeholder"]
    static = [_STATIC in about for about in places]
    if not all(isinstance(item, torch.Tensor) for item in example_inputs):
        _say("a graph runs in PyTorch: it takes a size as an input, as dynamic shapes are")
        return graph.forward
    return _Deferred(graph, static, dict(options or {}))


class _Deferred:
    """A graph that is compiled when it is first called, which Dynamo's tracing is over by."""

    def __init__(self, graph: Any, static: Sequence[bool], options: dict[str, Any]) -> None:
        self._graph = graph
        self._static = static
        self._options = options
        self._compiled: Compiled | None = None
        self._weights: list[Any] = []

    def __call__(self, *given: Any) -> Any:
        import torch

        from autotune.api.program_digest import GraphModule

        weights = [item for item, static in zip(given, self._static, strict=True) if static]
        inputs = [item for item, static in zip(given, self._static, strict=True) if not static]
        if torch.is_grad_enabled() and any(map(_needs_gradient, given)):
            return self._graph(*given)
        if self._compiled is None:
            self._weights = weights
            bound = GraphModule(self._graph, self._static, weights)
            self._compiled = compile(bound, inputs, **self._options)
        if any(now is not then for now, then in zip(weights, self._weights, strict=True)):
            return self._graph(*given)
        result = self._compiled(*inputs)
        return result if isinstance(result, (tuple, list)) else (result,)


def _compiled(module: Any, name: str, inputs: tuple[Any, ...], threads: int, submit: SubmitKeywords | None) -> Compiled:
    import torch

    from autotune.api.program_digest import program_digest

    try:
        with torch.no_grad():
            program = torch.export.export(module, inputs)
        digest = program_digest(program)
    except Exception as error:  # of what the module runs, and of torch
        if submit is not None:
            raise BadInput(f"cannot submit this module: torch.export: {one_line(error)}") from error
        return Compiled(module, f"PyTorch: it cannot be exported: {one_line(error)}")
    choice = choose(SoughtModel(digest.bytes, lambda weights: digest, None), threads)
    if choice.folder is None:
        job = _submitted(program, name, digest, submit) if submit is not None else None
        queued = "" if job is None else f"; job {job.id} ({job.name}) of {job.workspace.root} tunes it"
        return Compiled(module, f"PyTorch: {choice.reason}{queued}", job)
    return _with_library(module, program, choice)


def _with_library(module: Any, program: Any, choice: ChosenLibrary) -> Compiled:
    assert choice.folder is not None
    try:
        library = load(choice.folder / LIBRARY, choice.report, int(choice.report["threads"]))
    except AutotuneError as error:
        return Compiled(module, f"PyTorch: {error}")
    if not _is_flat(program):
        return Compiled(module, "PyTorch: its outputs are not a tensor, or a tuple or list of tensors")
    compiled = Compiled(module, choice.reason)
    compiled.use(library, program)
    return compiled


def _is_flat(program: Any) -> bool:
    """Whether a program returns a tensor, or a tuple or list of them: what `Compiled` returns."""
    spec = program.call_spec.out_spec
    return bool(spec.is_leaf() or (spec.type in (tuple, list) and spec.num_leaves == spec.num_children))


def _submitted(program: Any, name: str, digest: ModelDigest, keywords: SubmitKeywords) -> Job:
    """Return the job of a program: that of an earlier run, or a new one."""
    same = [job for job in jobs(keywords.workspace) if read_spec(job.paths).digest == digest]
    return same[-1] if same else submit_program(program, name, digest, keywords)


def _told(name: str, compiled: Compiled) -> Compiled:
    _say(f"{name} runs in {compiled.chosen}")
    return compiled


def _say(line: str) -> None:
    sys.stderr.write(f"autotune: {one_line(line)}\n")
