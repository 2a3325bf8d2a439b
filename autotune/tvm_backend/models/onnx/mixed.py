"""Keep some layers of a quantised model in floats, so that few enough of its answers change.

A layer is a convolution or a product with constants. First each is quantised alone: what that adds to the error of the
outputs, and what it saves of the layer's time. The layers are ranked by error for time saved, as in the integer
programs of HAWQ-V3 (Yao et al., 2021), and the fewest of the worst stay in floats with which the whole model is within
the limit. Then each of those is tried in bytes again, the slowest first. Whatever decides was measured: errors and
answers on the calibration data, times of single layers in ONNX Runtime on one thread of this machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper

from autotune.storage.quantisation import FloatLayer, MixedModel, Quantisation
from autotune.tvm_backend.models.onnx.simplify import open_session
from autotune.tvm_backend.types import ModelProto, NodeProto, TensorProto

Arrays = Mapping[str, npt.NDArray[Any]]
Cost = Callable[[ModelProto], Quantisation]

_LAYERS = ("Conv", "Gemm", "MatMul")
_RUNS = 7  # of a layer that is timed: the least time counts
_TRIED_AGAIN = 16  # layers, at most


def name_nodes(model: ModelProto) -> ModelProto:
    """Give each node a name of its own, so that a layer can be told in the model that the quantiser makes."""
    names: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in names:
            node.name = f"{node.op_type}:{number}"
        names.add(node.name)
    return model


def mixed(
    graph: MixedGraph, cost: Cost, error: Cost, whole: Quantisation, max_drop: float
) -> tuple[ModelProto, Quantisation]:
    """Keep as little as possible of a quantised model in floats.

    Args:
        graph: The quantised model, of which too many answers changed.
        cost: Measures a model on all samples.
        error: Measures one on a few samples, for the ranking.
        whole: What the quantised model costs.
        max_drop: Which part of the answers may change.

    Returns:
        The model, and what it costs, with the models that were tried on the way.
    """
    ranked = _ranked(graph, error)
    search = _Search(graph, cost, max_drop, ranked, {frozenset(): whole})
    floats = search.without_needless(search.fewest())
    return graph.with_floats({layer.name for layer in floats}), search.described(floats)


class MixedGraph:
    """A model and its quantised form, of which any layers can be had in floats.

    What follows only layers in floats is in floats, too: there is nothing to gain by quantising it. Layers are timed
    with inputs of the shapes that they have for `sample`.
    """

    def __init__(self, source: ModelProto, quantised: ModelProto, sample: Arrays) -> None:
        self._sample = sample
        self._source = {node.name: node for node in source.graph.node}
        self._weights = {_in_floats(item.name): _renamed(item) for item in source.graph.initializer}
        self._quantised = quantised
        self._makers = {output: node for node in quantised.graph.node for output in node.output}

    @cached_property
    def layers(self) -> tuple[NodeProto, ...]:
        """The layers that are computed in bytes, in the order of the graph."""
        return tuple(node for node in self._quantised.graph.node if self._is_layer(node))

    def with_floats(self, names: Collection[str]) -> ModelProto:
        """Return the quantised model with the layers of these names in floats."""
        model = onnx.ModelProto()
        model.CopyFrom(self._quantised)
        in_floats = self._all_in_floats(names)
        for node in model.graph.node:
            if node.name in in_floats:
                exact = self._source[node.name].input
                node.input[:] = [self._before(*pair) for pair in zip(node.input, exact, strict=True)]
        outputs = {item.name for item in model.graph.output}
        for node in model.graph.node:
            if node.op_type == "DequantizeLinear" and node.output[0] in outputs:
                self._pass_on(node, in_floats)
        _prune(model, self._weights)
        return model

    def alone(self, layer: NodeProto) -> tuple[ModelProto, ModelProto]:
        """Return one layer as a model of its own, in floats and in bytes. Its input has a shape that is inferred."""
        exact = self._source[layer.name]
        shape = self._shapes[self._exact(layer.input[0])]
        quantiser = self._makers[self._makers[layer.input[0]].input[0]]
        constants = [node for name in layer.input[1:] if (node := self._makers.get(name))]
        scale = quantiser.input[1:]
        bytes_ = [
            helper.make_node("QuantizeLinear", ["x", *scale], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", *scale], ["xf"]),
            *constants,
            helper.make_node(layer.op_type, ["xf", *layer.input[1:]], ["yf"]),
            helper.make_node("QuantizeLinear", ["yf", *scale], ["yq"]),
            helper.make_node("DequantizeLinear", ["yq", *scale], ["y"]),
        ]
        others = [self._before(*pair) for pair in zip(layer.input[1:], exact.input[1:], strict=True)]
        floats = [helper.make_node(layer.op_type, ["x", *others], ["y"])]
        for node in (bytes_[-3], floats[0]):
            node.attribute.extend(layer.attribute)
        return self._model(floats, shape), self._model(bytes_, shape)

    def _model(self, nodes: Sequence[NodeProto], shape: Sequence[int]) -> ModelProto:
        data = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
        result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "layer", [data], [result], list(self._quantised.graph.initializer))
        model = helper.make_model(graph, opset_imports=self._quantised.opset_import)
        model.ir_version = self._quantised.ir_version
        _prune(model, self._weights)
        return model

    @cached_property
    def _shapes(self) -> dict[str, list[int]]:
        """The shapes of what the layers read, by its name, for the sample."""
        model = onnx.ModelProto()
        model.CopyFrom(self._quantised)
        names = sorted({self._exact(layer.input[0]) for layer in self.layers} - self._sample.keys())
        del model.graph.output[:]
        model.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
        values = zip(names, open_session(model, ()).run(None, dict(self._sample)), strict=True)
        return {name: list(value.shape) for name, value in (*self._sample.items(), *values)}

    def _is_layer(self, node: NodeProto) -> bool:
        if node.op_type not in _LAYERS or node.name not in self._source:
            return False
        return self._is_constant(node.input[1]) and self._exact(node.input[0]) != node.input[0]

    def _is_constant(self, name: str) -> bool:
        """Whether a value is a constant that is dequantised."""
        maker = self._makers.get(name)
        return maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] not in self._makers

    def _exact(self, name: str) -> str:
        """The name of a value before it was quantised, of one that is; any other name itself."""
        maker = self._makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear":
            return name
        quantiser = self._makers.get(maker.input[0])
        return str(quantiser.input[0]) if quantiser is not None and quantiser.op_type == "QuantizeLinear" else name

    def _before(self, name: str, exact: str) -> str:
        """What an operator reads in floats for an input, which `exact` is the name of in the model as it was."""
        return _in_floats(exact) if self._is_constant(name) else self._exact(name)

    def _all_in_floats(self, names: Collection[str]) -> set[str]:
        """The layers of these names, and what reads nothing but their results and the model's inputs."""
        in_floats = set(names)
        layers = {node.name for node in self.layers}
        for node in self._quantised.graph.node:
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear") and node.name not in layers:
                makers = [self._makers.get(self._exact(name)) for name in node.input if not self._is_constant(name)]
                if all(maker is None or maker.name in in_floats for maker in makers):
                    in_floats.add(node.name)
        return in_floats

    def _pass_on(self, node: NodeProto, in_floats: Collection[str]) -> None:
        """Turn what dequantises an output of the model into a copy, if the output is made in floats."""
        value = self._exact(node.output[0])
        maker = self._makers.get(value)
        if maker is not None and maker.name in in_floats:
            node.op_type = "Identity"
            node.input[:] = [value]
            del node.attribute[:]


