"""What `Exported.open` makes of a folder."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune.errors import BadState, DamagedFile, DiskProblem


@pytest.mark.parametrize("text", ["[1]", "3", "null", '{"format"', "\x00"])
def test_a_damaged_report_is_an_error_of_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(DamagedFile, match="report.json is damaged"):
        autotune.Exported.open(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"latency": 3}', '{"latency": {"tuned_ms": "fast"}}', '{"latency": {"other": 1}}', '{"latency": null}'],
)
def test_a_report_without_the_latency_is_an_error_of_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(DamagedFile, match="report.json is damaged: it says no latency; export the job again"):
        _ = autotune.Exported.open(tmp_path).latency_ms


def test_what_was_not_timed_has_no_latency(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"latency": {}}')
    with pytest.raises(BadState, match="export it again without quick"):
        _ = autotune.Exported.open(tmp_path).latency_ms


def test_a_pipe_in_place_of_a_report_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.json")
    with pytest.raises(DiskProblem, match="it is a pipe or a device"):
        autotune.Exported.open(tmp_path)


def test_what_loads_a_library_loads_no_queue() -> None:
    code = "import sys, autotune; autotune.load; import autotune.tvm_backend.export.generation; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    queue = ("autotune.commands", "autotune.daemon", "autotune.stages", "autotune.storage.formats")
    assert [name for name in modules if name.startswith(queue)] == []


def test_load_has_the_defaults_of_the_methods_that_it_stands_for() -> None:
    parameters = [inspect.signature(method).parameters for method in (autotune.load, autotune.Exported.load)]
    defaults = [{name: of[name].default for name in ("threads", "check_weights")} for of in parameters]
    assert defaults[0] == defaults[1] == {"threads": 0, "check_weights": False}
