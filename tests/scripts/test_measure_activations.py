"""scripts/bench/measure_activations: what the activations of a model need, beside ONNX Runtime."""

from __future__ import annotations

from types import ModuleType

import pytest

from autotune.network_plan.plan import Memory


@pytest.fixture(scope="module")
def script(load_script) -> ModuleType:
    return load_script("measure_activations")


def test_a_convolution_needs_its_input_and_its_output_here_and_at_least_those_in_onnx_runtime(
    script, convolution, tmp_path
):
    path = convolution(tmp_path / "net.onnx", (1, 3, 16, 16), 5, kernel=1)
    row = script.row(script.source(str(path)))
    both = (3 + 5) * 16 * 16 * 4
    assert row.name == "net" and row.file == path.stat().st_size
    assert row.ours.least == row.ours.arena == row.ours.library == both
    assert both <= row.least <= row.requested  # it may pack the channels


def test_a_line_has_megabytes_and_ours_as_shares_of_theirs(script):
    row = script.Row("net", 9_000_000, Memory(2_000_000, 3_000_000, 8_000_000, 1_000_000), 2_500_000, 4_000_000)
    cells = row.text().strip("| ").split(" | ")
    assert cells == ["net", "9.00", "2.00", "3.00", "1.00", "2.50", "4.00", "0.80", "0.50", "1.20", "0.75"]
    assert len(cells) == len(script.HEAD.strip("| ").split(" | "))


def test_models_that_need_at_most_what_onnx_runtime_needs_are_counted(script):
    rows = [script.Row("net", 1, Memory(arena, 9, 9, 1), 5, 10) for arena in (4, 5, 6)]
    assert script.summary(rows) == (
        "At most ONNX Runtime's, of 3: arena, least: 2; arena, requested: 3; library, least: 0; library, requested: 3"
    )


def test_a_model_of_the_zoo_comes_with_the_files_beside_it(script, tmp_path):
    for name, size in (("net.onnx", 3), ("net.data", 4)):
        (tmp_path / name).write_bytes(bytes(size))
    assert script.Source("net", tmp_path / "net.onnx", beside=("weights/net.data",)).bytes == 7
