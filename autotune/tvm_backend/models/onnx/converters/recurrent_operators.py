"""The recurrent operators of ONNX as a matrix product for the inputs of all steps and a call of one kernel.

An imported module runs on any CPU, so its kernel computes element by element. `packing.recurrent_layers` puts another
in its place that suits the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, static_shape
from autotune.tvm_backend.isa.values import WORD
from autotune.tvm_backend.models.onnx.converters.quantised_operators import dynamic_quantize_linear, matmul_integer
from autotune.tvm_backend.operators.recurrent.kernel import recurrent_kernel
from autotune.tvm_backend.operators.recurrent.layer import LAYER, Kind, RecurrentLayer, activations
from autotune.tvm_backend.operators.recurrent.tile import PLAIN
from autotune.tvm_backend.types import BlockBuilder, Expr

Array = npt.NDArray[Any]
_SIGN = 128  # what a byte without a sign is more than one with it


def recurrent(kind: Kind, builder: BlockBuilder, inputs: Sequence[Expr | None], attributes: Mapping[str, Any]) -> Expr:
    """Emit an LSTM, GRU or RNN.

    Args:
        kind: The operator.
        builder: What bindings are added to.
        inputs: X, W, R, B, sequence_lens, initial_h, initial_c, P; None or left out where it has none.
        attributes: Those of the operator; texts are bytes.

    Returns:
        Y, Y_h and, of an LSTM, Y_c.

    Raises:
        ValueError: A shape is not known, or the operator is used in a way that has no kernel.
    """
    return _Operator.read(builder, kind, inputs, attributes, rounded=False).call()


def dynamic_lstm(builder: BlockBuilder, inputs: Sequence[Expr | None], attributes: Mapping[str, Any]) -> Expr:
    """Emit ONNX Runtime's LSTM on 8-bit weights, whose inputs and states are rounded to 8 bits at each product.

    Its weights are (directions, features, gates), and after an LSTM's inputs come their scales and zero points.

    Args, Returns and Raises are those of `recurrent`.
    """
    given = [*inputs, *[None] * (12 - len(inputs))]
    constants = [given[1], given[2], *given[8:12]]
    if not all(item is not None and is_tensor_constant(item) for item in constants):
        raise ValueError("its weights are computed, for which there is no rule")
    plain = _Operator.read(builder, "LSTM", given[:8], attributes, rounded=True)
    of_input, of_state, *others = (item.value.numpy() for item in constants if item is not None)
    weights = _ByteWeights.of(of_input, *others[:2], layer=plain.layer)
    state_weights = _ByteWeights.of(of_state, *others[2:], layer=plain.layer)
    return _DynamicLstm(builder, plain.layer, plain.inputs, weights, state_weights).call()


@dataclass(frozen=True)
class _Operator:
    """A recurrent operator: its layer, and its inputs by position."""

    builder: BlockBuilder
    layer: RecurrentLayer
    inputs: tuple[Expr | None, ...]

    @classmethod
    def read(
        cls,
        builder: BlockBuilder,
        kind: Kind,
        inputs: Sequence[Expr | None],
        attributes: Mapping[str, Any],
        *,
        rounded: bool,
    ) -> _Operator:
        given = (*inputs, *[None] * (8 - len(inputs)))
        x = given[0]
        lengths = given[4]
        if len(static_shape(x)) != 3 or float_dtype(x) != "float32":
            raise ValueError(f"{kind} on an input that is not float32 or whose shape is not known")
        batch_first = bool(attributes.get("layout", 0))
        steps, batch = (static_shape(x)[:2][::-1]) if batch_first else static_shape(x)[:2]
        if _are_full(lengths, steps):
            lengths = None
        direction = bytes(attributes.get("direction", b"forward")).decode()
        reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
        names = [bytes(name).decode() for name in attributes.get("activations", ())]
        numbers = [list(attributes.get(f"activation_{name}", ())) for name in ("alpha", "beta")]
        layer = RecurrentLayer(
            kind,
            steps,
            batch,
            int(attributes.get("hidden_size") or static_shape(given[2])[1 if rounded else -1]),
            reverse,
            activations(kind, len(reverse), names, *numbers),
            clip=float(attributes.get("clip", 0.0)),
            batch_first=batch_first,
            late_reset=kind == "GRU" and bool(attributes.get("linear_before_reset", 0)),
            coupled=bool(attributes.get("input_forget", 0)),
            peepholes=given[7] is not None,
            lengths=lengths is not None,
            rounded=rounded,
        )
        return cls(builder, layer, (*given[:4], lengths, *given[5:]))

    def call(self) -> Expr:
        """Emit the product and the kernel."""
        layer = self.layer
        program = recurrent_kernel(layer, PLAIN).with_attr(LAYER, msgspec.json.encode(layer).decode())
        function = self.builder.add_func(program, f"recurrent_{layer.kind.lower()}")
        shapes = [layer.outputs_shape, *[layer.state_shape] * layer.states]
        types = [relax.TensorType(shape, "float32") for shape in shapes]
        return self.builder.emit(relax.call_tir(function, self._operands(), out_ty=types))

    def _operands(self) -> list[Expr]:
        layer = self.layer
        operands = [self._products(), *self._weights(), *(self._first(5 + index) for index in range(layer.states))]
        if layer.late_reset:
            operands.append(self._late_bias())
        if layer.peepholes:
            shape = (layer.directions, 3, layer.hidden)
            operands.append(self._filled(self._emit(relax.op.reshape(self.inputs[7], shape)), 2))
        if layer.lengths:
            operands.append(self._emit(relax.op.astype(self.inputs[4], "int32")))
        return operands

    def _products(self) -> Expr:
        """The inputs of all steps times their weights, with biases."""
        layer = self.layer
        x, weight = self.inputs[:2]
        first, second, features = static_shape(x)
        columns = layer.directions * layer.gates * layer.padded
        by_gate = self._emit(relax.op.reshape(weight, (layer.directions, layer.gates, layer.hidden, features)))
        moved = self._emit(relax.op.permute_dims(self._filled(by_gate, 2), [3, 0, 1, 2]))
        rows = self._emit(relax.op.reshape(x, (first * second, features)))
        return self._with_bias(
            self._emit(relax.op.matmul(rows, self._emit(relax.op.reshape(moved, (features, columns)))))
        )

    def _with_bias(self, products: Expr) -> Expr:
        """Rows of products with biases, in the shape in which the kernel reads them."""
        layer = self.layer
        if self.inputs[3] is not None:
            products = self._emit(relax.op.add(products, self._bias_row()))
        shape = (*static_shape(self.inputs[0])[:2], layer.directions, layer.gates, layer.padded)
        return self._emit(relax.op.reshape(products, shape))

    def _bias_row(self) -> Expr:
        columns = self.layer.directions * self.layer.gates * self.layer.padded
        return self._emit(relax.op.reshape(self._filled(self._bias(), 2), (columns,)))

    def _weights(self) -> list[Expr]:
        """The recurrent weights in the order in which the kernel reads them, and what belongs to those of 8 bits."""
        layer = self.layer
        shape = (layer.directions, layer.gates, layer.hidden, layer.hidden)
        by_gate = self._filled(self._emit(relax.op.reshape(self.inputs[2], shape)), 2)
        moved = self._emit(relax.op.permute_dims(by_gate, [0, 2, 3, 1]))
        return [self._emit(relax.op.reshape(moved, (layer.directions, layer.padded, layer.hidden, layer.gates, 1)))]

    def _biases(self) -> Expr:
        shape = (self.layer.directions, 2, self.layer.gates, self.layer.hidden)
        return self._emit(relax.op.reshape(self.inputs[3], shape))

    def _bias(self) -> Expr:
        """Both biases, but for that of a candidate which is reset with its product: (directions, gates, hidden)."""
        biases = self._biases()
        if not self.layer.late_reset:
            return self._emit(relax.op.sum(biases, axis=1))
        counted = np.ones((1, 2, 3, 1), np.float32)
        counted[0, 1, 2] = 0
        return self._emit(relax.op.sum(self._emit(relax.op.multiply(biases, relax.const(counted))), axis=1))

    def _late_bias(self) -> Expr:
        layer = self.layer
        if self.inputs[3] is None:
            return relax.const(np.zeros((layer.directions, layer.padded), np.float32))
        cut = self._emit(relax.op.strided_slice(self._biases(), axes=[1, 2], begin=[1, 2], end=[2, 3]))
        return self._filled(self._emit(relax.op.reshape(cut, (layer.directions, layer.hidden))), 1)

    def _first(self, index: int) -> Expr:
        """A first state; zeros where none is given."""
        given = self.inputs[index]
        return relax.const(np.zeros(self.layer.state_shape, np.float32)) if given is None else given

    def _filled(self, expr: Expr, axis: int) -> Expr:
        """An expression with zeros at the end of the hidden units."""
        missing = self.layer.padded - self.layer.hidden
        if not missing:
            return expr
        widths = [0] * (2 * len(static_shape(expr)))
        widths[2 * axis + 1] = missing
        return self._emit(relax.op.nn.pad(expr, widths))

    def _emit(self, expr: Expr) -> Expr:
        return self.builder.emit(expr)


@dataclass(frozen=True)
class _ByteWeights:
    """Weights of 8 bits."""

    integers: Array  # signed bytes (directions, features, gates, padded hidden size)
    zero: Array  # their zero points, (directions, 1, gates, padded hidden size), and `scale` their scales
    scale: Array

    @classmethod
    def of(cls, integers: Array, scale: Array, zero: Array, *, layer: RecurrentLayer) -> _ByteWeights:
        """Bring those of an operator into this form.

        Args:
            integers: Bytes with or without a sign, (directions, features, gates * hidden size).
            scale: One for each direction, or for each gate and hidden unit.
            zero: Zero points, as many.
        """
        directions, _, size = integers.shape
        offset = _SIGN if integers.dtype == np.uint8 else 0

        def by_unit(numbers: Array) -> Array:
            rows = numbers.reshape(directions, -1, layer.gates, layer.hidden)
            return np.pad(rows, [(0, 0), (0, 0), (0, 0), (0, layer.padded - layer.hidden)])

        zero, scale = (np.broadcast_to(item.reshape(directions, -1), (directions, size)) for item in (zero, scale))
        return cls(by_unit(integers.astype(np.int32) - offset), by_unit(zero.astype(np.int32) - offset), by_unit(scale))


@dataclass(frozen=True)
class _DynamicLstm(_Operator):
    """An LSTM on 8-bit weights: the products of inputs become those of `integer_kernels`."""

    weights: _ByteWeights
    state_weights: _ByteWeights

    def _products(self) -> Expr:
        first, second, features = static_shape(self.inputs[0])
        rows = self._emit(relax.op.reshape(self.inputs[0], (first * second, features)))
        data, step, point = dynamic_quantize_linear(self.builder, [rows], {}).fields
        across = self.weights.integers.transpose(1, 0, 2, 3).reshape(features, -1)
        weight, zero = (relax.const(item.astype(np.int8), "int8") for item in (across, self.weights.zero.reshape(-1)))
        sums = self._emit(relax.op.astype(matmul_integer(self.builder, [data, weight, point, zero], {}), "float32"))
        factor = self._emit(relax.op.multiply(step, relax.const(self.weights.scale.reshape(-1), "float32")))
        return self._with_bias(self._emit(relax.op.multiply(sums, factor)))

    def _bias_row(self) -> Expr:
        given = self.inputs[3]
        if given is None or not is_tensor_constant(given):
            return super()._bias_row()
        layer = self.layer
        both = given.value.numpy().reshape(layer.directions, 2, layer.gates, layer.hidden).sum(axis=1)
        row = np.pad(both, [(0, 0), (0, 0), (0, layer.padded - layer.hidden)]).reshape(-1)
        return relax.const(row, "float32")

    def _weights(self) -> list[Expr]:
        layer = self.layer
        given = self.state_weights
        filled = np.pad(given.integers, [(0, 0), (0, layer.words * WORD - layer.hidden), (0, 0), (0, 0)])
        words = filled.reshape(layer.directions, layer.words, WORD, layer.gates, layer.padded)
        packed = np.ascontiguousarray(words.transpose(0, 4, 1, 3, 2)).astype(np.int8)
        terms = np.stack([given.integers.sum(axis=1), given.zero[:, 0]], axis=1).astype(np.int32)
        return [relax.const(packed, "int8"), relax.const(given.scale[:, 0], "float32"), relax.const(terms, "int32")]


def _are_full(lengths: Expr | None, steps: int) -> bool:
    """Whether all sequences are known to be as long as there are steps."""
    return lengths is not None and is_tensor_constant(lengths) and bool((lengths.value.numpy() == steps).all())
