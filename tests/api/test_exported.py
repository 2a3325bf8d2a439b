"""What `Exported.open` makes of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import autotune
from autotune.errors import DamagedFile


@pytest.mark.parametrize("text", ["[1]", "3", "null", '{"format"', "\x00"])
def test_a_damaged_report_is_an_error_of_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(DamagedFile, match="report.json is damaged"):
        autotune.Exported.open(tmp_path)
