"""The tokens of a plain text are those of the package `tokenizers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from autotune.tvm_backend.models.gguf.file import GgufFile
from autotune.tvm_backend.models.gguf.plain_text import english, tokens_of
from autotune.tvm_backend.models.gguf.tokenizer import tokenizer_json

from ....gguf_files import decoder

UNMERGED = "xylophone"  # a token that no merges make


def file_with(path: Path, cut: str, size: int = 700) -> GgufFile:
    """A file whose byte pairs were learnt from the text, with one token more."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    learnt.train_from_iterator([english()], trainers.BpeTrainer(vocab_size=size, initial_alphabet=letters))
    told = json.loads(learnt.to_str())["model"]
    words = [*sorted(told["vocab"], key=told["vocab"].__getitem__), UNMERGED]
    merges = [" ".join(pair) for pair in told["merges"]]
    own = {"tokens": words, "merges": merges, "token_type": None, "pre": cut}
    values = {f"tokenizer__ggml__{key}": value for key, value in own.items()}
    return GgufFile(decoder("llama", layers=1, vocabulary=size + 1).having(**values).write(path / f"{cut}.gguf"))


@pytest.mark.parametrize("cut", ["gpt-2", "default", "smollm", "qwen2", "llama-bpe"])
def test_tokens_are_those_of_the_package(tmp_path: Path, cut: str) -> None:
    file = file_with(tmp_path, cut)
    content = tokenizer_json(file)
    assert content is not None
    odd = "It's  we'll\n\n \tend,  (so) I'D!\n"
    for text in (english(), odd, UNMERGED):
        tokens = tokens_of(file, text)
        assert tokens == Tokenizer.from_str(content).encode(text).ids
    assert len(tokens_of(file, english()) or []) < len(english()) / 2, "pairs are joined"
    assert (tokens_of(file, UNMERGED) == [700]) == (cut == "llama-bpe"), "llama.cpp leaves such a piece whole there"


def test_a_tokenizer_that_is_not_known_or_lacks_a_letter_has_no_tokens(tmp_path: Path) -> None:
    file = decoder("llama", layers=1)
    for number, (key, value) in enumerate({"model": "llama", "pre": "tekken", "tokens": ["a", "b"]}.items()):
        changed = file.having(**{f"tokenizer__ggml__{key}": value}).write(tmp_path / f"{number}.gguf")
        assert tokens_of(GgufFile(changed), "Once.") is None


def test_the_text_is_plain() -> None:
    assert english().isascii()
    assert not any(character.isdigit() for character in english())
