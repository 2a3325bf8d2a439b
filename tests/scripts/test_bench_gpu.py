"""scripts/gpu/bench_gpu: what the tables say of the ways that were timed, and of those that were not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def bench(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("bench_gpu")


def network(bench: ModuleType, times: dict[str, list[float]], left_out: dict[str, str]) -> Any:
    export = bench.Export(Path("net"), {"name": "net", "precision": "fp16"})
    return bench.Network(export, Path("."), [], list(times), left_out, times)


def test_each_way_has_its_times_and_ratios_are_those_of_neighbours(bench: ModuleType) -> None:
    times = {"ours": [1.0, 1.2, 1.1], "torch_eager": [2.0, 2.4, 4.4]}
    left_out = {
        "torch_compile": "it did not compile",
        "torch_compile_graph": "it did not compile",
        "ort_cuda": "absent",
    }
    lines = bench.table([network(bench, times, left_out)], "A GPU").splitlines()
    assert lines[0] == "A GPU"
    assert lines[4] == "| net | fp16 | ours | 1.1000 | 1.0000 to 1.2000 |  |"
    assert lines[5] == "| net | fp16 | torch eager | 2.4000 | 2.0000 to 4.4000 | 0.50 of it |"
    assert lines[7:] == [
        "net, not timed: torch.compile; torch.compile, CUDA graphs: it did not compile",
        "",
        "net, not timed: ONNX Runtime CUDA: absent",
    ]


def test_each_task_has_its_share_of_the_roofline(bench: ModuleType) -> None:
    def task(name: str, weight: int, best_us: float, again_us: float | None, gflop: float) -> dict[str, Any]:
        return {"name": name, "weight": weight, "best_us": best_us, "again_us": again_us, "gflop": gflop}

    report = {
        "name": "net",
        "tasks": [task("pool", 1, 5.0, None, 0.0), task("conv", 2, 60.0, 50.0, 0.1)],
        "kernels": [
            {"task": "conv", "bytes": 10**6, "calls": 2, "least_us": 40.0},
            {"task": "pool", "bytes": 10**6, "calls": 1, "least_us": None},
        ],
    }
    assert bench.task_table([report]).splitlines()[3:] == [
        "| net | conv | 2 | 50.00 | 2000 | 20 | 40% |",
        "| net | pool | 1 | 5.00 | 0 | 200 |  |",
    ]


def test_what_is_lacking_is_named(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    missing = bench.lacks()
    assert missing["torch_compile"] == "torch is not installed"
    assert missing["ort_cuda"] == "onnxruntime-gpu is not installed"
    assert "ours" not in missing
