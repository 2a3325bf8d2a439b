"""What is written is read back the same; what is not as written is an error that says so."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import DamagedFile, InvalidData, NewerFormat
from autotune.options import InputSpec
from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, EntryTimes
from autotune.storage.daemon_info import DaemonInfo, RunningStage
from autotune.storage.formats import (
    Candidate,
    Control,
    EstimatesFile,
    Failure,
    JobSpec,
    JobState,
    StageFile,
    TaskProgress,
    TaskSpec,
    Trial,
)

WHY = Reason("window", "cuda", ("cpu-0",), 5.5, 2, "what", ("process 7",))
FILES = [Confirmation, Control, DaemonInfo, EstimatesFile, JobSpec, JobState, StageFile]
PARTS = [Candidate, Failure, InputSpec, Reason, RunningStage, TaskProgress, TaskSpec, Trial]
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=10),
    bool: st.booleans(),
}
JSON = st.recursive(
    st.none() | st.booleans() | PLAIN[int] | PLAIN[str],
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN[str], inner, max_size=3),
    max_leaves=5,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold."""
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is Annotated and args[1].pattern is not None:
        return st.text("abc", min_size=1, max_size=8)  # which each pattern takes
    if origin is Annotated:
        draw = st.floats if args[0] is float else st.integers
        most = args[1].le if args[1].le is not None else 1e18  # just below what is too much
        if args[1].gt is not None:
            return st.floats(args[1].gt, most, exclude_min=True)
        return draw(args[1].ge, most)
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (dict, Mapping):
        return st.dictionaries(values(args[0]), JSON if args[1] is Any else values(args[1]), max_size=3)
    if origin is list:
        return st.lists(values(args[0]), max_size=3)
    if len(args) > 1:  # a union
        return st.one_of(st.none() if option is type(None) else values(option) for option in args)
    return JSON if hint is Any else PLAIN[hint]


def example(kind: Any) -> Any:
    """One value of each file format, with something in every field."""
    task = TaskSpec("conv", "ab12", 3, "1x8", 0.5, True)
    candidate = Candidate("ab", [1], [2], "ab.so", "6", Failure("build", "crash", "killed by SIGSEGV"))
    stage = RunningStage(1, 2, 3, "build", (0,), 2.5, "cuda:0")
    target = {"kind": "llvm"}
    x = InputSpec("x", (1, 8), "float32")
    return {
        Confirmation: Confirmation(
            (5.5, 5.25), 4.5, 1.5, entries=(EntryTimes("main", (5.5, 5.25), 4.5, "onnxruntime", 6.5),)
        ),
        Control: Control("hold", 2),
        DaemonInfo: DaemonInfo(
            {"pid": 5}, 1.5, "p", True, (stage,), {"1": WHY}, "22:00-07:00", (0, 1), ("cpu",), {"1": 9.5}
        ),
        EstimatesFile: EstimatesFile((["build", "cpu", "llvm/ab", 0.5, 0.25, 3],)),
        JobSpec: JobSpec(
            id=1,
            name="net",
            model="/net.onnx",
            target=target,
            target_key="llvm-x",
            inputs=(x,),
            tasks=(task,),
            trials=64,
            trials_per_round=8,
            strategy="beam",
            sampler="greedy",
            known_at_submit=(7,),
            submitted_at=1.5,
            deadline=9.5,
        ),
        JobState: JobState("done", WHY, 64, (TaskProgress(64, 2.5, "why"),), 4.5, 1),
        StageFile: StageFile(1, 2, "measure", (candidate,)),
    }[kind]


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.json"


class TestRoundTrip:
    @pytest.mark.parametrize("kind", FILES + PARTS)
    def test_anything_comes_back_from_json_the_same(self, kind: Any) -> None:
        @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a stopped machine
        @given(values(kind))
        def check(value: Any) -> None:
            assert formats.from_json(kind, json.loads(json.dumps(formats.to_json(value)))) == value

        check()

    @pytest.mark.parametrize("kind", FILES)
    def test_a_file_is_read_as_it_was_written_without_keys_of_later_versions(self, path: Path, kind: Any) -> None:
        formats.write(path, example(kind))
        assert formats.read(kind, path) == example(kind)
        rewrite(path, since_version_7={"a": 1})
        assert formats.read(kind, path) == example(kind)
        rewrite(path, version=99)
        with pytest.raises(NewerFormat, match="upgrade autotune"):
            formats.read(kind, path)

    def test_types_come_back_too_and_a_whole_number_may_stand_for_a_float(self) -> None:
        stage = formats.from_json(StageFile, formats.to_json(example(StageFile)))
        assert type(stage.candidates[0]) is Candidate and type(stage.candidates[0].failure) is Failure
        progress = formats.from_json(TaskProgress, {"best_us": 5})
        assert progress.best_us == 5.0 and type(progress.best_us) is float


