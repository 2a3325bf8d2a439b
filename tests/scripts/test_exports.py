"""scripts/bench/exports: folders that `autotune export` wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("{", "not JSON")])
def test_a_folder_without_a_report_is_named_in_one_line(
    load_script: Callable[[str], ModuleType], tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(SystemExit, match=f"cannot read {tmp_path}/report.json: .*{reason}.*; name a folder"):
        load_script("exports").Export.read(tmp_path)


def test_others_run_the_quantised_model_where_there_is_one(
    load_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    submitted, quantised = (tmp_path / name for name in ("submitted.onnx", "quantised.onnx"))
    for path in (submitted, quantised):
        path.touch()
    export = load_script("exports").Export
    assert export(tmp_path, {"model": str(submitted), "quantised_model": None}).model == submitted
    told = {"model": str(submitted), "quantised_model": str(quantised)}
    assert export(tmp_path, told).model == quantised
