"""GGUF files of small decoders with random weights, one for each architecture."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# The number of a format, the elements and bytes of a block, and the bytes of it that are float16.
FORMATS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, (0,)),
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
_TEXT, _LIST = 8, 9
_ALIGNMENT = 32
HEAD = 32
VOCABULARY = 256


def random_rows(name: str, rows: int, columns: int, seed: int = 0, spread: float = 0.02) -> npt.NDArray[np.uint8]:
    """Rows of random elements as bytes: floats of a spread, or blocks whose scales are about as large."""
    number, elements, size, halves = FORMATS[name]
    rng = np.random.default_rng(seed)
    if number < 2:
        values = rng.standard_normal((rows, columns)) * spread
        return np.ascontiguousarray(values.astype(np.float32 if name == "F32" else np.float16)).view(np.uint8)
    raw = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for place in halves:
        scale = rng.uniform(0.5, 1.5, raw.shape[:2]) * spread / (4000 if size == 210 else 400 if "K" in name else 8)
        raw[..., place : place + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


@dataclass(frozen=True)
class Part:
    """A tensor: its shape, the outermost size first, the name of its format and its bytes."""

    shape: tuple[int, ...]
    kind: str
    data: bytes


@dataclass(frozen=True)
class File:
    """What is in a file."""

    values: Mapping[str, Any]
    parts: Mapping[str, Part]
    places: Mapping[str, int] = field(default_factory=dict)  # of tensors that lie elsewhere than after the one before

    def encoded(self) -> bytes:
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(self.parts), len(self.values))
        for key, value in self.values.items():
            head += _text(key) + _value(value)
        place = 0
        body = b""
        for name, part in self.parts.items():
            sizes = struct.pack(f"<I{len(part.shape)}Q", len(part.shape), *part.shape[::-1])
            head += _text(name) + sizes + struct.pack("<IQ", FORMATS[part.kind][0], self.places.get(name, place))
            body += part.data + bytes(-len(part.data) % _ALIGNMENT)
            place = len(body)
        return head + bytes(-len(head) % _ALIGNMENT) + body

    def write(self, path: Path) -> Path:
        path.write_bytes(self.encoded())
        return path

    def having(self, **values: Any) -> File:
        """The file with other values; those that are None are left out."""
        changed = {**self.values, **{key.replace("__", "."): value for key, value in values.items()}}
        return replace(self, values={key: value for key, value in changed.items() if value is not None})

    def without(self, name: str) -> File:
        return replace(self, parts={key: part for key, part in self.parts.items() if key != name})

    def adding(self, name: str, part: Part) -> File:
        return replace(self, parts={**self.parts, name: part})


def _text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str | bytes):
        return struct.pack("<I", _TEXT) + _text(value)
    items = b"".join(_text(item) if isinstance(item, str) else struct.pack("<i", item) for item in value)
    kind = _TEXT if value and isinstance(value[0], str) else 5
    return struct.pack("<IIQ", _LIST, kind, len(value)) + items


def tensor(kind: str, *shape: int, seed: int = 0, spread: float = 0.02) -> Part:
    """A random tensor."""
    rows = int(np.prod(shape[:-1]))
    return Part(shape, kind, random_rows(kind, rows, shape[-1], seed, spread).tobytes())


def _ones(size: int, seed: int) -> Part:
    values = np.random.default_rng(seed).uniform(0.8, 1.2, size).astype(np.float32)
    return Part((size,), "F32", values.tobytes())


def decoder(
    architecture: str,
    kinds: Sequence[str] = ("Q4_1", "Q8_0"),
    layers: int = 2,
    vocabulary: int = VOCABULARY,
    width: int = 64,
    inner: int = 96,
    head: int = HEAD,
    spread: float = 0.2,
) -> File:
    """A decoder with 4 heads on 2.

    Args:
        architecture: Which one.
        kinds: The formats of its matrices, taken in turn; the last one is that of its table, which is the classifier.
        layers: How many layers it has.
        vocabulary: How many tokens it has.
        width: Of its embeddings, a multiple of what a block has; as is `inner`.
        inner: Between the products of a feed-forward block.
        head: Elements of a head.
        spread: Of the weights of its layers.
    """
    queries, shared = 4 * head, 2 * head
    seeds = iter(range(1, 1000))
    turns = iter(kinds[number % len(kinds)] for number in range(1000))
    parts = {"token_embd.weight": tensor(kinds[-1], vocabulary, width, seed=next(seeds), spread=0.5)}
    for layer in range(layers):
        shapes = {
            "attn_q": (queries, width), "attn_k": (shared, width), "attn_v": (shared, width),
            "attn_output": (width, queries), "ffn_gate": (inner, width), "ffn_up": (inner, width),
            "ffn_down": (width, inner),
        }  # fmt: skip
        norms = {"attn_norm": width, "ffn_norm": width}
        if architecture in ("qwen3", "gemma3"):
            norms |= {"attn_q_norm": head, "attn_k_norm": head}
        if architecture == "gemma3":
            norms |= {"post_attention_norm": width, "post_ffw_norm": width}
        blk = f"blk.{layer}."
        parts |= {
            f"{blk}{name}.weight": tensor(next(turns), *at, seed=next(seeds), spread=spread)
            for name, at in shapes.items()
        }
        parts |= {f"{blk}{name}.weight": _ones(size, next(seeds)) for name, size in norms.items()}
        if architecture == "qwen2":
            sizes = {"attn_q": queries, "attn_k": shared, "attn_v": shared}
            parts |= {
                f"{blk}{name}.bias": tensor("F32", size, seed=next(seeds), spread=0.5) for name, size in sizes.items()
            }
    parts["output_norm.weight"] = _ones(width, next(seeds))
    return File(_values(architecture, (layers, width, inner, head), vocabulary), parts)


def _values(architecture: str, sizes: tuple[int, int, int, int], vocabulary: int) -> dict[str, Any]:
    layers, width, inner, head = sizes
    own = {
        "context_length": 512,
        "block_count": layers,
        "embedding_length": width,
        "feed_forward_length": inner,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        **({"attention.sliding_window": 24} if architecture == "gemma3" else {}),
    }
    # The words of a tokenizer: single bytes, as byte pairs begin with, and an end.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = [chr(byte) for byte in visible] + [chr(256 + number) for number in range(len(hidden))]
    words = [*letters[: vocabulary - 1], "<end>"]
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [*[1] * (len(words) - 1), 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": len(words) - 1,
    }
