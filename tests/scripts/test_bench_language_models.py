"""scripts/bench/bench_language_models: a language model beside llama.cpp."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from autotune.tvm_backend.models.gguf.network import read_network
from autotune.tvm_backend.models.gguf.reference import cache_shapes

from ..gguf_files import decoder

_TIMES = ("decode_256", "decode_1500", "prefill_512", "load_ms", "memory")


def test_ratios_are_taken_within_a_turn(load_script: Callable[[str], ModuleType]) -> None:
    """The machine was slow in the second turn. The median of the ratios is not the ratio of the medians."""
    script = load_script("bench_language_models")

    def turns(*times: float) -> list[dict[str, float]]:
        return [dict.fromkeys(_TIMES, time) for time in times]

    text = script.table({"ours": turns(1.0, 30.0, 2.0), "llama_cpp": turns(2.0, 40.0, 10.0)})
    row = next(line for line in text.splitlines() if "after 256" in line)
    assert row == "| a token after 256 | 2 ms | 10 ms (0.50, 0.20 to 0.75) |"


def test_the_share_of_the_bandwidth_counts_the_file_and_the_cache_in_its_elements(
    load_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    script = load_script("bench_language_models")
    gguf = decoder("llama", layers=1, width=64, head=32).write(tmp_path / "small.gguf")
    times = [{"decode_256": 1.0, "decode_1500": 1.0}]
    kept = sum(int(np.prod(shape)) for shape in cache_shapes(read_network(gguf).sizes, 256))
    for dtype, size in (("float16", 2), ("float32", 4)):
        enough = (gguf.stat().st_size + kept * size) / 1e-3 / 1e9
        report = {"inputs": [{"dtype": dtype}], "roofline": {"gb_per_s": enough}}
        assert "100% (256)" in script.bandwidth(times, report, gguf)


@pytest.mark.parametrize("text", ["llama_cpp", "llama_cpp=", "vllm=/usr/bin/python"])
def test_a_rival_is_a_package_and_its_python(load_script: Callable[[str], ModuleType], text: str) -> None:
    script = load_script("bench_language_models")
    assert script.rival("llama_cpp=/opt/a=b/python") == ("llama_cpp", "/opt/a=b/python")
    with pytest.raises(argparse.ArgumentTypeError, match="is not PACKAGE=PYTHON"):
        script.rival(text)


def test_each_reading_follows_those_before(load_script: Callable[[str], ModuleType]) -> None:
    """A runtime keeps what it has read: whoever skips a place, or leaves a gap, is timed on nonsense."""
    process = load_script("language_model_process")
    kept = 0

    def read(tokens: Sequence[int], past: int) -> np.ndarray:
        nonlocal kept
        assert past in (0, kept), "tokens follow those that were read, or begin anew"
        kept = past + len(tokens)
        return np.zeros(8, np.float32)

    figures = process.measured(read, 8)
    assert figures.keys() >= {"prefill_512", "decode_256", "decode_1500"}
    assert len(figures["logits"]) == 8


def test_the_perplexity_of_certainty_is_one_and_of_ignorance_the_vocabulary(
    load_script: Callable[[str], ModuleType],
) -> None:
    process = load_script("language_model_process")
    tokens = [3, 1, 4, 1, 5]

    def certain(_tokens: Sequence[int], past: int) -> np.ndarray:
        return np.where(np.arange(8) == tokens[past + 1], 100.0, 0.0)

    assert process.perplexity(certain, tokens) == pytest.approx(1.0)
    assert process.perplexity(lambda _tokens, _past: np.zeros(8), tokens) == pytest.approx(8.0)


def test_tokens_are_compared_up_to_the_first_that_differs(load_script: Callable[[str], ModuleType]) -> None:
    script = load_script("bench_language_models")
    ours = [[(5, 2.0), (6, 1.0)], [(7, 3.0), (8, 2.75)], [(1, 1.0), (2, 0.5)]]
    theirs = [[(5, 2.5), (6, 1.0)], [(8, 3.5), (7, 3.0)], [(2, 1.0), (1, 0.5)]]
    far = [[(5, 2.0), (6, 1.0)], [(9, 3.5), (8, 2.0)], [(1, 1.0), (2, 0.5)]]
    assert script.same_tokens(ours, ours) == "3"
    assert script.same_tokens(ours, theirs) == "1, then 0.250 and 0.500"
    assert script.same_tokens(ours, far) == "1, then over 0.250 and over 1.500"


def test_the_most_likely_token_is_read_after_those_before(load_script: Callable[[str], ModuleType]) -> None:
    process = load_script("language_model_process")
    history: list[int] = []

    def read(tokens: Sequence[int], past: int) -> np.ndarray:
        history[past:] = tokens
        return np.where(np.arange(64) == sum(history) % 64, 1.0, 0.0)

    first, second = process.greedy(read, [[3, 4], [9]])
    assert [places[0] for places in first[:4]] == [(7, 1.0), (14, 1.0), (28, 1.0), (56, 1.0)]
    assert (second[0][0], len(second)) == ((9, 1.0), process.FOLLOWING)
