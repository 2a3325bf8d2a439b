"""A decoder computed with NumPy in float32: what the compiled one is verified against.

The cache has the order in which the kernels keep it: keys as (layer, head, token / 16, element, 16), so that a vector
has an element of 16 tokens, and values as (layer, head, token, element).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.models.gguf.file import Tensor
from autotune.tvm_backend.models.gguf.network import DecoderFile, DecoderLayer, Sizes

Floats = npt.NDArray[np.float32]
LANES = 16  # tokens of a chunk of keys
_AT_A_TIME = 128  # tokens whose logits are all wanted
_MAX_KEPT = 2 << 30  # bytes of weights that are kept in float32
_HIDDEN = np.float32(-np.inf)


class DecoderReference:
    """A decoder in float32.

    Args:
        network: What the file says of it.

    Its weights are converted when they are first used, and kept as far as they fit 2 GiB.
    """

    def __init__(self, network: DecoderFile) -> None:
        self._network = network
        self._kept: dict[str, Floats] = {}
        self._bytes = 0

    def logits(self, ids: npt.NDArray[np.integer], past: int, keys: Floats, values: Floats, last: int = -1) -> Floats:
        """Return the logits after one of some tokens, and write what is to be kept of them into the cache.

        Args:
            past: How many are in the cache already.
            keys, values: The cache. It is changed.
            last: Which token the logits are for. Those after it are not kept.
        """
        used = ids[: last + 1] if last >= 0 else ids
        return self._classified(self._read(used, past, keys, values)[-1:])

    def every_logits(self, ids: Sequence[int]) -> Iterator[Floats]:
        """Yield the logits after each of the tokens that a text begins with, (up to 128, vocabulary) at a time."""
        keys, values = empty_cache(self._network.sizes, -(-len(ids) // LANES) * LANES)
        for past in range(0, len(ids), _AT_A_TIME):
            some = np.asarray(ids[past : past + _AT_A_TIME], np.int64)
            yield self._classified(self._read(some, past, keys, values))

    def _read(self, ids: npt.NDArray[np.integer], past: int, keys: Floats, values: Floats) -> Floats:
        """What the last layer makes of some tokens, (tokens, width); keys and values are written into the cache."""
        network = self._network
        x = self._rows(network.embedding, ids)
        if network.architecture.scaled:
            x = x * np.float32(np.sqrt(network.sizes.width))
        for index, layer in enumerate(network.layers):
            x = self._layer(index, layer, x, past, keys[index], values[index])
        return x

    def _classified(self, x: Floats) -> Floats:
        return self._product(self._norm(x, self._network.last_norm), self._network.classifier)

    def outputs(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Return the outputs of a graph for its inputs. The cache among these stays as it is."""
        ids, past, last, keys, values = arrays
        chunks = -(-(int(past[0]) + len(ids)) // LANES)  # what comes after them nobody reads
        own_keys = keys[:, :, :chunks].astype(np.float32)
        own_values = values[:, :, : chunks * LANES].astype(np.float32)
        return [self.logits(ids, int(past[0]), own_keys, own_values, int(last[0]))]

    def _layer(self, index: int, layer: DecoderLayer, x: Floats, past: int, keys: Floats, values: Floats) -> Floats:
        y = self._norm(x, layer.norm)
        y = self._attention(index, layer, y, past, keys, values) @ self._floats(layer.output).T
        x = x + (y if layer.after_norm is None else self._norm(y, layer.after_norm))
        y = self._norm(x, layer.inner_norm)
        gate = self._product(y, layer.gate)
        y = self._gated(gate) * self._product(y, layer.up)
        y = self._product(y, layer.down)
        return np.asarray(x + (y if layer.inner_after_norm is None else self._norm(y, layer.inner_after_norm)))

    def _attention(self, index: int, layer: DecoderLayer, y: Floats, past: int, keys: Floats, values: Floats) -> Floats:
        sizes = self._network.sizes
        local = self._network.is_local(index)
        angles = self._network.angles(past + len(y), local=local)[past:]
        query, key, value = (
            self._heads(y, tensor, bias, norm)
            for tensor, bias, norm in (
                (layer.query, layer.query_bias, layer.query_norm),
                (layer.key, layer.key_bias, layer.key_norm),
                (layer.value, layer.value_bias, None),
            )
        )
        query, key = (self._rotated(item, angles) for item in (query, key))
        length = past + len(y)
        by_token = keys.transpose(0, 1, 3, 2).reshape(sizes.shared, -1, sizes.head)  # a copy
        by_token[:, past:length] = key.transpose(1, 0, 2)
        keys[:] = by_token.reshape(sizes.shared, -1, LANES, sizes.head).transpose(0, 1, 3, 2)
        values[:, past:length] = value.transpose(1, 0, 2)
        hidden = self._hidden(past, length, local)
        return _attend(sizes, query, by_token[:, :length], values[:, :length], hidden)

    def _hidden(self, past: int, length: int, local: bool) -> Floats:
        """What is added to the scores of tokens that a token looks at, (tokens, length): 0, or -inf for the hidden."""
        here = np.arange(past, length)[:, None]
        there = np.arange(length)[None, :]
        hidden = there > here
        if local:
            hidden |= there <= here - self._network.window
        return np.where(hidden, _HIDDEN, np.float32(0))

    def _heads(self, y: Floats, tensor: Tensor, bias: Tensor | None, norm: Tensor | None) -> Floats:
        rows = self._product(y, tensor)
        if bias is not None:
            rows = rows + self._floats(bias)
        heads = rows.reshape(len(y), -1, self._network.sizes.head)
        return heads if norm is None else self._norm(heads, norm)

    def _rotated(self, heads: Floats, angles: Floats) -> Floats:
        cos = np.cos(angles)[:, None]
        sin = np.sin(angles)[:, None]
        half = heads.shape[-1] // 2
        adjacent = self._network.architecture.adjacent
        first, second = (heads[..., 0::2], heads[..., 1::2]) if adjacent else (heads[..., :half], heads[..., half:])
        pairs = first * cos - second * sin, first * sin + second * cos
        if adjacent:
            return np.stack(pairs, axis=-1).reshape(heads.shape)
        return np.concatenate(pairs, axis=-1)

    def _gated(self, gate: Floats) -> Floats:
        if self._network.architecture.gelu:
            inner = np.float32(0.7978845608) * (gate + np.float32(0.044715) * gate**3)
            return np.asarray(np.float32(0.5) * gate * (1 + np.tanh(inner)))
        return np.asarray(gate / (1 + np.exp(-np.maximum(gate, np.float32(-88)))))

    def _product(self, x: Floats, tensor: Tensor) -> Floats:
        return np.asarray(x @ self._floats(tensor).T)

    def _norm(self, x: Floats, weight: Tensor) -> Floats:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + np.float32(self._network.epsilon)) * self._floats(weight))

    def _rows(self, table: Tensor, ids: npt.NDArray[np.integer]) -> Floats:
        return table.format.to_floats(self._network.file.raw(table)[ids])

    def _floats(self, tensor: Tensor) -> Floats:
        if tensor.name in self._kept:
            return self._kept[tensor.name]
        floats = self._network.floats(tensor)
        if self._bytes + floats.nbytes <= _MAX_KEPT:
            self._bytes += floats.nbytes
            self._kept[tensor.name] = floats
        return floats


def empty_cache(sizes: Sizes, context: int) -> tuple[Floats, Floats]:
    """Return the keys and values of a cache for so many tokens."""
    keys, values = cache_shapes(sizes, context)
    return np.zeros(keys, np.float32), np.zeros(values, np.float32)


def cache_shapes(sizes: Sizes, context: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the keys and the values of a cache for so many tokens, a multiple of 16."""
    heads = (sizes.layers, sizes.shared)
    return (*heads, context // LANES, sizes.head, LANES), (*heads, context, sizes.head)


def _attend(sizes: Sizes, query: Floats, keys: Floats, values: Floats, hidden: Floats) -> Floats:
    """What each head gathers, (tokens, heads * head)."""
    rows = len(query)
    by_head = query.transpose(1, 0, 2).reshape(sizes.shared, -1, rows, sizes.head)
    scores = by_head @ keys[:, None].swapaxes(-1, -2) * np.float32(sizes.head**-0.5) + hidden
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    gathered = (weights @ values[:, None]) / weights.sum(axis=-1, keepdims=True)
    return np.asarray(gathered.reshape(sizes.heads, rows, sizes.head).transpose(1, 0, 2).reshape(rows, -1))
