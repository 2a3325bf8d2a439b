"""The tokenizer of a GGUF file, as the package `tokenizers` reads it: byte pairs, which llama.cpp calls gpt2."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.tvm_backend.models.gguf.file import GgufFile
from autotune.tvm_backend.models.gguf.network import DecoderFile

_KEYS = "tokenizer.ggml."
_CONTROL = 3  # the type of a token that stands for no text
_DEFINED = 4  # one that is found in a text before it is cut
_ENDS = ("eos_token_id", "eot_token_id")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # what `use_regex` means
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def _bytes(*, regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# How a text is cut before byte pairs are joined, by what llama.cpp calls it.
_CUTS: Mapping[str, Sequence[dict[str, Any]]] = {
    "gpt-2": (_bytes(regex=True),),
    "default": (_bytes(regex=True),),
    "smollm": ({"type": "Digits", "individual_digits": True}, _bytes(regex=True)),
    "qwen2": (_split(_QWEN2), _bytes(regex=False)),
    "llama-bpe": (_split(_LLAMA3), _bytes(regex=False)),
}
_WHOLE_PIECES = ("llama-bpe",)  # a piece that is a token stays whole, whatever the merges make of it


@dataclass(frozen=True)
class BytePairs:
    """A tokenizer that joins byte pairs.

    Attributes:
        tokens: Each with its bytes written as letters.
        merges: The pairs that are joined, the first of them first, with a space between the two.
        cuts: How a text is cut before, as the package `tokenizers` writes it.
        whole_pieces: Whether a piece that is a token stays whole, whatever the merges make of it.
    """

    tokens: list[str]
    merges: list[str]
    cuts: Sequence[dict[str, Any]]
    whole_pieces: bool

    @property
    def pattern(self) -> str:
        """The pattern of the pieces of a text without digits."""
        patterns = [cut["pattern"]["Regex"] for cut in self.cuts if cut["type"] == "Split"]
        return patterns[0] if patterns else GPT2


def byte_pairs(file: GgufFile) -> BytePairs | None:
    """Return the tokenizer of a file; None where it is of a kind that is not known."""
    kind = str(file.values.get(_KEYS + "pre", "default"))
    cuts = _CUTS.get(kind)
    tokens, merges = (file.values.get(_KEYS + key) for key in ("tokens", "merges"))
    if file.values.get(_KEYS + "model") != "gpt2" or cuts is None:
        return None
    if not isinstance(tokens, list) or not isinstance(merges, list):
        return None
    words, pairs = ([item for item in items if isinstance(item, str)] for items in (tokens, merges))
    if len(words) != len(tokens) or len(pairs) != len(merges):
        return None
    return BytePairs(words, pairs, cuts, kind in _WHOLE_PIECES)


def end_tokens(network: DecoderFile) -> tuple[int, ...]:
    """Return the tokens that end a text. What is no token of the decoder is none of them."""
    values = [network.file.values.get(_KEYS + key) for key in _ENDS]
    numbers = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return tuple(dict.fromkeys(number for number in numbers if 0 <= number < network.sizes.vocabulary))


def tokenizer_json(file: GgufFile) -> str | None:
    """Return the content of `tokenizer.json`; None where the tokenizer is of a kind that is not known."""
    pairs = byte_pairs(file)
    if pairs is None:
        return None
    tokens = pairs.tokens
    kinds = file.values.get(_KEYS + "token_type")
    types = kinds if isinstance(kinds, list) and len(kinds) == len(tokens) else [1] * len(tokens)
    added = [
        {"id": number, "content": token, "special": kind == _CONTROL, **_AS_IT_IS}
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _DEFINED)
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": pairs.merges, "ignore_merges": pairs.whole_pieces}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    before = {"type": "Sequence", "pretokenizers": list(pairs.cuts)}
    content = {"version": "1.0", "added_tokens": added, "pre_tokenizer": before, "decoder": decoder, "model": model}
    return json.dumps(content, ensure_ascii=False)


_AS_IT_IS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
