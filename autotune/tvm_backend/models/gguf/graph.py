"""The graph of a decoder for some tokens at a time, as calls of kernels.

Its inputs: `ids` (rows,), the tokens; `past` (1,), how many tokens the cache has; `last` (1,), which of the rows the
logits are for; and the cache, `keys` and `values`, which kernels write in place. Its output: `logits` (1, vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.options import InputSpec
from autotune.tvm_backend.intrinsics.few_bit_dots import WORD
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.models.gguf.file import Tensor
from autotune.tvm_backend.models.gguf.network import DecoderFile, DecoderLayer
from autotune.tvm_backend.models.gguf.reference import cache_shapes
from autotune.tvm_backend.operators import activations as kernels
from autotune.tvm_backend.operators.activations import Blocked
from autotune.tvm_backend.operators.cached_attention import Attention, attend_kernel, keep_kernel
from autotune.tvm_backend.operators.few_bit_product import KERNEL, PackedForm, PackedRows, imported_product, pack
from autotune.tvm_backend.types import Expr, GlobalVar, IRModule, PrimFunc

Array = npt.NDArray[Any]
IDS = "ids"
PAST = "past"
LAST = "last"
KEYS = "keys"
VALUES = "values"
LOGITS = "logits"
_FLOAT_BLOCK = LANES  # of activations that are multiplied by floats, whose sums nobody reads


def input_specs(weights: Weights, rows: int, context: int) -> tuple[InputSpec, ...]:
    """Return the inputs of the graph for so many tokens at a time, and a cache for `context`."""
    keys, values = cache_shapes(weights.network.sizes, context)
    return (
        InputSpec(IDS, (rows,), kernels.INDEX),
        InputSpec(PAST, (1,), kernels.INDEX),
        InputSpec(LAST, (1,), kernels.INDEX),
        InputSpec(KEYS, keys, weights.kept),
        InputSpec(VALUES, values, weights.kept),
    )


@dataclass(frozen=True)
class Matrix:
    """A constant matrix (outputs, columns): packed, or in float32 and transposed."""

    outputs: int
    columns: int
    packed: PackedRows | None
    constants: tuple[Expr, ...]

    @property
    def block(self) -> int:
        return self.packed.form.block if self.packed else _FLOAT_BLOCK

    @property
    def in_bytes(self) -> bool:
        return self.packed is not None and self.packed.form.word == WORD


class Weights:
    """The constants of a decoder's graphs. A tensor that is read in several places is one constant.

    Args:
        network: The decoder.
        in_bytes: Whether activations are rounded to bytes where they are multiplied by packed weights.

    Attributes:
        network: The decoder.
        kept: The element type of its cache.
    """

    def __init__(self, network: DecoderFile, *, in_bytes: bool) -> None:
        self.network = network
        self.kept = "float16" if in_bytes else "float32"
        self._in_bytes = in_bytes
        self._matrices: dict[tuple[str, ...], Matrix] = {}

    def joined(self, tensors: Sequence[Tensor]) -> list[Matrix]:
        """Return one matrix with the rows of several, where they are stored alike; otherwise a matrix for each."""
        alike = len({tensor.format.name for tensor in tensors}) == 1
        return [self.matrix(*tensors)] if alike else [self.matrix(tensor) for tensor in tensors]

    def matrix(self, *tensors: Tensor) -> Matrix:
        key = tuple(tensor.name for tensor in tensors)
        if key not in self._matrices:
            self._matrices[key] = self._made(tensors)
        return self._matrices[key]

    def _made(self, tensors: Sequence[Tensor]) -> Matrix:
        outputs = sum(tensor.shape[0] for tensor in tensors)
        columns = tensors[0].shape[1]
        unpack = tensors[0].format.unpack
        if unpack is None:
            across = np.concatenate([self.network.floats(tensor) for tensor in tensors]).T
            return Matrix(outputs, columns, None, (relax.const(np.ascontiguousarray(across), "float32"),))
        blocks = unpack(np.concatenate([self.network.file.raw(tensor) for tensor in tensors]))
        form = PackedForm(
            bits=blocks.bits,
            block=blocks.block,
            scales=str(blocks.scale.dtype),
            zero=blocks.zero if blocks.offset is None else None,
            word=WORD if self._in_bytes else 1,
        )
        packed = pack(_filled(blocks.codes), _filled(blocks.scale), _filled(blocks.offset), form)
        constants = tuple(relax.const(item, str(item.dtype)) for item in packed.arrays)
        return Matrix(outputs, columns, packed, constants)

    def table(self, tensor: Tensor) -> tuple[tuple[Expr, ...], PackedForm | None, int]:
        """Return a table to look rows up in: its constants, how it is packed (None for float32), and its rows."""
        if tensor.format.unpack is None:
            return (relax.const(self.network.floats(tensor), "float32"),), None, tensor.shape[0]
        matrix = self.matrix(tensor)
        assert matrix.packed is not None
        return matrix.constants, matrix.packed.form, matrix.packed.rows

    def vector(self, tensor: Tensor) -> Expr:
        return relax.const(self.network.floats(tensor), "float32")


def _filled(rows: Array | None) -> Any:
    """Rows, filled up with zeros to a multiple of 16."""
    if rows is None or len(rows) % LANES == 0:
        return rows
    return np.pad(rows, [(0, -len(rows) % LANES), (0, 0)])


def build_graph(weights: Weights, rows: int, context: int) -> IRModule:
    """Return the module of a decoder.

    Args:
        weights: Its constants.
        rows: How many tokens are computed together.
        context: Tokens that the cache has room for, a multiple of 16.
    """
    return _Graph(weights, rows, context).build()


class _Graph:
    def __init__(self, weights: Weights, rows: int, context: int) -> None:
        network = weights.network
        self._network = network
        self._rows = rows
        self._context = context
        self._weights = weights
        self._builder = relax.BlockBuilder()
        specs = input_specs(weights, rows, context)
        self._inputs = {item.name: relax.Var(item.name, relax.TensorType(item.shape, item.dtype)) for item in specs}
        self._angles: dict[bool, list[Expr]] = {}
        self._functions: dict[PrimFunc, GlobalVar] = {}  # a builder would compare each with all that it has

    def build(self) -> IRModule:
        """Return the module."""
        with self._builder.function("main", list(self._inputs.values())):
            with self._builder.dataflow():
                x = self._embedded()
                for index, layer in enumerate(self._network.layers):
                    x = self._layer(index, layer, x)
                output = self._builder.emit_output(self._logits(x), LOGITS)
            self._builder.emit_func_output(output)
        return self._builder.finalize()

    def _embedded(self) -> Expr:
        network = self._network
        width = network.sizes.width
        factor = math.sqrt(width) if network.architecture.scaled else 1.0
        constants, form, tokens = self._weights.table(network.embedding)
        program = kernels.embedding_kernel(form, self._rows, (tokens, width), factor)
        return self._call(program, "embed", [self._inputs[IDS], *constants], [self._floats(width)])

    def _layer(self, index: int, layer: DecoderLayer, x: Expr) -> Expr:
        sizes = self._network.sizes
        attention = self._attention(index, layer)
        queries = self._kept(index, layer, attention, self._normalised(x, layer.norm, self._rows))
        gathered = self._call(
            attend_kernel(attention),
            "attend",
            [queries, self._number(index), *(self._inputs[name] for name in (PAST, KEYS, VALUES))],
            [self._floats(sizes.heads * sizes.head)],
        )
        x = self._added(x, self._activations(gathered, sizes.heads * sizes.head), layer.output, layer.after_norm)
        return self._added(x, self._gated(layer, x), layer.down, layer.inner_after_norm)

    def _attention(self, index: int, layer: DecoderLayer) -> Attention:
        network = self._network
        sizes = network.sizes
        return Attention(
            rows=self._rows,
            layers=sizes.layers,
            heads=sizes.heads,
            shared=sizes.shared,
            head=sizes.head,
            context=self._context,
            window=network.window if network.is_local(index) else 0,
            adjacent=network.architecture.adjacent,
            biases=layer.query_bias is not None,
            norms=layer.query_norm is not None,
            epsilon=network.epsilon,
            joined=len(self._weights.joined((layer.query, layer.key, layer.value))) == 1,
            kept=self._weights.kept,
        )

    def _kept(self, index: int, layer: DecoderLayer, attention: Attention, normalised: _Activations) -> Expr:
        """Rotated queries, after keys and values were kept."""
        matrices = self._weights.joined((layer.query, layer.key, layer.value))
        products = [self._product(normalised.of(matrix), matrix) for matrix in matrices]
        vectors = (layer.query_bias, layer.key_bias, layer.value_bias, layer.query_norm, layer.key_norm)
        operands = [
            *products,
            *(self._weights.vector(item) for item in vectors if item is not None),
            *self._turned(local=self._network.is_local(index)),
            self._number(index),
            *(self._inputs[name] for name in (PAST, KEYS, VALUES)),
        ]
        shape = (self._rows, attention.heads, attention.head)
        return self._call(keep_kernel(attention), "keep", operands, [(shape, "float32")])

    def _turned(self, *, local: bool) -> list[Expr]:
        """Cosines and sines of the angles by which pairs are rotated."""
        if local not in self._angles:
            angles = self._network.angles(self._context, local=local)
            self._angles[local] = [relax.const(function(angles), "float32") for function in (np.cos, np.sin)]
        return self._angles[local]

    def _gated(self, layer: DecoderLayer, x: Expr) -> _Activations:
        normalised = self._normalised(x, layer.inner_norm, self._rows)
        matrices = self._weights.joined((layer.gate, layer.up))
        products = [self._product(normalised.of(matrix), matrix) for matrix in matrices]
        gelu = self._network.architecture.gelu

        def make(blocked: Blocked) -> list[Expr]:
            program = kernels.gate_kernel(blocked, gelu=gelu, joined=len(products) == 1)
            return self._several(program, "gate", products, blocked)

        return _Activations(make, self._rows, self._network.sizes.inner)

    def _added(self, x: Expr, activations: _Activations, tensor: Tensor, norm: Tensor | None) -> Expr:
        """x and a product of activations, which is normalised before if there is a norm."""
        matrix = self._weights.matrix(tensor)
        if norm is None:
            return self._product(activations.of(matrix), matrix, x)
        product = self._product(activations.of(matrix), matrix)
        width = self._network.sizes.width
        program = kernels.add_norm_kernel(self._rows, width, self._network.epsilon)
        return self._call(program, "add_norm", [x, product, self._weights.vector(norm)], [self._floats(width)])

    def _logits(self, x: Expr) -> Expr:
        matrix = self._weights.matrix(self._network.classifier)
        return self._product(self._normalised(x, self._network.last_norm, 1).of(matrix), matrix)

    def _normalised(self, x: Expr, norm: Tensor, rows: int) -> _Activations:
        """The norm of all rows, or of the one that logits are for."""
        width = self._network.sizes.width
        weight = self._weights.vector(norm)
        picked = rows != self._rows

        def make(blocked: Blocked) -> list[Expr]:
            program = kernels.norm_kernel(blocked, self._rows, self._network.epsilon, picked=picked)
            operands = [x, weight, *([self._inputs[LAST]] if picked else [])]
            return self._several(program, "norm", operands, blocked)

        return _Activations(make, rows, width)

    def _activations(self, x: Expr, columns: int) -> _Activations:
        def make(blocked: Blocked) -> list[Expr]:
            return self._several(kernels.blocks_kernel(blocked), "blocks", [x], blocked)

        return _Activations(make, self._rows, columns)

    def _product(self, activations: Sequence[Expr], matrix: Matrix, residual: Expr | None = None) -> Expr:
        rows = int(activations[0].ty.shape[0])
        more = [] if residual is None else [residual]
        if matrix.packed is None:
            product = self._builder.emit(relax.op.matmul(activations[0], matrix.constants[0]))
            return self._builder.emit(relax.op.add(product, residual)) if more else product
        shape = (rows, matrix.packed.rows, matrix.columns)
        program = imported_product(matrix.packed.form, shape, residual=bool(more))
        operands = [*activations, *matrix.constants, *more]
        result = self._call(program, KERNEL, operands, [((rows, matrix.packed.rows), "float32")])
        if matrix.packed.rows == matrix.outputs:
            return result
        return self._builder.emit(relax.op.strided_slice(result, axes=[1], begin=[0], end=[matrix.outputs]))

    def _number(self, value: int) -> Expr:
        return relax.const(np.array([value], kernels.INDEX), kernels.INDEX)

    def _floats(self, columns: int) -> tuple[tuple[int, ...], str]:
        return (self._rows, columns), "float32"

    def _several(self, program: PrimFunc, name: str, operands: Sequence[Expr], blocked: Blocked) -> list[Expr]:
        result = self._call(program, name, operands, blocked.types)
        return [self._builder.emit(relax.TupleGetItem(result, index)) for index in range(len(blocked.types))]

    def _call(
        self, program: PrimFunc, name: str, operands: Sequence[Expr], types: Sequence[tuple[tuple[int, ...], str]]
    ) -> Expr:
        if program not in self._functions:
            self._functions[program] = self._builder.add_func(program, name)
        function = self._functions[program]
        made = [relax.TensorType(shape, dtype) for shape, dtype in types]
        return self._builder.emit(relax.call_tir(function, list(operands), out_ty=made if len(made) > 1 else made[0]))


class _Activations:
    """What products read, made once in each form that one of them asks for."""

    def __init__(self, make: Any, rows: int, columns: int) -> None:
        self._make = make
        self._rows = rows
        self._columns = columns
        self._made: dict[Blocked, list[Expr]] = {}

    def of(self, matrix: Matrix) -> list[Expr]:
        """Return them as the product with a matrix reads them."""
        blocked = Blocked(self._rows, self._columns, matrix.block, matrix.in_bytes)
        if blocked not in self._made:
            self._made[blocked] = self._make(blocked)
        return self._made[blocked]
