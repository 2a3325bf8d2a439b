"""What a GGUF file says of a decoder: its sizes, the variant of its architecture, and its weights by their place.

The architectures differ in little: how pairs of elements are rotated, whether queries and keys are normalised, whether
there are biases, norms after a block and layers that look at near tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.errors import ModelError, one_line
from autotune.tvm_backend.models.gguf.file import GgufFile, Tensor, Value

Floats = npt.NDArray[np.float32]
_MAX_SIZE = 1 << 24  # of a width, a vocabulary or the like
_MAX_LAYERS = 1 << 10
_MAX_CONTEXT = 1 << 24
_GEMMA_LOCAL_BASE = 10_000.0
_GEMMA_GLOBAL_EVERY = 6


@dataclass(frozen=True)
class DecoderArchitecture:
    """In what an architecture differs from the others.

    Attributes:
        adjacent: Whether a pair that is rotated together lies side by side; otherwise half a head apart.
        gelu: Whether the gate is GELU; otherwise SiLU.
        scaled: Whether embeddings are multiplied by the square root of the width.
        local: Whether most layers look at near tokens only, and rotate by another base.
    """

    adjacent: bool = False
    gelu: bool = False
    scaled: bool = False
    local: bool = False


ARCHITECTURES: Mapping[str, DecoderArchitecture] = {
    "llama": DecoderArchitecture(adjacent=True),
    "qwen2": DecoderArchitecture(),
    "qwen3": DecoderArchitecture(),
    "gemma3": DecoderArchitecture(gelu=True, scaled=True, local=True),
}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder.

    Attributes:
        layers: How many layers it has.
        width: Elements of an embedding.
        heads: Of queries.
        shared: Heads of keys and values: each is for `heads / shared` of the queries.
        head: Elements of a head.
        inner: Elements between the two products of a feed-forward block.
        vocabulary: How many tokens there are.
    """

    layers: int
    width: int
    heads: int
    shared: int
    head: int
    inner: int
    vocabulary: int


@dataclass(frozen=True)
class DecoderLayer:
    """The tensors of a layer. Those that its architecture lacks are None."""

    norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    inner_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    after_norm: Tensor | None = None
    inner_after_norm: Tensor | None = None


# The names of a layer's tensors in the file.
_NAMES = {
    "norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "output": "attn_output.weight",
    "inner_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "after_norm": "post_attention_norm.weight",
    "inner_after_norm": "post_ffw_norm.weight",
}


@dataclass(frozen=True)
class DecoderFile:
    """A decoder.

    Attributes:
        file: Where its weights are.
        epsilon: What is added to the mean square in a norm.
        context: How many tokens it was trained for.
        window: How many tokens a local layer looks at.
        base: Of the angles of rotation.
        scaling: What positions are divided by in layers that are not local.
        embedding: The table of embeddings.
        classifier: What makes logits; the table of embeddings where the file has nothing else.
        factors: What each angle is divided by; None for 1.
    """

    file: GgufFile
    architecture: DecoderArchitecture
    sizes: Sizes
    epsilon: float
    context: int
    window: int
    base: float
    scaling: float
    embedding: Tensor
    last_norm: Tensor
    classifier: Tensor
    factors: Tensor | None
    layers: tuple[DecoderLayer, ...]

    def is_local(self, layer: int) -> bool:
        """Return whether a layer looks at near tokens only."""
        return self.architecture.local and (layer + 1) % _GEMMA_GLOBAL_EVERY != 0

    def floats(self, tensor: Tensor) -> Floats:
        """Return a tensor in float32."""
        return tensor.format.to_floats(self.file.raw(tensor)).reshape(tensor.shape)

    def angles(self, positions: int, *, local: bool) -> Floats:
        """Return the angles by which the pairs of a head are rotated at each position, (positions, head / 2)."""
        base = _GEMMA_LOCAL_BASE if local else self.base
        exponents = np.arange(0, self.sizes.head, 2, dtype=np.float64) / self.sizes.head
        steps = base**-exponents / (1.0 if local else self.scaling)
        if self.factors is not None:
            steps /= self.floats(self.factors).astype(np.float64)
        return np.outer(np.arange(positions), steps).astype(np.float32)


def read_network(path: Path) -> DecoderFile:
    """Read what a GGUF file says of a decoder.

    Raises:
        ModelError: The file is damaged, or the decoder is of a kind that is not known. The message names what is not.
    """
    file = GgufFile(path)
    return _Reader(file).network()


