"""Files that earlier versions wrote still load; those of a later one are refused, and say so.

`tests/data/vN` holds one file of every format as version N wrote it. They are never written anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import NewerFormat
from autotune.stages import features
from autotune.storage import atomic, formats
from autotune.storage.formats import Control, DaemonInfo, JobSpec, JobState, StageFile
from autotune.storage.journal import FORMAT as JOURNAL
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT, TuningLog

DATA = Path(__file__).parents[1] / "data" / "v1"
KINDS = {"spec": JobSpec, "control": Control, "state": JobState, "stage": StageFile, "daemon": DaemonInfo}
PLAIN = {"last-id": "autotune-last-id", "cost_model": "autotune-cost-model"}
LOGS = {"journal": JOURNAL, "trials": FORMAT}
DERIVED = {"eta_seconds"}  # worked out from other files since


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_version_1_loads(name: str) -> None:
    written = json.loads((DATA / f"{name}.json").read_text())
    read = json.loads(json.dumps(formats.to_json(formats.read(KINDS[name], DATA / f"{name}.json"))))
    assert (written["version"], written["format"]) == (1, KINDS[name].FORMAT[0])
    missing = set(written) - {"format", "version"} - set(read) - DERIVED
    assert not missing, "a field of an earlier version is no longer read"


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_file_of_version_1_loads(name: str) -> None:
    assert atomic.read_json(DATA / f"{name}.json", PLAIN[name], 1)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_version_1_loads(name: str) -> None:
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    assert len(RecordLog(DATA / f"{name}.jsonl", *LOGS[name]).read()) == len(lines) - 1 > 0


def test_a_trial_of_version_1_loads() -> None:
    (trial,) = TuningLog(DATA / "trials.jsonl").trials()
    assert trial.best_us and trial.trace and trial.args


def test_features_without_times_are_extracted_again() -> None:
    assert features.read(DATA / "features.npz") == features.TrialFeatures()


@pytest.mark.parametrize("name", [*KINDS, *PLAIN])
def test_a_file_of_a_newer_version_is_refused(name: str, tmp_path: Path) -> None:
    content = json.loads((DATA / f"{name}.json").read_text())
    path = tmp_path / "file.json"
    path.write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(NewerFormat, match="newer autotune"):
        formats.read(KINDS[name], path) if name in KINDS else atomic.read_json(path, PLAIN[name], 1)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_a_newer_version_is_refused_and_left_as_it_is(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    RecordLog(path, LOGS[name][0], 2).append([{"a": 1}])
    before = path.read_bytes()
    with pytest.raises(NewerFormat, match="newer autotune"):
        RecordLog(path, *LOGS[name]).append([{"b": 2}])
    assert path.read_bytes() == before