class TestOtherVersions:
    def test_an_older_file_is_upgraded_version_by_version(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        formats.write(path, Control("hold"))
        monkeypatch.setattr(Control, "FORMAT", ("autotune-control", 3))
        monkeypatch.setitem(formats.UPGRADES, ("autotune-control", 1), lambda data: {"wish": data["wanted"]})
        monkeypatch.setitem(formats.UPGRADES, ("autotune-control", 2), lambda data: {"wanted": data["wish"]})
        assert formats.read(Control, path) == Control("hold")

    @pytest.mark.parametrize("kind", [Control, JobState])
    def test_what_is_left_out_has_its_default(self, path: Path, kind: Any) -> None:
        formats.write(path, example(kind))
        name, version = kind.FORMAT
        path.write_text(json.dumps({"format": name, "version": version}))
        assert formats.read(kind, path) == kind()


class TestAbsurdTrials:
    """They have a valid checksum, say because somebody wrote them by hand: they are left out like any damage."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"times_us": [0.0]},
            {"times_us": [10**400]},
            {"times_us": [float("inf")]},
            {"at": 1e300},
            {"round": -1},
            {"round": 10**400},
        ],
    )
    def test_numbers_that_cannot_be_are_invalid(self, changes: dict[str, Any]) -> None:
        whole = {"hash": "a", "trace": [], "args": [], "times_us": [1.0], "failure": None}
        record = {**whole, "job": "0001-net", "round": 0, "at": 1.0}
        assert formats.from_json(Trial, record).times_us == (1.0,)
        with pytest.raises(InvalidData):
            formats.from_json(Trial, {**record, **changes})


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("kind", "changes"),
        [
            (JobSpec, {"trials": "64"}),
            (JobSpec, {"deadline": 1e300}),
            (JobSpec, {"fresh": 1}),
            (JobSpec, {"submitted_at": True}),
            (JobSpec, {"inputs": [{"name": "x"}]}),
            (JobSpec, {"known_at_submit": ["7"]}),
            (Control, {"wanted": "lunch"}),
            (JobState, {"tasks": [{"trials": "3"}]}),
            (StageFile, {"candidates": [{"hash": "a", "trace": 1, "args": 2, "failure": "crash"}]}),
            (DaemonInfo, {"waits": ["a"]}),
        ],
    )
    def test_a_value_of_the_wrong_type_is_damage(self, path: Path, kind: Any, changes: dict[str, Any]) -> None:
        formats.write(path, example(kind))
        rewrite(path, **changes)
        with pytest.raises(DamagedFile, match=f"{path} is not a valid {kind.FORMAT[0]} file"):
            formats.read(kind, path)

    def test_a_missing_key_and_another_format_are_damage_and_no_file_is_none(self, path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            formats.read(Control, path)
        formats.write(path, example(JobSpec))
        with pytest.raises(DamagedFile, match="autotune-job"):
            formats.read(JobState, path)
        data = json.loads(path.read_text())
        del data["trials"]
        path.write_text(json.dumps(data))
        with pytest.raises(DamagedFile, match="'trials'"):
            formats.read(JobSpec, path)


class TestTrial:
    @pytest.mark.parametrize(
        ("times", "median"), [((), None), ((3.0,), 3.0), ((9.0, 1.0, 2.0), 2.0), ((4.0, 1.0, 2.0, 9.0), 3.0)]
    )
    def test_its_time_is_the_median(self, times: tuple[float, ...], median: float | None) -> None:
        assert Trial("a", [], [], times, None, "0001-net", 0, 0.0).median_us == median


class TestJobSpec:
    def test_it_knows_its_kind_of_target_and_which_tasks_can_be_tuned(self) -> None:
        spec = example(JobSpec)
        fixed = replace(spec.tasks[0], tunable=False)
        assert replace(spec, tasks=(fixed, *spec.tasks, fixed, *spec.tasks)).tunable == (1, 3)
        assert example(JobSpec).target_kind == "llvm"


def test_every_format_has_its_own_name() -> None:
    names = [kind.FORMAT[0] for kind in FILES]
    assert len(set(names)) == len(names)
    assert all(not {"format", "version"} & asdict(example(kind)).keys() for kind in FILES)
