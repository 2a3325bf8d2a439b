"""scripts/models/make_gguf: language models with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
from tokenizers import Tokenizer

from autotune.tvm_backend.models.gguf.network import read_network
from autotune.tvm_backend.models.gguf.reference import DecoderReference, empty_cache
from autotune.tvm_backend.models.gguf.tokenizer import end_tokens, tokenizer_json


def test_a_file_is_read_and_its_logits_are_as_near_each_other_as_before_training(
    load_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    script = load_script("make_gguf")
    script.write(tmp_path / "a.gguf", script.Shape(2, 64, 4, 2, 96, 300), "Q4_1")
    network = read_network(tmp_path / "a.gguf")
    of_layer = ("query", "key", "value", "output", "gate", "up", "down")
    assert {getattr(layer, name).format.name for layer in network.layers for name in of_layer} == {"Q4_1"}
    assert network.classifier.format.name == "Q8_0"
    assert network.layers[0].query_bias is not None
    logits = DecoderReference(network).logits(np.arange(9), 0, *empty_cache(network.sizes, 16))
    assert 0.05 < logits.std() < 1.0


def test_any_text_can_be_read_and_written(load_script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    script = load_script("make_gguf")
    script.write(tmp_path / "a.gguf", script.Shape(1, 64, 4, 2, 96, 300), "Q4_0")
    network = read_network(tmp_path / "a.gguf")
    text = "Two teas, zwölf Äpfel\n"
    content = tokenizer_json(network.file)
    assert content is not None
    tokenizer = Tokenizer.from_str(content)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode()) - 1  # one pair
    assert end_tokens(network) == (257,)
