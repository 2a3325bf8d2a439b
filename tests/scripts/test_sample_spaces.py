"""A grid in a layer's design space is the same in every run, and a larger one contains a smaller one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("sample_spaces")


def test_a_larger_grid_contains_a_smaller_one_and_all_of_it_is_timed(script: ModuleType) -> None:
    script.load_for_tuning("llvm")
    bench = script.LayerBench(script.Layer(8, 8, 4, 1))
    drawn = map(tuple, bench.knobs.space.sample(script.np.random.default_rng(0), 64).tolist())
    best = next(applied.configuration for applied in map(bench.knobs.apply, drawn) if applied)
    small = bench.grid(best, 8)
    assert set(small) <= set(bench.grid(best, 32)) and small == bench.grid(best, 8)
    assert len(small) >= 8 and best in small
    results = bench.measure(small[:3])
    assert {tuple(entry["index"]) for entry in results} <= set(small[:3]) and results
    assert all(entry["measurements"][0]["value"] > 0 for entry in results)


def test_a_file_is_read_as_it_was_written(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "L0_T4.json.gz"
    assert script.read(path) == []
    script.write(path, [{"index": [0, 1]}])
    assert script.read(path) == [{"index": [0, 1]}]
