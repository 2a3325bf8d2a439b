"""A compiled decoder computes what NumPy does from the same weights, and keeps what it has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.gguf.decoder import Decoder
from autotune.tvm_backend.models.gguf.network import ARCHITECTURES
from autotune.tvm_backend.models.gguf.reference import empty_cache
from autotune.tvm_backend.search.tasks import extract_tasks

from ....gguf_files import File, decoder

CONTEXT = 64
KINDS = {
    "llama": ("Q4_1", "Q8_0"),
    "qwen2": ("Q4_0", "Q5_0", "F16"),
    "qwen3": ("Q8_0", "Q5_1", "F32"),
    "gemma3": ("Q4_K", "Q6_K", "Q5_K"),
}


def compiled(model: Decoder, rows: int, target: Any) -> Any:
    prepared = prepare(model.model(rows).module, target)
    programs = [task.program for task in extract_tasks(prepared, target)]
    return relax.VirtualMachine(compile_tuned(prepared, programs, {}, target), tvm.cpu())["main"]


def read(path: Path, file: File, activations: str = "fp32") -> Decoder:
    return Decoder.read(file.write(path / "a.gguf"), CONTEXT, activations)  # type: ignore[arg-type]


def largest_error(model: Decoder, target: Any, parts: list[int]) -> float:
    """Read random tokens in parts, one function after the other on one cache; the largest error of all logits."""
    sizes = model.network.sizes
    ids = np.random.default_rng(3).integers(0, sizes.vocabulary, sum(parts)).astype(np.int32)
    cache = [tvm.runtime.tensor(array.astype(model.weights.kept)) for array in empty_cache(sizes, CONTEXT)]
    own = empty_cache(sizes, CONTEXT)
    functions = {rows: compiled(model, rows, target) for rows in set(parts)}
    past = 0
    worst = 0.0
    for rows in parts:
        numbers = [tvm.runtime.tensor(np.array([number], np.int32)) for number in (past, rows - 1)]
        given = ids[past : past + rows]
        logits = functions[rows](tvm.runtime.tensor(given), *numbers, *cache).numpy()
        right = model.reference.logits(given, past, *own)
        worst = max(worst, float(np.abs(logits - right).max() / np.abs(right).max()))
        past += rows
    return worst


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_computes_what_numpy_does_from_all_formats_mixed_in_one_file(
    tmp_path: Path, target: Any, architecture: str
) -> None:
    layers = 2 if architecture in ("llama", "gemma3") else 1
    model = read(tmp_path, decoder(architecture, KINDS[architecture], layers, width=256, inner=256, head=64))
    assert largest_error(model, target, [16, 16, 1, 1]) < 5e-4


def test_activations_in_bytes_are_as_close_as_a_limit_allows(tmp_path: Path, target: Any) -> None:
    model = read(tmp_path, decoder("llama", ("Q4_1",), layers=1, spread=0.05), "int8")
    assert 1e-5 < largest_error(model, target, [16, 1]) < 0.1


def test_a_vocabulary_that_is_no_multiple_of_a_vector_is_whole(tmp_path: Path, target: Any) -> None:
    model = read(tmp_path, decoder("llama", layers=1, vocabulary=250))
    assert largest_error(model, target, [1]) < 5e-4


def test_the_last_row_that_is_read_says_what_follows(tmp_path: Path, target: Any) -> None:
    model = read(tmp_path, decoder("llama", layers=1))
    function = compiled(model, 16, target)
    ids = np.arange(16, dtype=np.int32)

    def logits(last: int) -> Any:
        numbers = [tvm.runtime.tensor(np.array([number], np.int32)) for number in (0, last)]
        cache = [tvm.runtime.tensor(array) for array in empty_cache(model.network.sizes, CONTEXT)]
        return function(tvm.runtime.tensor(ids), *numbers, *cache).numpy()

    right = model.reference.logits(ids[:6], 0, *empty_cache(model.network.sizes, CONTEXT))
    np.testing.assert_allclose(logits(5), right, atol=1e-4 * np.abs(right).max())
    assert np.abs(logits(15) - right).max() > 1e-2 * np.abs(right).max()


def test_products_of_packed_weights_are_tasks_that_layers_share(tmp_path: Path, target: Any) -> None:
    model = read(tmp_path, decoder("llama", ("Q4_1",), layers=3, vocabulary=320))
    tasks = extract_tasks(prepare(model.model(1).module, target), target)
    assert sorted(task.spec.weight for task in tasks) == [1, 3, 3, 3, 3]
    assert all(task.spec.tunable for task in tasks)
