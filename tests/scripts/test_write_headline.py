"""The figures of the front page are those of the result file, and of one commit on each machine."""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("write_headline", ROOT / "scripts" / "docs" / "write_headline.py")
assert _spec is not None and _spec.loader is not None
headline = sys.modules["write_headline"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(headline)

SVG = "{http://www.w3.org/2000/svg}"


def row(model: str, group: str, share: float, **ms: float) -> dict[str, Any]:
    precision = "fp32" if group == "small" else group
    spread = [share, share - 0.1, share + 0.1]
    best = min((name for name in ms if name != "ours"), key=lambda name: ms[name])
    kind = {"model": model, "group": group, "precision": precision}
    return {**kind, "ms": ms, "fastest_other": best, "share": spread, "limit_ms": 1.0}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result file of one machine, in place of the one that was measured."""
    rows = [
        row("a", "int8", 0.5, ours=1.0, onnxruntime=2.0, openvino_default=4.0),
        row("b", "int8", 1.25, ours=5.0, onnxruntime=8.0, openvino_default=4.0),
        row("c", "small", 0.8, ours=0.8, onnxruntime=1.0),
    ]
    missing = [{"model": "d", "group": "bf16", "precision": "bf16", "why": "it was too late"}]
    machine = {"cpu": "Some CPU", "has": ["AVX2"], "cpus": 2, "commit": "abcdef01", "date": "2026-01-01"}
    measured = {"versions": {"onnxruntime": "1.0"}, "trials": 9, "turns": 3, "rows": rows, "missing": missing}
    path = tmp_path / "headline.json"
    path.write_text(json.dumps({"machines": [{**machine, **measured}]}))
    monkeypatch.setattr(headline, "RESULTS", path)
    return path


@pytest.mark.parametrize("path", [headline.README, headline.PAGE, headline.PICTURE], ids=lambda path: path.name)
def test_what_is_written_is_what_was_measured(path: Path) -> None:
    assert path.read_text() == headline.written()[path], "run python scripts/docs/write_headline.py"


def test_each_machine_has_figures_of_one_commit_and_every_row_a_range() -> None:
    entries = headline.machines()
    assert entries
    for entry in entries:
        assert len(entry["commit"]) == 8 and entry["rows"]
        for measured in entry["rows"]:
            median, low, high = measured["share"]
            assert 0 < low <= median <= high and measured["fastest_other"] in measured["ms"]


def test_the_sentence_gives_the_geometric_means_and_names_what_is_slower(results: Path) -> None:
    assert headline.sentence() == (
        "Some CPU, 2 CPUs, AVX2 (commit abcdef01): int8, 2 models: 0.79; small, float32, 1 models: 0.80."
        " Where it loses: b in int8 1.25."
    )


def test_the_table_says_what_is_missing_and_what_a_runtime_does_not_take(results: Path) -> None:
    text = headline.tables()
    assert "| c | float32 | 0.8 | 1 | does not take it | 0.8 | 0.80 (0.70 to 0.90, ONNX Runtime) |" in text
    assert text.index("| b |") < text.index("| a |"), "the worst of a group comes first"
    assert text.endswith("Missing: d in bf16 (it was too late).")


def test_models_that_are_missing_for_the_same_reason_stand_together() -> None:
    items = [{"model": model, "precision": kind, "why": "not run"} for kind in ("int8", "bf16") for model in "ab"]
    other = {"model": "c", "precision": "int8", "why": "late"}
    assert headline._missing([*items, other]) == "a, b in int8, bf16 (not run); c in int8 (late)"


def test_a_bar_is_as_long_as_the_mean_of_its_runtime(results: Path) -> None:
    assert headline.means(headline.in_group(headline.machines()[0], "int8")) == pytest.approx(
        {"ours": (0.5 * 1.25) ** 0.5, "onnxruntime": 2**0.5, "openvino": 2**0.5}
    )
    bars = [item for item in ElementTree.fromstring(headline.draw()).iter(f"{SVG}rect")][1:]
    assert [bar.attrib["width"] for bar in bars] == ["158", "283", "283", "160", "200"]
    assert [bar.attrib["class"] for bar in bars] == ["ours", "other", "other", "ours", "other"]