def _in_floats(name: str) -> str:
    """The name of a constant in floats: where it is quantised, what it is dequantised to has its old name."""
    return f"{name}:float"


def _renamed(constant: TensorProto) -> TensorProto:
    renamed = onnx.TensorProto()
    renamed.CopyFrom(constant)
    renamed.name = _in_floats(constant.name)
    return renamed


def _prune(model: ModelProto, weights: dict[str, TensorProto]) -> None:
    """Remove what no output needs, and add the constants in floats that are needed now."""
    makers = {output: node for node in model.graph.node for output in node.output}
    needed = _needed([item.name for item in model.graph.output], makers)
    nodes = [node for node in model.graph.node if any(output in needed for output in node.output)]
    there = {item.name: item for item in model.graph.initializer}
    constants = [there.get(name, weights.get(name)) for name in sorted(needed - makers.keys())]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.initializer[:]
    model.graph.initializer.extend(item for item in constants if item is not None)


def _needed(outputs: Sequence[str], makers: dict[str, NodeProto]) -> set[str]:
    needed: set[str] = set()
    left = list(outputs)
    while left:
        name = left.pop()
        if name and name not in needed:
            needed.add(name)
            left.extend(makers[name].input if name in makers else [])
    return needed


def _ranked(graph: MixedGraph, error: Cost) -> list[FloatLayer]:
    """The layers, those first that add most error for the time that they save."""
    names = {node.name for node in graph.layers}
    layers = []
    for node in graph.layers:
        exact, quantised = (_least_ms(model) for model in graph.alone(node))
        cost = error(graph.with_floats(names - {node.name}))
        layers.append(FloatLayer(node.name, cost.error, exact, quantised))
    return sorted(layers, key=lambda layer: -layer.error / max(layer.saved_ms, layer.float_ms / 100))


