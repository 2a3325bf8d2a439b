"""The scripts of an export run with the values of the best trial of the space, and what is in them is never run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tomli

from autotune.command_jobs import best
from autotune.command_jobs.combinations import Combinations
from autotune.command_jobs.definition import Build, Definition, File, Measure, Values
from autotune.errors import BadState, DiskProblem
from autotune.metric import Metric
from autotune.storage import formats
from autotune.storage.atomic import read_json
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

HOSTILE = "$(touch PWNED)\n'\"`touch PWNED`\\\x7f\N{GRINNING FACE}"


@pytest.fixture
def export(tmp_path: Path) -> Any:
    """Exports a space whose log has trials of some values, the first one being the fastest."""

    def export(definition: Definition, *values: Values) -> Path:
        workspace = Workspace(tmp_path)
        paths = JobPaths(tmp_path / "jobs" / "0001-net")
        paths.folder.mkdir(parents=True)
        formats.write(paths.space, definition)
        log = TuningLog(workspace.tuning_log("key", f"{0xAA:016x}").records)
        for number, of_trial in enumerate(values):
            log.add(
                [
                    Trial(
                        definition.candidate_hash(of_trial),
                        {"values": of_trial},
                        [],
                        (10.0 + number,),
                        None,
                        "0001-net",
                        0,
                        5.0,
                    )
                ]
            )
        tasks = [SimpleNamespace(hash=f"{0xAA:016x}")]
        spec = SimpleNamespace(name="net", target_key="key", tasks=tasks, metric=Metric(), machine="a CPU")
        best.export(workspace, paths, cast(JobSpec, spec), tmp_path / "out")
        return tmp_path / "out"

    return export


def test_the_scripts_have_the_values_as_words_and_run_none_of_them(export: Any) -> None:
    definition = Definition(
        parameters={"a": (HOSTILE,), "b": ("x y",), "c": ("-O2",)},
        build=Build("printf '%s|%s' {a} 'of {b}'"),
        measure=Measure("printf %s \"$AUTOTUNE_a\" | cat; echo '{c}'", shell=True),
        environment={"MORE": "{a}"},
    )
    out = export(definition, {"a": HOSTILE, "b": "x y", "c": "-O2"})
    printed = {name: subprocess.check_output([out / f"{name}.sh"]).decode() for name in ("build", "measure")}
    assert printed == {"build": f"{HOSTILE}|of x y", "measure": f"{HOSTILE}-O2\n"}
    assert tomli.loads((out / "best.toml").read_text())["a"] == HOSTILE
    assert not list(out.rglob("PWNED"))


def test_a_trial_with_values_that_are_not_of_the_space_is_passed_over(export: Any) -> None:
    """A log that was imported may hold it."""
    definition = Definition(parameters={"a": ("1", "2")}, measure=Measure("echo {a}", shell=True))
    out = export(definition, {"a": "$(touch PWNED)"}, {"a": "2"})
    assert subprocess.check_output([out / "measure.sh"]) == b"2\n" and not (out / "PWNED").exists()


def test_without_a_trial_of_the_space_there_is_no_result(export: Any) -> None:
    definition = Definition(parameters={"a": ("1", "2")}, measure=Measure("echo {a}", shell=True))
    assert Combinations(definition).space.size == 2
    with pytest.raises(BadState, match="no result yet"):
        export(definition, {"a": "$(touch PWNED)"})


def test_what_an_earlier_version_exported_is_replaced_by_what_it_can_read(export: Any, tmp_path: Path) -> None:
    definition = Definition(parameters={"a": ("1",)}, measure=Measure("echo {a}", shell=True))
    out = tmp_path / "out"
    out.mkdir()
    (out / "measure.sh").write_text("#!/bin/sh\n")
    (out / "best.json").write_text('{"format": "autotune-best", "version": 1, "job": "net"}')
    export(definition, {"a": "1"})
    assert subprocess.check_output([out / "measure.sh"]) == b"1\n"
    assert read_json(out / "best.json", "autotune-best", 1)["values"] == {"a": "1"}


def test_a_file_that_cannot_be_copied_is_a_problem_of_the_disk(export: Any) -> None:
    lost = {"kernel.cu": File(6, 0, "")}
    definition = Definition(parameters={"a": ("1",)}, measure=Measure("echo {a}", shell=True), files=lost)
    with pytest.raises(DiskProblem, match=r"kernel\.cu"):
        export(definition, {"a": "1"})
