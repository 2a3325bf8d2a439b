"""Files that earlier versions wrote still load; those of a later one are refused, and say so.

`tests/data/vN` holds one file of every format as version N wrote it. They are never written anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from autotune.errors import NewerFormat
from autotune.reasons import sentence
from autotune.stages import features
from autotune.storage import atomic, formats, journal
from autotune.storage.daemon_formats import DaemonInfo
from autotune.storage.formats import Control, JobSpec, JobState, StageFile
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


@pytest.mark.parametrize("name", ["control", "daemon", "state"])
def test_a_file_of_version_2_loads(name: str) -> None:
    path = DATA.with_name("v2") / f"{name}.json"
    written = json.loads(path.read_text())
    assert (written.pop("version"), written.pop("format")) == (2, KINDS[name].FORMAT[0])
    read = json.loads(json.dumps(formats.to_json(formats.read(KINDS[name], path))))
    assert {key: read[key] for key in written} == written  # fields may have been added since


def test_a_reason_of_version_1_keeps_its_words(tmp_path: Path) -> None:
    assert sentence(formats.read(JobState, DATA / "state.json").reason) == "budget used"
    daemon = json.loads((DATA / "daemon.json").read_text())
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({**daemon, "waits": {"7": "waits for a CPU", "8": ""}}))
    waits = formats.read(DaemonInfo, path).waits
    assert (sentence(waits["7"]), list(waits)) == ("waits for a CPU", ["7"])


def test_a_journal_of_version_2_loads() -> None:
    path = DATA.with_name("v2") / "journal.jsonl"
    events = journal.read(path)
    later = {journal.OnEnd}  # an event more needs no new version: it reads as unknown where it is not known
    assert {type(event) for event in events} == set(get_args(journal.Event)) - later
    lines = path.read_text().splitlines()[1:]
    assert [json.loads(line[9:])["event"] for line in lines] == [event.EVENT.value for event in events]


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_file_of_version_1_loads(name: str) -> None:
    assert atomic.read_json(DATA / f"{name}.json", PLAIN[name], 1)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_version_1_loads(name: str) -> None:
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    assert len(RecordLog(DATA / f"{name}.jsonl", *LOGS[name]).read()) == len(lines) - 1 > 0


def test_a_trial_of_version_1_loads() -> None:
    (trial,) = TuningLog(DATA / "trials.jsonl").trials()
    assert trial.median_us and trial.trace and trial.args


def test_features_without_times_are_extracted_again() -> None:
    assert features.read(DATA / "features.npz") == features.TrialFeatures()


@pytest.mark.parametrize("name", [*KINDS, *PLAIN])
def test_a_file_of_a_newer_version_is_refused(name: str, tmp_path: Path) -> None:
    content = json.loads((DATA / f"{name}.json").read_text())
    path = tmp_path / "file.json"
    newer = (KINDS[name].FORMAT[1] if name in KINDS else 1) + 1
    path.write_text(json.dumps({**content, "version": newer}))
    with pytest.raises(NewerFormat, match="newer autotune"):
        formats.read(KINDS[name], path) if name in KINDS else atomic.read_json(path, PLAIN[name], 1)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_a_newer_version_is_refused_and_left_as_it_is(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    RecordLog(path, LOGS[name][0], LOGS[name][1] + 1).append([{"a": 1}])
    before = path.read_bytes()
    with pytest.raises(NewerFormat, match="newer autotune"):
        RecordLog(path, *LOGS[name]).append([{"b": 2}])
    assert path.read_bytes() == before
