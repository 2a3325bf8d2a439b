"""Loops of ONNX that are not unrolled: their bodies become models, and they calls of what stands for a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from tvm import relax

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.expressions import static_shape
from autotune.tvm_backend.graph.open_loops import OpenLoop, Tensor, placeholder
from autotune.tvm_backend.models.onnx.operators.loops import carried_by, is_open, slices_at_most, slices_of
from autotune.tvm_backend.models.onnx.operators.nodes import ADVICE, attributes_of, node_name
from autotune.tvm_backend.models.onnx.shape_inference import inferred_tensors
from autotune.tvm_backend.models.onnx.simplify import graphs, names_read
from autotune.tvm_backend.types import BlockBuilder, Expr, GraphProto, ModelProto, NodeProto

_CONTROL = 2  # the first inputs of a body: the number of the step, and whether the loop goes on


@dataclass(frozen=True)
class LoopBody:
    """The body of a loop as a model.

    Attributes:
        node: The name of the loop, for errors.
        graph: The model. It returns whether the loop goes on, what is carried, and slices.
        inputs: Its inputs: the number of the step, whether the loop goes on, what is carried, and what else it reads.
        carried: How many tensors are carried.
    """

    node: str
    graph: ModelProto
    inputs: tuple[InputSpec, ...]
    carried: int

    def check(self, result: relax.TupleType) -> None:
        """Check that what the body carries on has the types that it is given.

        Raises:
            ModelError: It has not.
        """
        kinds = list(result.fields)[1:] if isinstance(result, relax.TupleType) else []
        for item, kind in zip(self.inputs[_CONTROL:][: self.carried], kinds, strict=False):
            shape = tuple(map(int, kind.shape)) if isinstance(kind.shape, relax.ShapeExpr) else None
            if (shape, str(kind.dtype)) != (item.shape, item.dtype):
                sizes = "of unknown size" if shape is None else "x".join(map(str, shape)) or "scalar"
                reason = f"{item.name!r}, which it carries, becomes {kind.dtype} {sizes} in a step"
                raise ModelError(f"operator Loop {self.node!r}: {reason}; {ADVICE}")


def with_placeholders(proto: ModelProto, known: ModelProto) -> tuple[ModelProto, dict[str, LoopBody]]:
    """A graph for the importer, whose loops name their bodies and have all that these read as inputs; and the bodies.

    Args:
        proto: A graph whose inputs have fixed shapes. It is returned itself if it has no such loops.
        known: The same before `with_counts`, for inference.

    Raises:
        ModelError: The shape of what a loop reads is not known.
    """
    if not any(map(is_open, proto.graph.node)):
        return proto, {}
    tensors = _Known(*inferred_tensors(known), {item.name: item for item in proto.graph.initializer})
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    bodies: dict[str, LoopBody] = {}
    originals = filter(is_open, known.graph.node)  # which have no count among their outputs
    for node, original in zip(filter(is_open, copy.graph.node), originals, strict=True):
        name = f"loop_{len(bodies)}"
        body = _body(proto, node, tensors)
        attributes = {"body": name, "carried": body.carried, **_slices(original, known, tensors)}
        del node.attribute[:]
        node.attribute.extend(onnx.helper.make_attribute(*item) for item in attributes.items())
        node.input.extend(item.name for item in body.inputs[_CONTROL + body.carried :])
        bodies[name] = body
    return copy, bodies


def open_loop(builder: BlockBuilder, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Expr:
    """Emit what a loop carries after its last step, what it puts out in slices, and the number of steps."""
    limit, condition, *tensors = inputs
    carried = attributes["carried"]
    name = attributes["body"].decode()
    types = [str(onnx.helper.tensor_dtype_to_np_dtype(item)) for item in attributes.get("types", ())]
    slices = [(tuple(attributes[f"shape_{number}"]), dtype) for number, dtype in enumerate(types)]
    loop = OpenLoop(name, carried, len(slices), limit is not None, condition is not None)
    operands = [item for item in (limit, condition, *tensors) if item is not None]
    results = [*map(_tensor, tensors[:carried]), *slices, ((), "int64")]
    program = builder.add_func(placeholder(loop, list(map(_tensor, operands)), results), "loop")
    kinds = [relax.TensorType(shape, dtype) for shape, dtype in results]
    call = builder.emit(relax.call_tir(program, operands, out_ty=kinds))
    return relax.Tuple([builder.emit(relax.TupleGetItem(call, index)) for index in range(len(results))])


def _tensor(value: Expr) -> Tensor:
    return static_shape(value), str(value.ty.dtype)


@dataclass(frozen=True)
class _Known:
    """What is known of the tensors of a graph, by name."""

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, int]
    constants: Mapping[str, onnx.TensorProto]

    def spec(self, name: str, inside: str, node: NodeProto) -> InputSpec:
        """A tensor as an input of a body, where it is called `inside`."""
        if name not in self.shapes:
            reason = f"the shape of {name!r}, which it reads, is not known"
            raise ModelError(f"operator Loop {node_name(node)!r}: {reason}; {ADVICE}")
        return InputSpec(inside, self.shapes[name], str(onnx.helper.tensor_dtype_to_np_dtype(self.types[name])))


def _body(proto: ModelProto, node: NodeProto, known: _Known) -> LoopBody:
    """The body of a loop of a graph. What it reads of the graph beside its inputs are inputs, or constants."""
    inner: GraphProto = attributes_of(node)["body"]
    outside = _read_from_outside(inner)
    step, goes_on, *carried = inner.input
    specs = [
        InputSpec(step.name, _control_shape(step), "int64"),
        InputSpec(goes_on.name, _control_shape(goes_on), "bool"),
        *(known.spec(name, item.name, node) for name, item in zip(carried_by(node), carried, strict=True)),
        *(known.spec(name, name, node) for name in sorted(outside - known.constants.keys())),
    ]
    graph = onnx.GraphProto()
    graph.CopyFrom(inner)
    graph.initializer.extend(known.constants[name] for name in sorted(outside & known.constants.keys()))
    del graph.input[:]
    for item in specs:
        dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(item.dtype))
        graph.input.append(onnx.helper.make_tensor_value_info(item.name, dtype, item.shape))
    model = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    model.graph.CopyFrom(graph)
    return LoopBody(node_name(node), model, tuple(specs), len(carried))


def _slices(node: NodeProto, known: ModelProto, tensors: _Known) -> dict[str, Sequence[int]]:
    """The shapes of what a loop puts out in slices, each as an attribute, and the ONNX element types."""
    shapes = {f"shape_{place}": shape for place, shape in enumerate(slices_at_most(node, known))}
    return {**shapes, "types": [tensors.types[name] for name in slices_of(node)]} if shapes else {}


def _control_shape(item: onnx.ValueInfoProto) -> tuple[int, ...]:
    return (1,) * len(item.type.tensor_type.shape.dim)


def _read_from_outside(body: GraphProto) -> set[str]:
    """The names that a body and the graphs in it read, and that none of them defines."""
    inner = list(graphs(body))
    own = {item.name for graph in inner for item in (*graph.input, *graph.initializer)}
    own.update(name for graph in inner for node in graph.node for name in node.output)
    read = {name for node in body.node for name in names_read(node)}
    read.update(item.name for graph in inner for item in graph.output)
    return read - own - {""}
