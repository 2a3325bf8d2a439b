"""What a GGUF file says of a decoder is read; a decoder of another kind is refused by what is not known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import ModelError
from autotune.tvm_backend.models.gguf.network import ARCHITECTURES, read_network

from ....gguf_files import HEAD, VOCABULARY, File, decoder, tensor

LLAMA = decoder("llama")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_are_those_of_the_file(tmp_path: Path, architecture: str) -> None:
    network = read_network(decoder(architecture).write(tmp_path / "a.gguf"))
    sizes = network.sizes
    assert (sizes.layers, sizes.width, sizes.heads, sizes.shared, sizes.head) == (2, 64, 4, 2, HEAD)
    assert (sizes.inner, sizes.vocabulary, network.context) == (96, VOCABULARY, 512)
    assert network.classifier is network.embedding


def test_a_classifier_of_its_own_is_used(tmp_path: Path) -> None:
    file = LLAMA.adding("output.weight", tensor("Q4_0", VOCABULARY, 64))
    assert read_network(file.write(tmp_path / "a.gguf")).classifier.format.name == "Q4_0"


def test_layers_of_gemma3_are_local_but_for_every_sixth(tmp_path: Path) -> None:
    network = read_network(decoder("gemma3", layers=7).write(tmp_path / "a.gguf"))
    assert [network.is_local(layer) for layer in range(7)] == [True] * 5 + [False, True]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (LLAMA.having(general__architecture="mamba"), "its architecture 'mamba' is not known; known are llama"),
        (LLAMA.having(general__architecture=3), "general.architecture is no text"),
        (LLAMA.having(llama__block_count=None), "it does not say llama.block_count"),
        (LLAMA.having(llama__block_count=0), "llama.block_count is 0, and no whole number from 1"),
        (LLAMA.having(llama__block_count=3), "it has no tensor blk.2.attn_norm.weight"),
        (LLAMA.having(llama__block_count=1), "it has the tensor 'blk.1.attn_q.weight', for which"),
        (LLAMA.having(llama__rope__scaling__type="yarn"), "its positions are scaled by 'yarn', which is not known"),
        (LLAMA.having(**{"llama.attention.key_length": 24}), "heads of 24 elements"),
        (LLAMA.having(**{"llama.attention.head_count_kv": 3}), "4 on 3, have no kernel"),
        (LLAMA.having(**{"llama.attention.layer_norm_rms_epsilon": float("nan")}), "and no number from 0 to 1"),
        (LLAMA.without("token_embd.weight"), "it has no table token_embd.weight of two dimensions"),
        (LLAMA.without("output_norm.weight"), "it has no tensor output_norm.weight"),
        (LLAMA.adding("blk.0.ffn_gate_inp.weight", tensor("F32", 8)), "'blk.0.ffn_gate_inp.weight', for which"),
        (LLAMA.adding("output_norm.weight", tensor("F32", 8)), "has the shape (8,), and not (64,)"),
        (LLAMA.adding("output_norm.weight", tensor("Q8_0", 64)), "a vector has to be in floats"),
    ],
)
def test_what_is_not_known_is_named(tmp_path: Path, file: File, reason: str) -> None:
    path = file.write(tmp_path / "a.gguf")
    with pytest.raises(ModelError) as caught:
        read_network(path)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
