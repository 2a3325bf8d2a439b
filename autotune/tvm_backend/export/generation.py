"""A loaded language model: states that keep tokens, and tokens that follow others.

`run.py`, which an export writes, has the source of the functions at the end in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import BadInput
from autotune.tvm_backend.export.host_tensors import HostTensors
from autotune.tvm_backend.export.loadable import Input, Language
from autotune.tvm_backend.export.loaded import open_library
from autotune.tvm_backend.types import DeviceArray, Kernel

Logits = npt.NDArray[np.float32]
_IDS = 0  # where tokens are among the inputs of a function
_CACHE = 3  # where the cache begins


def load_language(
    library: Path, report: Mapping[str, Any], threads: int = 0, *, check_weights: bool = False
) -> LanguageModel:
    """Load an exported language model. Arguments and errors are those of `loaded.load`."""
    opened = open_library(library, report, threads, check_weights=check_weights)
    if opened.told.language is None:
        raise BadInput(f"{library} is no language model; load it with Exported.open(...).load()")
    return LanguageModel(opened.functions, opened.told.functions, opened.told.language)


class LanguageModel:
    """A language model that writes tokens. Its states share its weights.

    Threads take turns, because TVM's virtual machine keeps its registers between calls.

    Attributes:
        context: How many tokens a state has room for.
        vocabulary: How many tokens there are.
        end: Those that end a text.
    """

    def __init__(
        self, functions: Mapping[str, Kernel], entries: Mapping[str, Sequence[Input]], language: Language
    ) -> None:
        self._functions = {inputs[_IDS].shape[0]: functions[name] for name, inputs in entries.items()}
        inputs = next(iter(entries.values()))
        self._cache = [(item.shape, item.dtype) for item in inputs[_CACHE:]]
        self._turn = threading.Lock()
        self.context: int = inputs[-1].shape[2]
        self.vocabulary: int = inputs[_IDS].rows
        self.end = language.end

    def state(self) -> State:
        """Return a state without tokens. It has memory of its own, for as many tokens as the context has."""
        return State(self, self._cache)

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> Iterator[int]:
        """Yield the tokens that follow some, each as soon as it is known, until one ends the text.

        Args:
            ids: The tokens before.
            max_tokens: How many tokens are yielded at most.
            temperature: 0 for the most likely token each time; otherwise what logits are divided by.
            top_k: Only so many of the most likely tokens are drawn from; 0 for all.
            top_p: Only the most likely tokens that have this probability together are drawn from.
            seed: Of the draws; None for another each time.

        Raises:
            BadInput: There are no tokens, one of them does not exist, a number makes no sense, or the context is full.
        """
        try:
            check_sampling(max_tokens, temperature, top_k, top_p)
        except ValueError as error:
            raise BadInput(str(error)) from None
        state = self.state()
        generator = np.random.default_rng(seed)
        given = list(ids)
        for _ in range(max_tokens):
            token = choose_token(state.step(given), temperature, top_k, top_p, generator)
            if token in self.end:
                return
            yield token
            given = [token]

    def run(self, ids: Sequence[int], past: int, cache: Sequence[DeviceArray]) -> Logits:
        """Run the model on tokens that `check_tokens` has accepted, and return the logits after the last one.

        Args:
            past: How many are in the cache before.
            cache: Keys and values. They are changed.
        """
        logits: Any = None
        with self._turn:
            for start, size, count in plan_parts(len(ids), past, sorted(self._functions), self.context):
                rows = np.zeros(size, np.int32)
                rows[:count] = ids[start : start + count]
                numbers = (np.array([number], np.int32) for number in (past + start, count - 1))
                tensors = HostTensors([((size,), "int32"), ((1,), "int32"), ((1,), "int32")])
                logits = self._functions[size](*tensors.fill([rows, *numbers]), *cache)
            return np.array(np.from_dlpack(logits)[0])


class State:
    """The tokens that a language model has read, as it keeps them.

    Attributes:
        length: How many there are.
    """

    def __init__(self, model: LanguageModel, cache: Sequence[tuple[tuple[int, ...], str]]) -> None:
        self._model = model
        self._cache = HostTensors(cache).tensors
        self.length = 0

    def step(self, ids: Sequence[int]) -> Logits:
        """Read more tokens, and return the logits of the one that follows them, (vocabulary,).

        Raises:
            BadInput: There are no tokens, one of them does not exist, or there is no room for them. Nothing is changed.
        """
        tokens = [int(token) for token in ids]
        try:
            check_tokens(tokens, self.length, self._model.vocabulary, self._model.context)
        except ValueError as error:
            raise BadInput(str(error)) from None
        logits = self._model.run(tokens, self.length, self._cache)
        self.length += len(tokens)
        return logits

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0


def check_tokens(ids: Sequence[int], past: int, vocabulary: int, context: int) -> None:
    """Check that a model can read tokens: a kernel would read elsewhere, or overwrite what it keeps.

    Args:
        past: How many it has read before.
        vocabulary: How many tokens there are.
        context: How many it has room for.

    Raises:
        ValueError: There are none, one of them does not exist, or there is no room for them.
    """
    if not ids:
        raise ValueError("there are no tokens to read; give one at least")
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise ValueError(f"there is no token {wrong[0]}; the model has {vocabulary}, counted from 0")
    if past + len(ids) > context:
        raise ValueError(
            f"the context is full: it has room for {context} tokens, {past} are kept, and {len(ids)} more were given;"
            " begin anew, or submit the model with a larger --context"
        )


def check_sampling(max_tokens: int, temperature: float, top_k: int, top_p: float) -> None:
    """Check the numbers that say how tokens are chosen.

    Raises:
        ValueError: One of them makes no sense.
    """
    if max_tokens < 0:
        raise ValueError(f"max_tokens is {max_tokens}; give 0 or more")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; give 0 or more")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; give 0 for all tokens, or how many")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; give a probability above 0, up to 1")


def plan_parts(count: int, past: int, sizes: Sequence[int], context: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts in which tokens are read: the first token, the size of the function, and how many it reads.

    A function for more tokens than are left is used from a quarter of its size on, where the context has room for it.

    Args:
        past: How many were read before.
        sizes: How many tokens the functions read, in ascending order; the first reads one.
        context: How many tokens there is room for.
    """
    start = 0
    while start < count:
        left = count - start
        room = context - past - start
        fitting = [size for size in sizes if size <= room and 4 * left >= size]
        size = fitting[-1] if fitting else sizes[0]
        yield start, size, min(size, left)
        start += min(size, left)


def choose_token(logits: Any, temperature: float, top_k: int, top_p: float, generator: Any) -> int:
    """Return a token by its logits: the most likely one at temperature 0, otherwise one that is drawn."""
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    if top_k:
        order = order[:top_k]
    weights = np.exp((logits[order].astype(np.float64) - logits[order[0]]) / temperature)
    weights /= weights.sum()
    kept = int(np.searchsorted(np.cumsum(weights), top_p)) + 1
    likely = weights[:kept]
    return int(generator.choice(order[:kept], p=likely / likely.sum()))
