"""Write a language model with random weights as a GGUF file, for what depends on its shapes alone.

    python scripts/models/make_gguf.py qwen2_0.5b --format Q4_0 --output qwen2.gguf

The layers and the formats are those that llama.cpp writes: the matrices in the one that is asked for, the table of
tokens, which is the classifier, too, in Q8_0 (in F32 beside such matrices), vectors in float32. The vocabulary is
single bytes and one pair, and names for the rest, so that any text can be read. A file of half a billion weights takes
ten seconds. It needs the package `gguf`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

_TABLE_FORMAT = "Q8_0"
_SPREAD = 0.02  # of embeddings, and of what a block adds to them: logits near each other, as before training
_BIAS_SPREAD = 0.5
_MERGED = "\u0120t"  # a space and t: llama.cpp wants one pair at least
_END = "<|endoftext|>"
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder of qwen2, as in `autotune.tvm_backend.models.gguf.network.Sizes`."""

    layers: int
    width: int
    heads: int
    shared: int
    inner: int
    vocabulary: int
    context: int = 32768


SHAPES: Mapping[str, Shape] = {
    "qwen2_0.5b": Shape(24, 896, 14, 2, 4864, 151_936),
    "smollm2_135m": Shape(30, 576, 9, 3, 1536, 49_152),  # but for the biases of qwen2
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("--format", default="Q4_0", choices=("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"))
    parser.add_argument("--output", type=Path, required=True, help="the file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.output, SHAPES[options.name], options.format, options.seed)


def write(path: Path, shape: Shape, kind: str, seed: int = 0) -> None:
    """Write a decoder of a shape, whose matrices have a format that `gguf` names, to a file."""
    writer = gguf.GGUFWriter(path, "qwen2")
    _add_sizes(writer, shape)
    _add_tokenizer(writer, shape.vocabulary)
    rng = np.random.default_rng(seed)
    for name, format, sizes, spread in tensors(shape, kind):
        values = rng.standard_normal(sizes, np.float32) * np.float32(spread) if spread else np.ones(sizes, np.float32)
        number = gguf.GGMLQuantizationType[format]
        writer.add_tensor(name, gguf.quants.quantize(values, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(shape: Shape, kind: str) -> Iterator[tuple[str, str, tuple[int, ...], float]]:
    """Yield the name, the format, the sizes and the spread of each tensor; a spread of 0 stands for ones."""
    head = shape.width // shape.heads
    shared = shape.shared * head
    outputs = {
        "attn_q": shape.width,
        "attn_k": shared,
        "attn_v": shared,
        "ffn_gate": shape.inner,
        "ffn_up": shape.inner,
    }
    added = {"attn_output": shape.width, "ffn_down": shape.inner}  # to x: by the width of what they multiply
    yield "token_embd.weight", "F32" if kind == "F32" else _TABLE_FORMAT, (shape.vocabulary, shape.width), _SPREAD
    for layer in range(shape.layers):
        for name, rows in outputs.items():
            yield f"blk.{layer}.{name}.weight", kind, (rows, shape.width), shape.width**-0.5
        for name, columns in added.items():
            yield f"blk.{layer}.{name}.weight", kind, (shape.width, columns), _SPREAD * columns**-0.5
        for name in ("attn_q", "attn_k", "attn_v"):
            yield f"blk.{layer}.{name}.bias", "F32", (outputs[name],), _BIAS_SPREAD
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", "F32", (shape.width,), 0.0
    yield "output_norm.weight", "F32", (shape.width,), 0.0


def _add_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.shared)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [*map(chr, visible), *(chr(256 + number) for number in range(256 - len(visible)))]
    words = [*letters, _MERGED, _END]
    unused = [f"<|unused{number}|>" for number in range(vocabulary - len(words))]
    kinds = [gguf.TokenType.NORMAL] * (len(words) - 1) + [gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*words, *unused])
    writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * len(unused)])
    writer.add_token_merges([" ".join(_MERGED)])
    writer.add_eos_token_id(len(words) - 1)


if __name__ == "__main__":
    main()
