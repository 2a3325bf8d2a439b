"""ONNX Runtime's Python interface, with the libraries of exports in it: a program changes one line.

    from autotune.onnxruntime import InferenceSession        # in place of `from onnxruntime import InferenceSession`
    import autotune.onnxruntime as onnxruntime               # in place of `import onnxruntime`

A session runs the library that was exported for this very file, on this CPU and with this number of threads, where
there is one that nobody else could have put there. What the library does not compute, such as other shapes, runs in
ONNX Runtime, which is then loaded with the model. Which of them runs, and why, is said once on standard error, and by
the property `chosen`.

All other names of this module are those of `onnxruntime`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import onnxruntime

from autotune.api.libraries import ChosenLibrary, SoughtModel, choose
from autotune.errors import AutotuneError, BadInput, BadState, one_line
from autotune.storage.model_digest import ModelDigest, digest_of, digest_of_bytes
from autotune.tvm_backend.export.folder import read_report
from autotune.tvm_backend.export.loadable import LIBRARY
from autotune.tvm_backend.export.loaded import LoadedModel, load
from autotune.tvm_backend.export.session_inputs import NodeArg, described_inputs, described_outputs, of_report

__all__ = ["InferenceSession", "NodeArg", "SessionOptions"]

_CPU = "CPUExecutionProvider"
_HOST = (_CPU, "AzureExecutionProvider")  # the latter runs nothing but operators of its own
_said: set[str] = set()


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(onnxruntime)})


class SessionOptions(onnxruntime.SessionOptions):  # type: ignore[misc]
    """The options of ONNX Runtime. Those that change what a model computes keep its library from being used."""

    changed_by = ""

    def add_initializer(self, *args: Any) -> None:
        """Give the model another weight, with which ONNX Runtime computes it."""
        self.changed_by = "add_initializer"
        super().add_initializer(*args)

    def add_external_initializers(self, *args: Any) -> None:
        """Give the model other weights, with which ONNX Runtime computes it."""
        self.changed_by = "add_external_initializers"
        super().add_external_initializers(*args)

    def add_external_initializers_from_files_in_memory(self, *args: Any) -> None:
        """Give the model other weights, with which ONNX Runtime computes it."""
        self.changed_by = "add_external_initializers_from_files_in_memory"
        super().add_external_initializers_from_files_in_memory(*args)

    def register_custom_ops_library(self, *args: Any) -> None:
        """Give ONNX Runtime other operators, with which it computes the model."""
        self.changed_by = "register_custom_ops_library"
        super().register_custom_ops_library(*args)


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session of ONNX Runtime, or a library in its place.

    It takes what ONNX Runtime's takes: the path of a model or its bytes. The path of a folder that `export` wrote, of
    which the user answers for its being theirs, is run without ONNX Runtime; what only that can do is refused by name.

    ONNX Runtime opens the model when something is asked that the library does not know. All methods are its own but for
    those here. Several threads may run a session; with a library they take turns.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a model.

        Args:
            path_or_bytes: The path of a model, its content, or the path of a folder that `export` wrote.
            sess_options: As in ONNX Runtime.
            providers: As in ONNX Runtime. With one that is no CPU and is there, the library is not used.
            provider_options: As in ONNX Runtime.
            kwargs: As in ONNX Runtime.

        Raises:
            BadInput: The folder has no exported model, or one that cannot be loaded here.
            DamagedFile: The library in the folder is not what was written.
            Exception: What ONNX Runtime raises.
        """
        self._opened = False
        self._opening = RLock()
        self._model = path_or_bytes
        self._arguments = (sess_options, providers, provider_options, kwargs)
        self._library: LoadedModel | None = None
        self._folder: Path | None = None
        if not isinstance(path_or_bytes, bytes) and os.path.isdir(path_or_bytes):
            self._folder = Path(path_or_bytes)
            self._choice = ChosenLibrary(self._folder, read_report(self._folder), f"the library in {path_or_bytes}")
            self._load(_threads(sess_options))
            return
        self._choice = _chosen(path_or_bytes, sess_options, providers)
        if self._choice.folder is not None:
            try:
                self._load(0)
            except AutotuneError as error:
                self._choice = ChosenLibrary(None, {}, str(error))
        _say(self._shown, f"{self._shown} runs in {self.chosen}")
        if self._library is None:
            self._open()

    def __getattr__(self, name: str) -> Any:
        """Return what only a session of ONNX Runtime has, which is opened for it."""
        if not name.startswith("__") and "_opening" in self.__dict__:
            with self._opening:
                if not self._opened:
                    self._open()
        return object.__getattribute__(self, name)

    @property
    def chosen(self) -> str:
        """What runs the model, and why."""
        return self._choice.reason if self._library is not None else f"ONNX Runtime: {self._choice.reason}"

    def get_inputs(self) -> Sequence[Any]:
        """Return the inputs of the model, as ONNX Runtime does."""
        return self._described[0] if self._library is not None else self._inputs_meta

    def get_outputs(self) -> Sequence[Any]:
        """Return the outputs of the model, as ONNX Runtime does."""
        return self._described[1] if self._library is not None else self._outputs_meta

    def get_providers(self) -> Sequence[str]:
        """Return the execution providers. A library is the CPU's."""
        return [_CPU] if self._library is not None and not self._opened else self._providers

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Give the session other providers. With one that is no CPU and is there, the library is not used any more."""
        super().set_providers(providers, provider_options)
        if other := _other_provider(providers):
            self._leave(f"{other} is asked for")

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """Run the model once.

        Args:
            output_names: The outputs to return; None for all.
            input_feed: The inputs by name.
            run_options: As in ONNX Runtime, which runs the model where there are some.

        Returns:
            The outputs in that order, as NumPy arrays.

        Raises:
            BadInput: The session is of a folder, whose library does not take these inputs.
            Exception: What ONNX Runtime raises.
        """
        if self._library is None:
            return super().run(output_names, input_feed, run_options)
        why = "run_options are given" if run_options is not None else ""
        try:
            if not why:
                return self._by_library(output_names, input_feed)
        except BadInput as error:
            why = str(error)
        if self._folder is not None:
            raise BadInput(f"{self._folder}: {why}")
        line = f"{self._shown}: what the library does not take runs in ONNX Runtime; the first: {why}"
        _say(f"{self._shown}: other", line)
        return super().run(output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """Run the model once on `OrtValue`s, and return such. Arguments and errors are those of `run`."""
        if self._library is None or not all(value.device_name() == "cpu" for value in input_dict_ort_values.values()):
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)
        arrays = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        outputs = self.run(output_names, arrays, run_options)
        return [onnxruntime.OrtValue.ortvalue_from_numpy(output) for output in outputs]

    def _by_library(self, output_names: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """Run the library. BadInput is raised for what it would compute otherwise than ONNX Runtime, or not at all."""
        assert self._library is not None
        names = [item["name"] for item in self._choice.report["outputs"]]
        wanted = list(output_names) if output_names else names
        if unknown := [name for name in wanted if name not in names]:
            raise BadInput(f"the model has no output {unknown[0]!r}")
        result = self._library(**_taken(feed, self._library, self._choice.report.get("values") or {}))
        outputs = result if isinstance(result, tuple) else (result,)
        by_name = dict(zip(names, outputs, strict=True))
        return [by_name[name] for name in wanted]

    @cached_property
    def _described(self) -> tuple[Sequence[Any], Sequence[Any]]:
        if self._folder is not None:
            return of_report(self._choice.report)
        import onnx

        content = self._model if isinstance(self._model, bytes) else Path(self._model).read_bytes()
        self._check_unchanged()
        proto = onnx.load_model_from_string(content)
        inputs = described_inputs(proto)
        outputs = described_outputs(proto, lambda index: self._outputs_meta[index].shape)
        return (self._inputs_meta if inputs is None else inputs), (self._outputs_meta if outputs is None else outputs)

    @property
    def _shown(self) -> str:
        return "the model" if isinstance(self._model, bytes) else os.fspath(self._model)

    def _load(self, threads: int) -> None:
        assert self._choice.folder is not None
        report = self._choice.report
        threads = threads or int(report.get("threads") or 0)
        self._library = load(self._choice.folder / LIBRARY, report, threads)

    def _leave(self, why: str) -> None:
        self._library = None
        self._choice = ChosenLibrary(None, {}, why)
        _say(f"{self._shown}: {why}", f"{self._shown} runs in {self.chosen}")

    def _open(self) -> None:
        """Open the model with ONNX Runtime, if it is still the one that the library was chosen for."""
        if self._folder is not None:
            raise BadState(f"{self._folder} is a library, without the model: open the model's file for what is asked")
        if self._library is not None:
            self._check_unchanged()
        self._opened = True
        options, providers, provider_options, kwargs = self._arguments
        try:
            super().__init__(self._model, options, providers, provider_options, **kwargs)
        except BaseException:
            self._opened = False
            raise

    def _check_unchanged(self) -> None:
        digest = self._choice.report["digest"]
        if isinstance(self._model, bytes) or asdict(digest_of(Path(self._model), digest["weights"])) == digest:
            return
        raise BadState(f"{self._shown} was changed since this session was opened; open it again")


def _threads(options: Any) -> int:
    return 0 if options is None else int(options.intra_op_num_threads)


def _chosen(model: str | bytes | os.PathLike[str], options: Any, providers: Sequence[Any] | None) -> ChosenLibrary:
    """Choose the library for a model, if nothing that was asked for needs ONNX Runtime."""
    why = _needs_onnxruntime(options, providers)
    if why:
        return ChosenLibrary(None, {}, why)
    if isinstance(model, bytes):
        by_content = SoughtModel(len(model), _only_inline(lambda weights: digest_of_bytes(model)), None)
        return choose(by_content, _threads(options))
    path = Path(model)
    try:
        size = path.stat().st_size
    except OSError as error:
        return ChosenLibrary(None, {}, error.strerror or "it cannot be read")
    return choose(SoughtModel(size, lambda weights: digest_of(path, weights), path.parent), _threads(options))


def _only_inline(digest: Callable[[Iterable[str]], ModelDigest]) -> Callable[[Iterable[str]], ModelDigest]:
    def checked(weights: Iterable[str]) -> ModelDigest:
        if names := list(weights):
            raise BadInput(f"the model is in memory, and its weights are in {names[0]}")
        return digest(weights)

    return checked


def _needs_onnxruntime(options: Any, providers: Sequence[Any] | None) -> str:
    """Return what was asked for that only ONNX Runtime does; empty if nothing was."""
    if other := _other_provider(providers):
        return f"{other} is asked for"
    if options is None:
        return ""
    if changed := getattr(options, "changed_by", ""):
        return f"{changed} was called"
    if options.enable_profiling:
        return "enable_profiling is set"
    return "optimized_model_filepath is set" if options.optimized_model_filepath else ""


def _other_provider(providers: Sequence[Any] | None) -> str:
    """Return the first provider that would run the model and is no CPU; empty if there is none."""
    names = [item if isinstance(item, str) else item[0] for item in providers or ()]
    there = [name for name in names if name in onnxruntime.get_available_providers() and name not in _HOST]
    return there[0] if there else ""


def _taken(feed: Mapping[str, Any], library: LoadedModel, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that the library takes. Those that are constants in it must have these values."""
    arrays: dict[str, Any] = {}
    for name, value in feed.items():
        if isinstance(value, onnxruntime.OrtValue):
            value = value.numpy()
        if not isinstance(value, np.ndarray | np.generic):
            raise BadInput(f"input {name!r} is no array")
        if name not in values:
            arrays[name] = value
        elif not np.array_equal(np.ravel(value), np.ravel(values[name])):
            raise BadInput(f"input {name!r} is {one_line(value)}; the library is for {values[name]}")
    for name, (_, dtype) in library.inputs.items():
        if name in arrays and arrays[name].dtype != dtype:
            raise BadInput(f"input {name!r} has type {arrays[name].dtype}; the model takes {dtype}")
    return arrays


def _say(about: str, line: str) -> None:
    """Write a line to standard error, once for what it is about."""
    if about not in _said:
        _said.add(about)
        sys.stderr.write(f"autotune: {one_line(line)}\n")
