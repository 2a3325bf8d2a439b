"""A language model in a GGUF file: what is imported of it for some tokens at a time, and its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import ModelError
from autotune.options import Activations, InputSpec
from autotune.storage.formats import ShapeBinding
from autotune.tvm_backend.models.gguf.graph import (
    IDS,
    KEYS,
    LAST,
    LOGITS,
    PAST,
    VALUES,
    Weights,
    build_graph,
    input_specs,
)
from autotune.tvm_backend.models.gguf.network import DecoderFile, read_network
from autotune.tvm_backend.models.gguf.reference import LANES, DecoderReference, empty_cache
from autotune.tvm_backend.models.model import Model, as_model_error

__all__ = ["KEYS", "LOGITS", "TOKENS", "VALUES", "Decoder"]

Array = npt.NDArray[Any]
TOKENS = "tokens"  # the dimension that sets of shapes differ in
_AT_A_TIME = (1, 16, 64, 256)
_DEFAULT_CONTEXT = 2048
_MAX_PAST = 128  # tokens before those that a model is verified on
_SEED = 2026


@dataclass(frozen=True)
class Decoder:
    """A language model with room for some tokens.

    Attributes:
        network: What its file says.
        context: How many tokens its cache has room for, a multiple of 16.
        activations: What activations are where packed weights multiply them.
        weights: Its constants. All numbers of tokens share them.
        reference: What it is verified against.
    """

    network: DecoderFile
    context: int
    activations: Activations
    weights: Weights = field(repr=False)
    reference: DecoderReference = field(repr=False)

    @classmethod
    def read(cls, path: Path, context: int | None, activations: Activations) -> Decoder:
        """Read a file.

        Args:
            context: How many tokens the cache has room for; it is rounded up to a multiple of 16. None for the default.
            activations: What activations are where packed weights multiply them.

        Raises:
            ModelError: The file is damaged, its decoder is not known, or was trained for fewer tokens.
        """
        network = read_network(path)
        if context is not None and context > network.context:
            raise ModelError(f"{path} was trained for {network.context} tokens; give no more with --context")
        wanted = context or min(network.context, _DEFAULT_CONTEXT)
        return cls._of(network, -(-wanted // LANES) * LANES, activations)

    @classmethod
    def of_inputs(cls, path: Path, inputs: Sequence[InputSpec], activations: Activations) -> Decoder:
        """Read the file of a job whose graphs have such inputs. Errors are those of `read`."""
        (values,) = (item for item in inputs if item.name == VALUES)
        return cls._of(read_network(path), values.shape[2], activations)

    @classmethod
    def _of(cls, network: DecoderFile, context: int, activations: Activations) -> Decoder:
        weights = Weights(network, in_bytes=activations == "int8")
        return cls(network, context, activations, weights, DecoderReference(network))

    def shapes(self) -> tuple[ShapeBinding, ...]:
        """Return a set of shapes for each number of tokens that are computed together."""
        sizes = [size for size in _AT_A_TIME if size <= self.context]
        return tuple(ShapeBinding(_name(size), dims={TOKENS: size}) for size in sizes)

    def model(self, tokens: int) -> Model:
        """Import it for so many tokens at a time."""
        with as_model_error(self.network.file.path, "cannot be imported"):
            module = build_graph(self.weights, tokens, self.context)
        return Model(module, input_specs(self.weights, tokens, self.context), (LOGITS,))

    def tables(self, tokens: int) -> dict[str, int]:
        """Return how many values inputs may have, by name: no index leads out of the table of tokens or the cache."""
        return {IDS: self.network.sizes.vocabulary, PAST: self.context - tokens + 1, LAST: tokens}

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for inputs, as the reference computes them."""
        return self.reference.outputs(arrays)

    def filled(self, arrays: Sequence[Array]) -> list[Array]:
        """Return random inputs with a cache of what random tokens leave in it, and zeros after them."""
        ids, past, last, keys, values = arrays
        before = past % _MAX_PAST
        count = self._read_tokens[1].shape[2]
        is_before = np.arange(count) < before
        read_keys, read_values = self._read_tokens
        keys = np.zeros_like(keys)
        keys[:, :, : count // LANES] = read_keys * is_before.reshape(-1, 1, LANES)
        values = np.zeros_like(values)
        values[:, :, :count] = read_values * is_before[:, None]
        return [ids, before, last, keys, values]

    @cached_property
    def _read_tokens(self) -> tuple[Array, Array]:
        """Keys and values of random tokens. Those of the first of them do not depend on the others."""
        sizes = self.network.sizes
        count = min(_MAX_PAST, self.context)
        keys, values = empty_cache(sizes, count)
        self.reference.logits(np.random.default_rng(_SEED).integers(0, sizes.vocabulary, count), 0, keys, values)
        return keys, values


def _name(tokens: int) -> str:
    return "decode" if tokens == 1 else f"prefill_{tokens}"
