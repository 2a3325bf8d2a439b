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
