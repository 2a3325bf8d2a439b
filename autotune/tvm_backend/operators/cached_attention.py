"""Attention over a cache whose length is a value at run time.

The cache of all layers is two tensors: keys (layers, heads, context / 16, head, 16), so that a vector has an element of
16 tokens, and values (layers, heads, context, head), in float32 or float16. `keep_kernel` writes the keys and values of
new tokens into them, in place: to the graph they are inputs, and what is computed after it reads its result, so that it
runs before.

Queries that look at the same keys are computed together: some rows of a head, or for a single row the heads that share
keys. Then the tokens are cut into parts, too, for the threads; the result is put together from theirs as in Dao et al.,
"Flash-Decoding for long-context inference" (2023).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.activations import (
    INDEX,
    argument,
    body,
    each_row,
    kernel,
    mean_square_root,
    over_lanes,
    vector,
)
from autotune.tvm_backend.operators.few_bit_product import KERNELS
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc

_MAX_TILE = 4  # rows of queries that share what is loaded
_PARTIAL_SUMS = 8  # of the scores of a tile, which do not wait for each other
_MAX_GATHERED = 28  # vectors of a tile of heads: AVX-512 has 32 registers
_PARTS = 8  # of the tokens that a single row looks at
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
        kept: The element type of the cache.
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
    kept: str

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


@lru_cache(KERNELS)
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
        self._keys = argument("keys", attention.keys_shape, attention.kept)
        self._values = argument("values", attention.values_shape, attention.kept)
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
                1,
                row,
                head,
                lambda index, value: T.buffer_store(
                    self._keys, value.astype(attention.kept), [layer, head, chunk, index, lane]
                ),
            )
            with T.serial(0, attention.head // LANES) as part, T.vectorized(0, LANES) as column:
                index = part * LANES + column
                value = self._element(2, row, head, index).astype(attention.kept)
                T.buffer_store(self._values, value, [layer, head, place, index])

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


@lru_cache(KERNELS)
def attend_kernel(attention: Attention) -> PrimFunc:
    """Return the kernel that gathers values: what each query looks at, weighted by the softmax of scores.

    Its arguments: rotated queries (rows, heads, head); the layer, and how many tokens were kept before these rows, both
    (1,); the cache; and the result (rows, heads * head).
    """
    if attention.rows > 1:
        return _attend_rows(attention)
    with kernel() as made:
        writer = _Gatherer(attention, _head_tile(attention))
        tiles = attention.heads // writer.tile
        with body():
            gathered = _GatheredParts(attention)
            with T.parallel(0, tiles * _PARTS) as piece:
                head = piece // _PARTS * writer.tile
                begin, end = writer.chunks(1, 0)
                part = piece % _PARTS
                bounds = (begin + number * (end - begin) // _PARTS for number in (part, part + 1))
                gathered.keep(head, part, writer.gather(head, 0, tuple(bounds)))
            with T.serial(0, attention.heads) as head:
                gathered.join(head, writer.out)
    return made()


def _attend_rows(attention: Attention) -> PrimFunc:
    tile = _MAX_TILE if attention.rows % _MAX_TILE == 0 else 1
    with kernel() as made:
        writer = _Gatherer(attention, 1, tile)
        tiles = attention.rows // tile
        with body(), T.parallel(0, attention.heads * tiles) as piece:
            head = piece // tiles
            first = piece % tiles * tile
            gathered = writer.gather(head, first, writer.chunks(tile, first))
            for row in range(tile):
                _write_row(writer.out, [first + row, head * attention.head], gathered[row])
    return made()


def _head_tile(attention: Attention) -> int:
    """How many heads that share keys are computed together."""
    group = attention.heads // attention.shared
    pieces = attention.head // LANES
    return max(
        size for size in range(1, group + 1) if group % size == 0 and (size * pieces <= _MAX_GATHERED or size == 1)
    )


@dataclass(frozen=True)
class _Gathered:
    """What a query has gathered: the largest score, the sum of exponentials by lane, and the weighted values."""

    top: PrimExpr
    totals: Buffer
    values: list[Buffer]


def _write_row(out: Buffer, place: list[PrimExpr], gathered: _Gathered) -> None:
    row, column = place
    share = T.alloc_buffer((1,), "float32", scope="local")
    total = over_lanes(gathered.totals, LANES, operator.add)
    T.buffer_store(share, tirx.const(1.0, "float32") / total, [0])
    for piece, values in enumerate(gathered.values):
        with T.vectorized(0, LANES) as lane:
            T.buffer_store(out, values[lane] * share[0], [row, column + piece * LANES + lane])


class _GatheredParts:
    """What single queries have gathered from parts of the tokens."""

    def __init__(self, attention: Attention) -> None:
        self._head = attention.head
        self._tops = T.alloc_buffer((attention.heads, _PARTS), "float32")
        self._totals = T.alloc_buffer((attention.heads, _PARTS), "float32")
        self._values = T.alloc_buffer((attention.heads, _PARTS, attention.head), "float32")

    def keep(self, first: PrimExpr, part: PrimExpr, gathered: list[_Gathered]) -> None:
        """Keep what some heads from the first one on have gathered from a part."""
        for number, item in enumerate(gathered):
            head = first + number
            T.buffer_store(self._tops, item.top, [head, part])
            T.buffer_store(self._totals, over_lanes(item.totals, LANES, operator.add), [head, part])
            for piece, values in enumerate(item.values):
                with T.vectorized(0, LANES) as lane:
                    T.buffer_store(self._values, values[lane], [head, part, piece * LANES + lane])

    def join(self, head: PrimExpr, out: Buffer) -> None:
        """Write what a head has gathered from all parts. One without tokens has the least top, and so no weight."""
        top = self._tops[head, 0]
        for part in range(1, _PARTS):
            top = tirx.max(top, self._tops[head, part])
        weights = T.alloc_buffer((_PARTS,), "float32", scope="local")
        with T.vectorized(0, _PARTS) as part:
            T.buffer_store(weights, tirx.exp(self._tops[head, part] - top), [part])
        share = T.alloc_buffer((1,), "float32", scope="local")
        total = sum((weights[part] * self._totals[head, part] for part in range(_PARTS)), tirx.const(0.0, "float32"))
        T.buffer_store(share, tirx.const(1.0, "float32") / total, [0])
        with T.serial(0, self._head // LANES) as piece, T.vectorized(0, LANES) as lane:
            column = piece * LANES + lane
            terms = (weights[part] * self._values[head, part, column] for part in range(_PARTS))
            T.buffer_store(out, sum(terms, tirx.const(0.0, "float32")) * share[0], [0, head * self._head + column])


class _Gatherer:
    """Writes the loops in which a tile of queries, heads by rows, looks at tokens."""

    def __init__(self, attention: Attention, heads: int, rows: int = 1) -> None:
        self._attention = attention
        self._heads = heads
        self._queries = [(head, row) for head in range(heads) for row in range(rows)]
        self._query = argument("query", (attention.rows, attention.heads, attention.head))
        self._layer = argument("layer", (1,), INDEX)
        self._past = argument("past", (1,), INDEX)
        self._keys = argument("keys", attention.keys_shape, attention.kept)
        self._values = argument("values", attention.values_shape, attention.kept)
        self.out = argument("out", (attention.rows, attention.heads * attention.head))

    @property
    def tile(self) -> int:
        return len(self._queries)

    def chunks(self, rows: int, first: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Return the first chunk of 16 tokens that some rows look at, and the one after the last."""
        place = self._past[0] + first
        begin = tirx.const(0, INDEX)
        if self._attention.window:
            begin = tirx.max(place - (self._attention.window - 1), begin) // LANES
        return begin, (place + rows + (LANES - 1)) // LANES

    def gather(self, head: PrimExpr, first: PrimExpr, chunks: tuple[PrimExpr, PrimExpr]) -> list[_Gathered]:
        """Gather what the queries from a head and a row on look at in some chunks."""
        scores = T.alloc_buffer((self.tile, self._attention.context), "float32")
        largest = [vector() for _ in self._queries]
        for buffer in largest:
            with T.vectorized(0, LANES) as lane:
                T.buffer_store(buffer, tirx.const(_MIN_SCORE, "float32"), [lane])
        with T.serial(*chunks) as chunk:
            self._score(head, first, chunk, scores, largest)
        tops = [over_lanes(buffer, LANES, tirx.max) for buffer in largest]
        totals = [vector() for _ in self._queries]
        with T.serial(*chunks) as chunk:
            for query in range(self.tile):
                with T.vectorized(0, LANES) as lane:
                    token = chunk * LANES + lane
                    T.buffer_store(scores, tirx.exp(scores[query, token] - tops[query]), [query, token])
                    T.buffer_store(totals[query], totals[query][lane] + scores[query, token], [lane])
        values = self._weigh(head, first, chunks, scores)
        return [_Gathered(*item) for item in zip(tops, totals, values, strict=True)]

    def _score(self, head: PrimExpr, first: PrimExpr, chunk: PrimExpr, scores: Buffer, largest: list[Buffer]) -> None:
        """Write the scores of 16 tokens; those that are hidden get the least number there is."""
        attention = self._attention
        shared = head // (attention.heads // attention.shared)
        partial = max(_PARTIAL_SUMS // _power(self.tile), 1)
        sums = [[vector() for _ in range(partial)] for _ in self._queries]
        with T.serial(0, attention.head // partial) as step:
            for part in range(partial):
                index = step * partial + part
                for query, (further, row) in enumerate(self._queries):
                    with T.vectorized(0, LANES) as lane:
                        key = self._keys[self._layer[0], shared, chunk, index, lane].astype("float32")
                        product = self._query[first + row, head + further, index] * key
                        T.buffer_store(sums[query][part], sums[query][part][lane] + product, [lane])
        scale = tirx.const(attention.head**-0.5, "float32")
        for query, (_, row) in enumerate(self._queries):
            place = self._past[0] + first + row
            with T.vectorized(0, LANES) as lane:
                token = chunk * LANES + lane
                score = sums[query][0][lane]
                for other in sums[query][1:]:
                    score = score + other[lane]
                seen = token <= place
                if attention.window:
                    seen = tirx.all(seen, token > place - attention.window)
                score = tirx.Select(seen, score * scale, tirx.const(_MIN_SCORE, "float32"))
                T.buffer_store(scores, score, [query, token])
                T.buffer_store(largest[query], tirx.max(largest[query][lane], score), [lane])

    def _weigh(
        self, head: PrimExpr, first: PrimExpr, chunks: tuple[PrimExpr, PrimExpr], scores: Buffer
    ) -> list[list[Buffer]]:
        """Return the sums of values, each times the exponential of its score."""
        attention = self._attention
        shared = head // (attention.heads // attention.shared)
        pieces = attention.head // LANES
        gathered = [[vector() for _ in range(pieces)] for _ in self._queries]
        rows = self.tile // self._heads
        end = tirx.min(chunks[1] * LANES, self._past[0] + first + rows)
        with T.serial(chunks[0] * LANES, end) as token:
            for query in range(self.tile):
                for piece in range(pieces):
                    with T.vectorized(0, LANES) as lane:
                        value = self._values[self._layer[0], shared, token, piece * LANES + lane].astype("float32")
                        sums = gathered[query][piece]
                        T.buffer_store(sums, sums[lane] + scores[query, token] * value, [lane])
        return gathered


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
