"""scripts/gpu/bench_gpu: what the table says of the ways that were timed, and of those that were not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune.tvm_backend.export.timing.comparison import RuntimeTimes

ENTRY = SimpleNamespace(name="main")
NOT_TIMED = {
    "torch_compile": "it did not compile",
    "torch_compile_graph": "it did not compile",
    "ort_cuda": "onnxruntime-gpu is not installed",
}
SPEC: Any = SimpleNamespace(all_entries=(ENTRY,), values={})


@pytest.fixture(scope="module")
def bench(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("bench_gpu")


def test_each_way_has_its_times_and_the_ratio_is_that_of_the_turns(bench: ModuleType) -> None:
    times = {"ours": RuntimeTimes([(1.0,), (1.2,), (1.1,)]), "torch_eager": RuntimeTimes([(2.0,), (2.4,), (4.4,)])}
    result = bench.Found("net", "A GPU", "fp16", times, NOT_TIMED)
    lines = bench.table([result], tf32=False).splitlines()
    assert lines[0] == "A GPU; batch as submitted; TF32 off for torch and ONNX Runtime, never used by ours."
    assert lines[4] == "| net | fp16 | ours, CUDA graph | 1.1000 | 1.0000 to 1.2000 |  |"
    assert lines[5] == "| net | fp16 | torch eager | 2.4000 | 2.0000 to 4.4000 | 0.50 of it |"
    assert lines[7:] == [
        "net, not timed: torch.compile; torch.compile, CUDA graphs: it did not compile",
        "",
        "net, not timed: ONNX Runtime CUDA: onnxruntime-gpu is not installed",
    ]
    assert "TF32 on" in bench.table([result], tf32=True)


def test_each_task_has_its_share_of_the_roofline(bench: ModuleType) -> None:
    tasks = [bench.TaskShare("conv", 2, 50.0, 0.1, 10**6, 20.0), bench.TaskShare("pool", 1, 5.0, 0.0, 10**6, None)]
    result = bench.Found("net", "A GPU", "fp32", {}, {}, tasks)
    assert bench.task_table([result]).splitlines()[3:] == [
        "| net | conv | 2 | 50.00 | 2000 | 20 | 40% |",
        "| net | pool | 1 | 5.00 | 0 | 200 |  |",
    ]


def test_what_is_lacking_is_named(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    files = {"untuned": Path("a.so"), "ours": Path("b.so"), "ours_without_graph": Path("c.so")}
    ways, missing = bench.available(SimpleNamespace(file=Path("m.onnx")), SPEC, files)
    assert list(ways) == ["untuned", "ours", "ours_without_graph"]
    assert missing["torch_compile"] == "torch is not installed"
    assert missing["ort_cuda"] == "onnxruntime-gpu is not installed"
    _, missing = bench.available(SimpleNamespace(file=Path("m.pt2")), SPEC, files)
    assert missing["ort_cuda"] == "it runs ONNX models only"
