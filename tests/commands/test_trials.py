"""Trials go from workspace to workspace: none is lost or doubled, and nothing damaged or harmful comes in."""

from __future__ import annotations

import gzip
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from autotune import devices
from autotune.cli import app
from autotune.commands import trials
from autotune.errors import BadInput, DamagedFile, DiskProblem, NewerFormat, StorageError
from autotune.storage import device_kind, trials_file
from autotune.storage.device_kind import DeviceKind, target_keys
from autotune.storage.formats import Failure, Trial, to_json
from autotune.storage.log_lines import decode_line, encode_line
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog

HERE = devices.for_target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2}).log_kind()
ELSEWHERE = replace(HERE, device="another CPU 6/1/1")
TASK = "00000000000000aa"


def trial(number: int, **changes: Any) -> Trial:
    unchanged = Trial(
        f"{number:016x}", [[], []], [["TENSOR", "float32", [1, 8]]], (10.0 + number,), None, "0001-net", 0, 5.0
    )
    return replace(unchanged, **changes)


def fill(workspace: Workspace, numbers: range, kind: DeviceKind = HERE, task: str = TASK) -> None:
    TuningLog(workspace.tuning_log(kind.key, task).records).add(map(trial, numbers))
    device_kind.note(workspace, kind)


def known(workspace: Workspace, kind: DeviceKind = HERE) -> list[Trial]:
    """What was measured in a workspace, and then what others claim."""
    keys = (kind.key, device_kind.claimed(kind.key))
    return [trial for key in keys for trial in TuningLog(workspace.tuning_log(key, TASK).records).trials()]


def run(workspace: Workspace, *words: object) -> Result:
    return CliRunner().invoke(app, ["--workspace", str(workspace.root), "trials", *map(str, words)])


@pytest.fixture
def other(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "other")
    workspace.logs.mkdir(parents=True)
    return workspace


@pytest.fixture
def file(other: Workspace, tmp_path: Path) -> Path:
    """What another workspace exported: three trials of this kind of machine, and two of another kind."""
    fill(other, range(3))
    fill(other, range(2), ELSEWHERE)
    assert run(other, "export", tmp_path / "trials.gz").exit_code == 0
    return tmp_path / "trials.gz"


