"""The tokens of a plain text in ASCII, without the package `tokenizers`, and a text that comes along."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from autotune.tvm_backend.models.gguf.file import GgufFile
from autotune.tvm_backend.models.gguf.tokenizer import byte_pairs

_ENGLISH = Path(__file__).with_name("english.txt")
_FIRST_SEEN = 33  # bytes below stand for letters after 256
_CLASSES = {r"\p{L}": "A-Za-z", r"\p{N}": "0-9"}


def english() -> str:
    """Return some pages of English, in ASCII and without digits: 2,199 tokens of SmolLM."""
    return _ENGLISH.read_text()


def tokens_of(file: GgufFile, text: str) -> list[int] | None:
    """Return the tokens of a text in ASCII without digits; None where a file's tokenizer cannot make them.

    Args:
        file: The file of a language model.
    """
    pairs = byte_pairs(file)
    if pairs is None:
        return None
    numbers = {token: number for number, token in enumerate(pairs.tokens)}
    ranks = {merge: rank for rank, merge in enumerate(pairs.merges)}
    pieces = re.findall(in_ascii(pairs.pattern), text)
    spelt = {piece: [_letter(character) for character in piece] for piece in set(pieces)}
    joined = {
        piece: ["".join(letters)] if pairs.whole_pieces and "".join(letters) in numbers else _joined(letters, ranks)
        for piece, letters in spelt.items()
    }
    tokens = [token for piece in pieces for token in joined[piece]]
    return [numbers[token] for token in tokens] if numbers.keys() >= set(tokens) else None


def in_ascii(pattern: str) -> str:
    """Return a pattern of letters and numbers in any alphabet as one of `re`, for texts in ASCII."""

    def plain(part: re.Match[str]) -> str:
        words = part[0]
        for name, letters in _CLASSES.items():
            words = words.replace(name, letters)
        return words if part[0].startswith("[") else f"[{words}]"

    return re.sub(r"\[[^]]+\]|\\p\{[LN]\}", plain, pattern)


def _letter(character: str) -> str:
    """The letter that stands for a byte."""
    return character if ord(character) >= _FIRST_SEEN else chr(256 + ord(character))


def _joined(letters: list[str], ranks: Mapping[str, int]) -> list[str]:
    """Letters, joined pair by pair."""
    tokens = letters
    while len(tokens) > 1:
        rank, place = min((ranks.get(" ".join(pair), math.inf), index) for index, pair in enumerate(pairwise(tokens)))
        if rank == math.inf:
            break
        tokens = [*tokens[:place], tokens[place] + tokens[place + 1], *tokens[place + 2 :]]
    return tokens
