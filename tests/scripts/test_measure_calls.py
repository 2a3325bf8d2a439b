"""scripts/bench/measure_calls: what a call of a model costs besides its kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def test_a_line_counts_the_kernels_of_a_call(
    load_script: Callable[[str], ModuleType], convolution: Callable[..., Path], tmp_path: Path
) -> None:
    script = load_script("measure_calls")
    _, name, kernels, *times_us, _ = script.row(convolution(tmp_path / "net.onnx", (1, 8, 6, 6), 8, tail=True)).split(
        "|"
    )
    assert (name.strip(), kernels.strip()) == ("net", "4")
    assert times_us and min(map(float, times_us)) > 0
