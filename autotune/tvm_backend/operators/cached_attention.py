"""Attention over a cache whose length is a value at run time.

The cache of all layers is two tensors: keys (layers, heads, context / 16, head, 16), so that a vector has an element of
16 tokens, and values (layers, heads, context, head). `keep_kernel` writes the keys and values of new tokens into them,
in place: to the graph they are inputs, and what is computed after it reads its result, so that it runs before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.operators.activations import (
    INDEX,
    LANES,
    argument,
    body,
    each_row,
    kernel,
    mean_square_root,
    over_lanes,
    vector,
)
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc

_MAX_TILE = 4  # rows of queries that share what is loaded
_PARTIAL_SUMS = 4  # of a score, which do not wait for each other
_MIN_SCORE = -3.0e38
Store = Callable[[PrimExpr, PrimExpr], None]  # writes the element of an index


@dataclass(frozen=True)
class Attention:
    """The attention of a decoder.

    Attributes:
        rows: Tokens that are computed together.
        layers, heads, shared, head: As in `Sizes`.
        context: Tokens that the cache has room for, a multiple of 16.
        window: How many tokens each looks at; 0 for all.
        adjacent: Whether a pair that is rotated together lies side by side.
        biases: Whether queries, keys and values get biases.
        norms: Whether queries and keys are normalised.
        epsilon: What is added to the mean square in these norms.
        joined: Whether queries, keys and values are one tensor.
    """

    rows: int
    layers: int
    heads: int
    shared: int
    head: int
    context: int
    window: int
    adjacent: bool
    biases: bool
    norms: bool
    epsilon: float
    joined: bool

    @property
    def keys_shape(self) -> tuple[int, ...]:
        return (self.layers, self.shared, self.context // LANES, self.head, LANES)

    @property
    def values_shape(self) -> tuple[int, ...]:
        return (self.layers, self.shared, self.context, self.head)

    @property
    def columns(self) -> tuple[int, int, int]:
        """Columns of queries, keys and values."""
        shared = self.shared * self.head
        return self.heads * self.head, shared, shared


def keep_kernel(attention: Attention) -> PrimFunc:
    """Return the kernel that rotates queries and keys, and keeps keys and values.

    Its arguments: queries, keys and values (rows, columns), as one or as three; a bias for each; weights of the norms
    of queries and of keys (head,); cosines and sines (context, head / 2); the layer, and how many tokens are kept
    already, both (1,); the cache; and the result, rotated queries (rows, heads, head).
    """
    with kernel() as made:
        writer = _Keeper(attention)
        with body(), each_row(attention.rows) as row:
            writer.write(row)
    return made()


class _Keeper:
    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        sizes = attention.columns
        names = ("query", "key", "value")
        if attention.joined:
            rows = argument("joined", (attention.rows, sum(sizes)))
            self._sources = [(rows, start) for start in (0, sizes[0], sizes[0] + sizes[1])]
        else:
            buffers = [argument(name, (attention.rows, size)) for name, size in zip(names, sizes, strict=True)]
            self._sources = [(buffer, 0) for buffer in buffers]
        self._biases = [
            argument(f"{name}_bias", (size,)) for name, size in zip(names, sizes, strict=True) if attention.biases
        ]
        self._norms = [argument(f"{name}_norm", (attention.head,)) for name in names[:2] if attention.norms]
        angles = (attention.context, attention.head // 2)
        self._cos = argument("cos", angles)
        self._sin = argument("sin", angles)
        self._layer = argument("layer", (1,), INDEX)
        self._past = argument("past", (1,), INDEX)
        self._keys = argument("keys", attention.keys_shape)
        self._values = argument("values", attention.values_shape)
        self._out = argument("out", (attention.rows, attention.heads, attention.head))

    def write(self, row: PrimExpr) -> None:
        attention = self._attention
        layer = self._layer[0]
        place = self._past[0] + row
        with T.serial(0, attention.heads) as head:
            self._rotate(0, row, head, lambda index, value: T.buffer_store(self._out, value, [row, head, index]))
        with T.serial(0, attention.shared) as head:
            chunk = place // LANES
            lane = place % LANES
            self._rotate(
                1, row, head, lambda index, value: T.buffer_store(self._keys, value, [layer, head, chunk, index, lane])
            )
            with T.serial(0, attention.head // LANES) as part, T.vectorized(0, LANES) as column:
                index = part * LANES + column
                T.buffer_store(self._values, self._element(2, row, head, index), [layer, head, place, index])

    def _element(self, part: int, row: PrimExpr, head: PrimExpr, index: PrimExpr) -> PrimExpr:
        buffer, start = self._sources[part]
        column = head * self._attention.head + index
        value = buffer[row, start + column]
        return value + self._biases[part][column] if self._biases else value

    def _rotate(self, part: int, row: PrimExpr, head: PrimExpr, store: Store) -> None:
        """Write a head of queries or keys, normalised if need be, with its pairs rotated."""
        size = self._attention.head
        place = self._past[0] + row
        elements = T.alloc_buffer((size,), "float32", scope="local")
        factor = None
        if self._norms:
            factor = mean_square_root(
                size, self._attention.epsilon, lambda index: self._element(part, row, head, index)
            )
        with T.serial(0, size // LANES) as piece, T.vectorized(0, LANES) as lane:
            index = piece * LANES + lane
            value = self._element(part, row, head, index)
            if factor is not None:
                value = value * factor * self._norms[part][index]
            T.buffer_store(elements, value, [index])
        with T.serial(0, size // 2) as pair:
            adjacent = self._attention.adjacent
            first, second = (2 * pair, 2 * pair + 1) if adjacent else (pair, pair + size // 2)
            cos = self._cos[place, pair]
            sin = self._sin[place, pair]
            store(first, elements[first] * cos - elements[second] * sin)
            store(second, elements[first] * sin + elements[second] * cos)


def attend_kernel(attention: Attention) -> PrimFunc:
    """Return the kernel that gathers values: what each query looks at, weighted by the softmax of scores.

    Its arguments: rotated queries (rows, heads, head); the layer, and how many tokens were kept before these rows, both
    (1,); the cache; and the result (rows, heads * head).
    """
    with kernel() as made:
        writer = _Gatherer(attention)
        tiles = attention.rows // writer.tile
        with body(), T.parallel(0, attention.heads * tiles) as piece:
            writer.write(piece // tiles, piece % tiles * writer.tile)
    return made()


class _Gatherer:
    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self.tile = _MAX_TILE if attention.rows % _MAX_TILE == 0 else 1
        self._query = argument("query", (attention.rows, attention.heads, attention.head))
        self._layer = argument("layer", (1,), INDEX)
        self._past = argument("past", (1,), INDEX)
        self._keys = argument("keys", attention.keys_shape)
        self._values = argument("values", attention.values_shape)
        self._out = argument("out", (attention.rows, attention.heads * attention.head))

    def write(self, head: PrimExpr, first: PrimExpr) -> None:
        """Write what a head gathers for a tile of rows from `first` on."""
        attention = self._attention
        place = self._past[0] + first  # of the first row
        length = place + self.tile
        begin = tirx.const(0, INDEX)
        if attention.window:
            begin = tirx.max(place - (attention.window - 1), begin) // LANES
        end = (length + (LANES - 1)) // LANES
        scores = T.alloc_buffer((self.tile, attention.context), "float32")
        largest = [vector() for _ in range(self.tile)]
        for buffer in largest:
            with T.vectorized(0, LANES) as lane:
                T.buffer_store(buffer, tirx.const(_MIN_SCORE, "float32"), [lane])
        with T.serial(begin, end) as chunk:
            self._score(head, first, chunk, scores, largest)
        tops = [over_lanes(buffer, LANES, tirx.max) for buffer in largest]
        totals = [vector() for _ in range(self.tile)]
        with T.serial(begin, end) as chunk:
            for row in range(self.tile):
                with T.vectorized(0, LANES) as lane:
                    token = chunk * LANES + lane
                    T.buffer_store(scores, tirx.exp(scores[row, token] - tops[row]), [row, token])
                    T.buffer_store(totals[row], totals[row][lane] + scores[row, token], [lane])
        self._gather(head, first, (begin * LANES, length), scores, totals)

    def _score(self, head: PrimExpr, first: PrimExpr, chunk: PrimExpr, scores: Buffer, largest: list[Buffer]) -> None:
        """Write the scores of 16 tokens; those that are hidden get the least number there is."""
        attention = self._attention
        shared = head // (attention.heads // attention.shared)
        partial = max(_PARTIAL_SUMS // self.tile, 1)
        sums = [[vector() for _ in range(partial)] for _ in range(self.tile)]
        with T.serial(0, attention.head // partial) as step:
            for part in range(partial):
                index = step * partial + part
                for row in range(self.tile):
                    with T.vectorized(0, LANES) as lane:
                        product = (
                            self._query[first + row, head, index]
                            * self._keys[self._layer[0], shared, chunk, index, lane]
                        )
                        T.buffer_store(sums[row][part], sums[row][part][lane] + product, [lane])
        scale = tirx.const(attention.head**-0.5, "float32")
        for row in range(self.tile):
            place = self._past[0] + first + row
            with T.vectorized(0, LANES) as lane:
                token = chunk * LANES + lane
                score = sums[row][0][lane]
                for other in sums[row][1:]:
                    score = score + other[lane]
                seen = token <= place
                if attention.window:
                    seen = tirx.all(seen, token > place - attention.window)
                score = tirx.Select(seen, score * scale, tirx.const(_MIN_SCORE, "float32"))
                T.buffer_store(scores, score, [row, token])
                T.buffer_store(largest[row], tirx.max(largest[row][lane], score), [lane])

    def _gather(
        self, head: PrimExpr, first: PrimExpr, tokens: tuple[PrimExpr, PrimExpr], scores: Buffer, totals: list[Buffer]
    ) -> None:
        attention = self._attention
        shared = head // (attention.heads // attention.shared)
        pieces = attention.head // LANES
        gathered = [[vector() for _ in range(pieces)] for _ in range(self.tile)]
        with T.serial(*tokens) as token:
            for row in range(self.tile):
                for piece in range(pieces):
                    with T.vectorized(0, LANES) as lane:
                        value = self._values[self._layer[0], shared, token, piece * LANES + lane]
                        sums = gathered[row][piece]
                        T.buffer_store(sums, sums[lane] + scores[row, token] * value, [lane])
        for row in range(self.tile):
            share = T.alloc_buffer((1,), "float32", scope="local")
            T.buffer_store(share, tirx.const(1.0, "float32") / over_lanes(totals[row], LANES, lambda a, b: a + b), [0])
            for piece in range(pieces):
                with T.vectorized(0, LANES) as lane:
                    column = head * attention.head + piece * LANES + lane
                    T.buffer_store(self._out, gathered[row][piece][lane] * share[0], [first + row, column])