class TestWhatIsTakenIn:
    def test_is_all_there_is_and_nothing_twice(self, workspace: Workspace, file: Path) -> None:
        fill(workspace, range(2, 5))
        before = known(workspace)
        taken = {one.key: one for one in trials.import_file(workspace, file)}
        assert (taken[HERE.key].added, taken[HERE.key].known) == (2, 1)
        assert known(workspace)[:3] == before
        assert [item.hash for item in known(workspace)] == [trial(number).hash for number in (2, 3, 4, 0, 1)]
        assert sum(one.added for one in trials.import_file(workspace, file)) == 0

    def test_of_a_long_log_comes_in_pieces_and_is_one_task(
        self, workspace: Workspace, other: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(other, range(7))
        run(other, "export", tmp_path / "trials.gz")
        monkeypatch.setattr(trials_file, "_AT_ONCE", 3)
        pieces = list(trials_file.read(tmp_path / "trials.gz", lambda trace: None))
        assert [len(piece.trials) for piece in pieces] == [3, 3, 1]
        (taken,) = trials.import_file(workspace, tmp_path / "trials.gz")
        assert (taken.tasks, taken.added, len(known(workspace))) == (1, 7, 7)

    def test_is_a_claim_that_joins_no_log_and_keeps_its_origin_when_it_travels_on(
        self, workspace: Workspace, other: Workspace, file: Path, tmp_path: Path
    ) -> None:
        told = run(workspace, "import", file).stdout
        assert "3 trials of 1 tasks added" in told and "another CPU" in told
        assert told.count("they count once they are timed here") == 2
        assert len(known(workspace)) == 3 and len(known(workspace, ELSEWHERE)) == 2
        assert set(target_keys(workspace)) == {device_kind.claimed(kind.key) for kind in (HERE, ELSEWHERE)}
        assert device_kind.read(workspace, device_kind.claimed(ELSEWHERE.key)) == ELSEWHERE
        (job,) = {item.job for item in known(workspace)}
        assert job.endswith(f":{other.root}/jobs/0001-net") and known(workspace)[0].imported
        third = Workspace(tmp_path / "third")
        third.root.mkdir()
        trials.merge(third, workspace)
        assert known(third) == known(workspace) and known(third, ELSEWHERE) == known(workspace, ELSEWHERE)

    def test_is_the_same_from_a_workspace_as_from_its_file(
        self, workspace: Workspace, other: Workspace, file: Path
    ) -> None:
        trials.merge(workspace, other)
        assert sum(one.added for one in trials.import_file(workspace, file)) == 0
        assert len(known(workspace)) == 3
        failed = trial(9, times_us=(), failure=Failure("build", "timeout", "60 s"))
        TuningLog(other.tuning_log(HERE.key, TASK).records).add([failed])
        trials.merge(workspace, other)
        assert known(workspace)[-1].failure == failed.failure

    def test_of_jobs_is_their_tasks_only(self, workspace: Workspace, make_job: Any, tmp_path: Path) -> None:
        fill(workspace, range(3))
        fill(workspace, range(4), task="00000000000000bb")
        make_job(1, target_key=HERE.key)
        job = make_job(2, target_key=HERE.key, tasks=1)
        spec = json.loads(job.spec.read_text())
        spec["tasks"][0]["hash"] = TASK
        job.spec.write_text(json.dumps(spec))
        assert "wrote 3 trials of 1 tasks" in run(workspace, "export", tmp_path / "some.gz", "2").stdout

    def test_leaves_out_points_of_sweeps_and_simulated_devices(self, other: Workspace) -> None:
        simulated = DeviceKind({"kind": "simulated"})
        TuningLog(other.tuning_log(simulated.key, TASK).records).add([trial(1)])
        TuningLog(other.tuning_log(HERE.key + "+sweep", TASK).records).add([trial(2)])
        assert list(trials.collect(other)) == []


class TestADamagedFile:
    def lines(self, file: Path) -> list[bytes]:
        return gzip.decompress(file.read_bytes()).splitlines(keepends=True)

    def refused(self, workspace: Workspace, file: Path, kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            trials.import_file(workspace, file)
        assert not target_keys(workspace)

    def test_is_refused_as_a_whole_wherever_it_is_damaged(self, workspace: Workspace, file: Path) -> None:
        lines = self.lines(file)
        assert len(lines) == 9
        for number in range(9):
            broken = [*lines[:number], lines[number].replace(b"e", b"f", 1), *lines[number + 1 :]]
            file.write_bytes(gzip.compress(b"".join(broken)))
            self.refused(workspace, file, DamagedFile, "is damaged: |is not a")
            file.write_bytes(gzip.compress(b"".join([*lines[:number], *lines[number + 1 :]])))
            self.refused(workspace, file, DamagedFile, "is damaged: |is not a")

    def test_that_was_cut_short_or_is_no_such_file_is_one_clear_line(self, workspace: Workspace, file: Path) -> None:
        whole = file.read_bytes()
        for content in (whole[: len(whole) // 2], b"", b"PK" + whole, b"hello\n"):
            file.write_bytes(content)
            with pytest.raises(StorageError) as raised:
                trials.import_file(workspace, file)
            assert "\n" not in str(raised.value) and str(file) in str(raised.value)
        assert not target_keys(workspace)

    def test_that_is_newer_or_has_more_than_anybody_has_is_refused(
        self, workspace: Workspace, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(BadInput, match="there is no such file"):
            trials.import_file(workspace, Path("/nowhere"))
        lines = self.lines(file)
        file.write_bytes(file.read_bytes() + file.read_bytes())
        self.refused(workspace, file, DamagedFile, "more after the end")
        header = {**(decode_line(lines[0]) or {}), "version": 2}
        file.write_bytes(gzip.compress(b"".join([encode_line(header), *lines[1:]])))
        self.refused(workspace, file, NewerFormat, "newer autotune")
        record = decode_line(lines[1]) or {}
        record["log"]["count"] = 3_000_000
        file.write_bytes(gzip.compress(b"".join([lines[0], encode_line(record), *lines[2:]])))
        self.refused(workspace, file, DamagedFile, "more than 500000 trials")
        file.write_bytes(gzip.compress(b"".join(lines)))
        monkeypatch.setattr(trials_file, "_MAX_LOGS", 1)
        self.refused(workspace, file, DamagedFile, "or 1 tasks; export some jobs at a time")

    @pytest.mark.parametrize(
        ("line", "path", "value", "fault"),
        [
            (1, ("log", "key"), "../../x", "name no tuning log"),
            (1, ("log", "key"), "llvm-x-0123456789", "not the kind of device that it says"),
            (1, ("log", "key"), "llvm-x-0123456789.claimed", "name no tuning log"),
            (1, ("log", "task"), "../aa", "name no tuning log"),
            (1, ("log", "count"), 0, "a log without trials"),
            (2, ("trial", "times_us"), [10**4000], "must be a number above 0, not 1000.*[.][.][.]$"),
            (2, ("trial", "hash"), "/etc/passwd", "not the hash"),
            (2, ("trial", "times_us"), [-1.0], "above 0"),
            (2, ("trial", "times_us"), [], "not times"),
            (2, ("trial", "times_us"), "fast", "must be a list"),
            (2, ("trial", "args"), [["TENSOR", "float32", ["import os"]]], "no tensors"),
            (2, ("trial", "trace"), [[["Annotate", ["b0"], ["pragma_import_llvm"], []]], []], "no rule annotates"),
            (2, ("trial", "trace"), [["x", "y", "z"]], "refused"),
            (2, ("trial", "job"), "a\x1b[2Jb", "origin"),
            (2, ("trial", "round"), -1, "at least 0"),
        ],
    )
    def test_that_was_made_to_do_harm_is_refused(
        self, workspace: Workspace, file: Path, line: int, path: tuple[str, str], value: Any, fault: str
    ) -> None:
        lines = self.lines(file)
        record = decode_line(lines[line]) or {}
        record[path[0]][path[1]] = value
        lines[line] = encode_line(record)
        file.write_bytes(gzip.compress(b"".join(lines)))
        self.refused(workspace, file, DamagedFile, fault)

    @pytest.mark.parametrize("text", ["\x1b[31m", "two\nlines", "long" * 100])
    def test_whose_kind_of_device_would_spoil_a_table_is_refused(
        self, workspace: Workspace, file: Path, text: str
    ) -> None:
        lines = self.lines(file)
        record = decode_line(lines[1]) or {}
        kind = DeviceKind(record["log"]["kind"]["target"], text, {})
        record["log"].update(key=kind.key, kind=to_json(kind))
        lines[1] = encode_line(record)
        file.write_bytes(gzip.compress(b"".join(lines)))
        self.refused(workspace, file, DamagedFile, "not the kind of device that it says")


class TestMerging:
    def test_a_log_with_damaged_lines_brings_the_others(self, workspace: Workspace, other: Workspace) -> None:
        fill(other, range(3))
        log = other.tuning_log(HERE.key, TASK).records
        lines = log.read_bytes().splitlines(keepends=True)
        bad = trial(7, trace=[[["Annotate", ["b0"], ["pragma_import_llvm"], []]], []])
        log.write_bytes(b"".join([lines[0], lines[1], lines[2][:40] + b"\n", lines[3], lines[3][:25]]))
        TuningLog(log).add([bad])
        (taken,) = trials.merge(workspace, other)
        assert (taken.added, taken.damaged) == (2, 1)

    def test_a_workspace_into_itself_or_from_no_workspace_is_bad_input(self, workspace: Workspace) -> None:
        fill(workspace, range(1))
        with pytest.raises(BadInput, match="itself"):
            trials.merge(workspace, Workspace(workspace.root / "logs" / ".."))
        with pytest.raises(BadInput, match="no workspace"):
            trials.merge(workspace, Workspace(workspace.root / "jobs"))

    def test_folders_and_logs_with_other_names_than_ours_stay_where_they_are(
        self, workspace: Workspace, other: Workspace, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fill(other, range(3))
        log = other.tuning_log(HERE.key, TASK).records
        for path in (log.with_name("a\x1b[31m.jsonl"), other.logs / "tuning" / "llvm-\x1b[2J" / log.name):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(log.read_bytes())
        (taken,) = trials.merge(workspace, other)
        assert (taken.tasks, taken.added) == (1, 3)
        assert "is left out: " in capsys.readouterr().err
        assert target_keys(workspace) == [device_kind.claimed(HERE.key)]

    @pytest.mark.parametrize(("name", "taken"), [(f"{1:016x}.jsonl", []), ("device.json", [trial(0).hash])])
    def test_a_pipe_or_a_device_keeps_nobody_waiting(
        self, workspace: Workspace, other: Workspace, name: str, taken: list[str]
    ) -> None:
        fill(other, range(1))
        path = other.logs / "tuning" / HERE.key / name
        os.mkfifo(path.with_name("pipe"))
        for target in ("pipe", "/dev/zero"):
            path.unlink(missing_ok=True)
            path.symlink_to(target)
            with suppress(DiskProblem):  # of a log; nobody has to know what a folder stands for
                trials.merge(workspace, other)
            assert [item.hash for item in known(workspace)] == taken


def test_what_is_known_is_listed_by_where_it_was_measured(workspace: Workspace, file: Path) -> None:
    simulated = DeviceKind({"kind": "simulated"})
    fill(workspace, range(9, 11))
    fill(workspace, range(1, 2), simulated)
    trials.import_file(workspace, file)
    lines = [line.split() for line in run(workspace, "list").stdout.splitlines()]
    assert any(line[-4:] == ["1", "5", "3", "yes"] for line in lines)
    assert any("another" in line and line[-4:] == ["1", "2", "2", "no"] for line in lines)
    assert [simulated.key, "1", "1", "0", "no"] in lines


def test_a_false_time_counts_for_no_job(workspace: Workspace, other: Workspace, make_job: Any) -> None:
    from autotune.daemon.task_logs import JobTrials
    from autotune.storage.job_files import read_spec

    paths = make_job(1, tasks=1, target_key=HERE.key)
    spec = read_spec(paths)
    task = spec.tasks[0].hash
    fill(workspace, range(2), task=task)
    TuningLog(other.tuning_log(HERE.key, task).records).add([trial(7, times_us=(0.001,))])
    trials.merge(workspace, other)
    counted = JobTrials(workspace, paths, spec)
    counted.refresh_all()
    assert (counted.total, counted.best_us(0)) == (2, 10.0)


def test_a_machine_of_the_same_kind_with_other_caches_is_named() -> None:
    cpus = HERE.machine["cpus"]
    size = HERE.machine["L3"] + 2**20
    other = replace(HERE, machine={**HERE.machine, "cpus": cpus + 1, "L3": size})
    assert other.key == HERE.key, "its trials are those of one kind of device"
    said = trials.other_machine(other)
    theirs = f"{cpus + 1} CPUs, {size / 2**20:g} MiB of L3"
    assert said.startswith(f"measured with {theirs}, and this machine has {cpus} CPUs")
    assert trials.other_machine(HERE) == "" == trials.other_machine(replace(HERE, machine={}))
