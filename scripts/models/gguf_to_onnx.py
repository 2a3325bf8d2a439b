"""Write the decoder of a GGUF file as an ONNX model in float32, as ONNX Runtime runs it fastest.

    python scripts/models/gguf_to_onnx.py smol.gguf --context 2048 --output smol.onnx

It is what ONNX Runtime GenAI's builder makes: GroupQueryAttention with rotation in it, the norms of com.microsoft, one
product for queries, keys and values. The cache is an input and an output of each layer, for which the caller gives the
same memory. Inputs: `ids` (1, tokens), `last` (1), the index of the last token in the cache, and `total`, how many
tokens the cache has then. Output: `logits` of the last token. Weights go to a file beside the model. Of the
architectures, llama and qwen2 are known.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.models.gguf.file import Tensor
from autotune.tvm_backend.models.gguf.network import DecoderFile, DecoderLayer, read_network

_MS = "com.microsoft"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--context", type=int, default=2048, help="tokens that the cache has room for")
    parser.add_argument("--output", type=Path, required=True, help="the file")
    options = parser.parse_args()
    network = read_network(options.gguf)
    if network.architecture.scaled or network.layers[0].query_norm or network.layers[0].after_norm:
        sys.exit(f"{options.gguf}: of the architectures, llama and qwen2 are known")
    model = Decoder(network, options.context).model()
    onnx.save(model, options.output, save_as_external_data=True, location=f"{options.output.name}.data")


class Decoder:
    """The graph of a decoder, built node by node."""

    def __init__(self, network: DecoderFile, context: int) -> None:
        self._network = network
        self._context = context
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        network = self._network
        angles = network.angles(self._context, local=False)
        self._constant("cos", np.cos(angles))
        self._constant("sin", np.sin(angles))
        x = self._op("Gather", self._weights("words", network.embedding, transposed=False), "ids")
        normal = self._op("SimplifiedLayerNormalization", x, self._weights("norm0", network.layers[0].norm), axis=-1)
        self._nodes[-1].attribute.append(helper.make_attribute("epsilon", network.epsilon))
        for index, layer in enumerate(network.layers):
            following = network.layers[index + 1].norm if index + 1 < len(network.layers) else network.last_norm
            x, normal = self._layer(index, layer, x, normal, following)
        last = self._op("Gather", normal, self._constant("last_of_all", np.array([-1], np.int64)), axis=1)
        self._op("MatMul", last, self._weights("classifier", network.classifier), output="logits")
        return self._finished()

    def _layer(self, index: int, layer: DecoderLayer, x: str, normal: str, following: Tensor) -> tuple[str, str]:
        """What a layer adds to x, and the norm of it that the next layer reads."""
        attended = self._attention(index, layer, normal)
        added = self._op("MatMul", attended, self._weights(f"output{index}", layer.output))
        x, normal = self._skip(added, x, self._weights(f"inner_norm{index}", layer.inner_norm))
        gate = self._op("MatMul", normal, self._weights(f"gate{index}", layer.gate))
        up = self._op("MatMul", normal, self._weights(f"up{index}", layer.up))
        gated = self._op("Mul", self._op("Mul", gate, self._op("Sigmoid", gate)), up)
        down = self._op("MatMul", gated, self._weights(f"down{index}", layer.down))
        return self._skip(down, x, self._weights(f"norm{index + 1}", following))

    def _attention(self, index: int, layer: DecoderLayer, normal: str) -> str:
        network = self._network
        tensors = (layer.query, layer.key, layer.value)
        joined = np.concatenate([network.floats(tensor) for tensor in tensors])
        packed = self._op("MatMul", normal, self._constant(f"packed{index}", joined.T))
        biases = (layer.query_bias, layer.key_bias, layer.value_bias)
        if layer.query_bias is not None:
            bias = np.concatenate([network.floats(item) for item in biases if item is not None])
            packed = self._op("Add", packed, self._constant(f"bias{index}", bias))
        operands = [packed, "", "", f"past_key{index}", f"past_value{index}", "last", "total", "cos", "sin"]
        self._op(
            "GroupQueryAttention",
            *operands,
            outputs=[f"attended{index}", f"key{index}", f"value{index}"],
            num_heads=network.sizes.heads,
            kv_num_heads=network.sizes.shared,
            do_rotary=1,
            rotary_interleaved=int(network.architecture.adjacent),
        )
        return f"attended{index}"

    def _skip(self, added: str, x: str, weights: str) -> tuple[str, str]:
        """The sum of two, and its norm."""
        name = f"skip{len(self._nodes)}"
        outputs = [name, "", "", f"{name}_sum"]
        self._op("SkipSimplifiedLayerNormalization", added, x, weights, outputs=outputs, epsilon=self._network.epsilon)
        return outputs[-1], name

    def _op(
        self, kind: str, *operands: str, output: str = "", outputs: list[str] | None = None, **attributes: Any
    ) -> str:
        names = outputs or [output or f"t{len(self._nodes)}"]
        own = kind in ("GroupQueryAttention", "SkipSimplifiedLayerNormalization")
        self._nodes.append(helper.make_node(kind, operands, names, domain=_MS if own else "", **attributes))
        return names[0]

    def _weights(self, name: str, tensor: Tensor, transposed: bool = True) -> str:
        floats = self._network.floats(tensor)
        return self._constant(name, floats.T if transposed else floats)

    def _constant(self, name: str, value: np.ndarray) -> str:
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def _finished(self) -> onnx.ModelProto:
        sizes = self._network.sizes
        cache = (1, sizes.shared, self._context, sizes.head)
        value = helper.make_tensor_value_info
        kept = [(kind, index) for index in range(sizes.layers) for kind in ("key", "value")]
        inputs = [value("ids", TensorProto.INT64, (1, "tokens")), value("last", TensorProto.INT32, (1,))]
        inputs += [value("total", TensorProto.INT32, (1,))]
        inputs += [value(f"past_{kind}{index}", TensorProto.FLOAT, cache) for kind, index in kept]
        outputs = [value("logits", TensorProto.FLOAT, (1, 1, sizes.vocabulary))]
        outputs += [value(f"{kind}{index}", TensorProto.FLOAT, cache) for kind, index in kept]
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, list(self._constants.values()))
        versions = [helper.make_opsetid("", 21), helper.make_opsetid(_MS, 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=10)


if __name__ == "__main__":
    main()