def _least_ms(model: ModelProto) -> float:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (data,) = session.get_inputs()
    feed = {data.name: onnxruntime.OrtValue.ortvalue_from_shape_and_type(data.shape, "float32").numpy()}
    return min(_elapsed_ms(session, feed) for _ in range(_RUNS))


def _elapsed_ms(session: onnxruntime.InferenceSession, feed: dict[str, object]) -> float:
    begun = time.perf_counter()
    session.run(None, feed)
    return (time.perf_counter() - begun) * 1e3


@dataclass
class _Search:
    """Looks for the layers to keep in floats; remembers each model that was measured."""

    graph: MixedGraph
    cost: Cost
    max_drop: float
    ranked: Sequence[FloatLayer]
    costs: dict[frozenset[str], Quantisation]

    def measured(self, floats: Collection[FloatLayer]) -> Quantisation:
        names = frozenset(layer.name for layer in floats)
        if names not in self.costs:
            self.costs[names] = self.cost(self.graph.with_floats(names))
        return self.costs[names]

    def fewest(self) -> list[FloatLayer]:
        """Bisect for how many layers, from the worst on, have to be in floats. With all of them no answer changes."""
        too_few = 0
        enough = len(self.ranked)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self.measured(self.ranked[:middle]).within(self.max_drop):
                enough = middle
            else:
                too_few = middle
        return list(self.ranked[:enough])

    def without_needless(self, floats: list[FloatLayer]) -> list[FloatLayer]:
        """Leave out the layers that are faster in bytes, and allowed in them now that the others are in floats."""
        by_time = sorted((layer for layer in floats if layer.saved_ms > 0), key=lambda layer: -layer.saved_ms)
        for layer in by_time[:_TRIED_AGAIN]:
            fewer = [other for other in floats if other is not layer]
            if fewer and self.measured(fewer).within(self.max_drop):
                floats = fewer
        return floats

    def described(self, floats: Sequence[FloatLayer]) -> Quantisation:
        cost = self.measured(floats)
        return replace(cost, layers=len(self.ranked), floats=tuple(floats), curve=tuple(self._curve()))

    def _curve(self) -> Iterator[MixedModel]:
        """All models that were measured, from the fastest to the slowest."""
        layers = {layer.name: layer for layer in self.ranked}
        whole = math.fsum(layer.float_ms for layer in self.ranked)
        models = []
        for names, cost in self.costs.items():
            lost = math.fsum(layers[name].saved_ms for name in names)
            quantised = math.fsum(layer.quantised_ms for layer in self.ranked)
            time = (quantised + lost) / whole
            models.append(MixedModel(len(names), time, cost.error, cost.agreement, cost.score))
        yield from sorted(models, key=lambda model: model.time)
