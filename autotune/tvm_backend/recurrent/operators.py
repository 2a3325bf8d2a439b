"""The recurrent operators of ONNX as a matrix product for the inputs of all steps and a call of one kernel.

An imported module runs on any CPU, so its kernel computes element by element. `passes.recurrent_layers` puts another in
its place that suits the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tvm import relax

from autotune.tvm_backend.passes.rewrite import float_dtype, is_tensor_constant, static_shape
from autotune.tvm_backend.recurrent.kernel import recurrent_kernel
from autotune.tvm_backend.recurrent.layer import Kind, Layer, activations
from autotune.tvm_backend.recurrent.tile import PLAIN
from autotune.tvm_backend.types import BlockBuilder, Expr

LAYER = "autotune.recurrent_layer"  # the attribute of a kernel that says what it computes
WEIGHTS = 1  # which argument of the kernel these are


def recurrent(builder: BlockBuilder, kind: Kind, inputs: Sequence[Expr | None], attributes: Mapping[str, Any]) -> Expr:
    """Emit an LSTM, GRU or RNN.

    Args:
        builder: What bindings are added to.
        kind: The operator.
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
    for index, scale in ((1, 8), (2, 10)):
        directions = static_shape(given[index])[0]
        factor, zero = (builder.emit(relax.op.reshape(given[item], (directions, 1, -1))) for item in (scale, scale + 1))
        centred = [builder.emit(relax.op.astype(item, "float32")) for item in (given[index], zero)]
        wide = builder.emit(relax.op.multiply(builder.emit(relax.op.subtract(*centred)), factor))
        given[index] = builder.emit(relax.op.permute_dims(wide, [0, 2, 1]))
    given[0] = _rounded(builder, given[0])
    return _Operator.read(builder, "LSTM", given[:8], attributes, rounded=True).call()


def _rounded(builder: BlockBuilder, x: Expr) -> Expr:
    """What 8 bits with one scale and zero point keep of a tensor, as DynamicQuantizeLinear chooses these."""
    emit = builder.emit
    zero = relax.const(np.float32(0))
    low = emit(relax.op.minimum(emit(relax.op.min(x)), zero))
    high = emit(relax.op.maximum(emit(relax.op.max(x)), zero))
    width = emit(relax.op.divide(emit(relax.op.subtract(high, low)), relax.const(np.float32(255))))
    scale = emit(relax.op.where(emit(relax.op.equal(width, zero)), relax.const(np.float32(1)), width))
    point = emit(relax.op.round(emit(relax.op.negative(emit(relax.op.divide(low, scale))))))
    moved = emit(relax.op.add(emit(relax.op.round(emit(relax.op.divide(x, scale)))), point))
    return emit(relax.op.multiply(emit(relax.op.subtract(emit(relax.op.clip(moved, 0, 255)), point)), scale))


@dataclass(frozen=True)
class _Operator:
    """A recurrent operator: its layer, and its inputs by position."""

    builder: BlockBuilder
    layer: Layer
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
        layer = Layer(
            kind,
            steps,
            batch,
            int(attributes.get("hidden_size") or static_shape(given[2])[-1]),
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
        operands = [self._products(), self._weights(), *(self._first(5 + index) for index in range(layer.states))]
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
        products = self._emit(relax.op.matmul(rows, self._emit(relax.op.reshape(moved, (features, columns)))))
        if self.inputs[3] is not None:
            bias = self._emit(relax.op.reshape(self._filled(self._bias(), 2), (columns,)))
            products = self._emit(relax.op.add(products, bias))
        return self._emit(relax.op.reshape(products, (first, second, layer.directions, layer.gates, layer.padded)))

    def _weights(self) -> Expr:
        """The recurrent weights in the order in which the kernel reads them."""
        layer = self.layer
        shape = (layer.directions, layer.gates, layer.hidden, layer.hidden)
        by_gate = self._filled(self._emit(relax.op.reshape(self.inputs[2], shape)), 2)
        moved = self._emit(relax.op.permute_dims(by_gate, [0, 2, 3, 1]))
        return self._emit(relax.op.reshape(moved, (layer.directions, layer.padded, layer.hidden, layer.gates, 1)))

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


def _are_full(lengths: Expr | None, steps: int) -> bool:
    """Whether all sequences are known to be as long as there are steps."""
    return lengths is not None and is_tensor_constant(lengths) and bool((lengths.value.numpy() == steps).all())
