"""The next round of a task may be searched while one is measured, and no kill in between loses or repeats a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.config import Config
from autotune.daemon.queued_job import QueuedJob
from autotune.planning.view import StageId
from autotune.processes.messages import RunStage
from autotune.stages import build
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import Candidate, StageFile
from autotune.storage.paths import JobPaths, Workspace

A = Candidate("a", [], [])
B = Candidate("b", [], [])


def hashes(stage: Stage) -> set[str]:
    """Of what is pending."""
    return {item.hash for item in stage.pending()}


class Killed(BaseException):
    """The process dies."""


@pytest.fixture
def stage(workspace: Workspace, make_job: Callable[..., JobPaths], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads a stage of a job with one task, whose candidates build without TVM."""
    paths = make_job(tasks=1, target="simulated")
    monkeypatch.setattr(build, "isolated", lambda candidates, *_, **__: [])

    def load(round: int = 0, file: StageFile | None = None) -> Stage:
        if file is not None:
            formats.write(paths.stage(file.task, file.round), file)
        return Stage.load(workspace, Config(), RunStage(0, paths.folder.name, 0, round, "search", (0,), 0.0, count=4))

    return load


def rounds(stage: Stage) -> dict[int, str]:
    files = [formats.read(StageFile, path) for path in stage.paths.stage_files_of(0)]
    return {file.round: file.kind for file in files}


class TestBuild:
    def test_a_build_publishes_the_next_search(self, stage: Any) -> None:
        loaded = stage(file=StageFile(0, 0, "build", (A,)))
        build.run(loaded)
        assert rounds(loaded) == {0: "measure", 1: "search"}

    def test_a_later_round_is_left_as_it_is(self, stage: Any) -> None:
        stage(1, StageFile(0, 1, "measure", (B,)))
        loaded = stage(file=StageFile(0, 0, "build", (A,)))
        build.run(loaded)
        assert rounds(loaded) == {0: "measure", 1: "measure"}

    @pytest.mark.parametrize("writes", [0, 1, 2])
    def test_killed_at_any_write_it_ends_the_same(
        self, stage: Any, writes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded = stage(file=StageFile(0, 0, "build", (A,)))
        write = formats.write
        left = [writes]

        def dying(*args: Any) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            write(*args)

        with monkeypatch.context() as patch:
            patch.setattr(formats, "write", dying)
            if writes < 2:
                with pytest.raises(Killed):
                    build.run(loaded)
            else:
                build.run(loaded)
        if rounds(loaded)[0] == "build":
            build.run(stage())
        assert rounds(loaded) == {0: "measure", 1: "search"}


class TestEndOfARound:
    def test_the_round_that_follows_is_left_as_it_is(self, stage: Any) -> None:
        stage(1, StageFile(0, 1, "build", (B,)))
        loaded = stage(file=StageFile(0, 0, "train"))
        loaded.end_round()
        assert rounds(loaded) == {1: "build"}

    def test_rounds_may_end_out_of_order(self, stage: Any) -> None:
        stage(file=StageFile(0, 0, "train"))
        later = stage(1, StageFile(0, 1, "train"))
        later.end_round()
        stage().end_round()
        assert rounds(later) == {2: "search"}


class TestOnItsWay:
    def test_it_is_what_other_rounds_have_proposed(self, stage: Any) -> None:
        stage(0, StageFile(0, 0, "measure", (A, B)))
        assert hashes(stage(1, StageFile(0, 1, "search"))) == {"a", "b"}
        assert hashes(stage(0)) == set()

    def test_a_round_that_ends_meanwhile_is_none(self, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = stage(0)
        gone = loaded.paths.stage(0, 7)
        monkeypatch.setattr(JobPaths, "stage_files_of", lambda *_: [gone])
        assert hashes(loaded) == set()


def test_a_ledger_reads_on_where_a_round_ends_meanwhile(
    workspace: Workspace, make_job: Callable[..., JobPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_job(tasks=1)
    ledger = QueuedJob.open(workspace, paths, Config())
    monkeypatch.setattr(JobPaths, "stage_files_of", lambda *_: [paths.stage(0, 0), paths.stage(0, 7)])
    ledger.refresh(0)
    assert list(ledger.rounds.stages) == [StageId(1, 0, 0)]