class _Reader:
    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._left = dict(file.tensors)
        self._name = self._text("general.architecture")
        if self._name not in ARCHITECTURES:
            names = ", ".join(ARCHITECTURES)
            raise self._refused(f"its architecture {one_line(self._name)[:40]!r} is not known; known are {names}")

    def network(self) -> DecoderFile:
        self._check_scaling()
        sizes = self._sizes()
        embedding = self._take("token_embd.weight", (sizes.vocabulary, sizes.width))
        classifier = self._left.pop("output.weight", embedding)
        self._check(classifier, (sizes.vocabulary, sizes.width))
        network = DecoderFile(
            file=self._file,
            architecture=ARCHITECTURES[self._name],
            sizes=sizes,
            epsilon=self._number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
            context=self._whole("context_length", _MAX_CONTEXT),
            window=self._whole("attention.sliding_window", _MAX_CONTEXT, 1),
            base=self._number("rope.freq_base", 1.0, 1e12, 10_000.0),
            scaling=self._number("rope.scaling.factor", 1.0, 1e6, 1.0),
            embedding=embedding,
            last_norm=self._take("output_norm.weight", (sizes.width,)),
            classifier=classifier,
            factors=self._maybe("rope_freqs.weight", (sizes.head // 2,)),
            layers=tuple(self._layer(index, sizes) for index in range(sizes.layers)),
        )
        if self._left:
            unknown = one_line(next(iter(self._left)))
            raise self._refused(f"it has the tensor {unknown!r}, for which its architecture has no place")
        return network

    def _sizes(self) -> Sizes:
        width = self._whole("embedding_length", _MAX_SIZE)
        heads = self._whole("attention.head_count", _MAX_SIZE)
        head = self._whole("attention.key_length", _MAX_SIZE, width // heads)
        rotated = self._whole("rope.dimension_count", _MAX_SIZE, head)
        values = self._whole("attention.value_length", _MAX_SIZE, head)
        shared = self._whole("attention.head_count_kv", _MAX_SIZE, heads)
        if head % 16 or rotated != head or values != head or heads % shared:
            raise self._refused(
                f"heads of {head} elements ({rotated} rotated, {values} of values), {heads} on {shared}, have no kernel"
            )
        table = self._file.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise self._refused("it has no table token_embd.weight of two dimensions")
        return Sizes(
            layers=self._whole("block_count", _MAX_LAYERS),
            width=width,
            heads=heads,
            shared=shared,
            head=head,
            inner=self._whole("feed_forward_length", _MAX_SIZE),
            vocabulary=table.shape[0],
        )

    def _check_scaling(self) -> None:
        kind = self._value("rope.scaling.type", "none")
        if kind not in ("none", "linear"):
            raise self._refused(f"its positions are scaled by {one_line(str(kind))[:40]!r}, which is not known")

    def _layer(self, index: int, sizes: Sizes) -> DecoderLayer:
        width = sizes.width
        queries = sizes.heads * sizes.head
        shared = sizes.shared * sizes.head
        shapes = {
            "query": (queries, width), "key": (shared, width), "value": (shared, width), "output": (width, queries),
            "gate": (sizes.inner, width), "up": (sizes.inner, width), "down": (width, sizes.inner),
            "query_bias": (queries,), "key_bias": (shared,), "value_bias": (shared,),
            "query_norm": (sizes.head,), "key_norm": (sizes.head,),
        }  # fmt: skip
        optional = set(list(_NAMES)[9:])
        taken: dict[str, Tensor | None] = {}
        for place, name in _NAMES.items():
            take = self._maybe if place in optional else self._take
            taken[place] = take(f"blk.{index}.{name}", shapes.get(place, (width,)))
        return DecoderLayer(**taken)  # type: ignore[arg-type]

    def _maybe(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        return self._take(name, shape) if name in self._left else None

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise self._refused(f"it has no tensor {name}")
        self._check(tensor, shape)
        return tensor

    def _check(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise self._refused(f"tensor {tensor.name} has the shape {tensor.shape}, and not {shape}")
        if len(shape) == 1 and tensor.format.floats is None:
            raise self._refused(f"tensor {tensor.name} is of type {tensor.format.name}; a vector has to be in floats")

    def _value(self, name: str, default: Value | None = None) -> Value:
        key = name if name.startswith("general.") else f"{self._name}.{name}"
        value = self._file.values.get(key, default)
        if value is None:
            raise self._refused(f"it does not say {key}")
        return value

    def _text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            raise self._refused(f"{name} is no text")
        return value

    def _whole(self, name: str, most: int, default: int | None = None) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise self._refused(f"{self._name}.{name} is {str(value)[:40]}, and no whole number from 1 to {most}")
        return value

    def _number(self, name: str, least: float, most: float, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self._refused(f"{self._name}.{name} is {str(value)[:40]}, and no number from {least:g} to {most:g}")
        return float(value)

    def _refused(self, reason: str) -> ModelError:
        return ModelError(f"{self._file.path}: {reason}")
