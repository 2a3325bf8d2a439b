"""A user names jobs by number, range, name, `last` or `all`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.commands.jobs import no_jobs, select, select_one
from autotune.errors import UnknownJob
from autotune.storage.paths import JobPaths, Workspace

NAMES = {1: "resnet18", 2: "bert-base", 3: "vgg", 5: "net", 12: "7up"}


@pytest.fixture
def queue(workspace: Workspace, make_job: Callable[..., JobPaths]) -> Workspace:
    for id, name in NAMES.items():
        make_job(id, name, tasks=1)
    return workspace


class TestSelect:
    @pytest.mark.parametrize(
        ("words", "ids"),
        [
            ([], []),
            (["0003"], [3]),
            (["4-12"], [5, 12]),
            (["3, 5-12"], [3, 5, 12]),
            (["bert-base"], [2]),
            (["7up"], [12]),
            (["vgg,1"], [1, 3]),
            (["all"], [1, 2, 3, 5, 12]),
            (["last", "5", "1-3", "vgg", "5"], [1, 2, 3, 5, 12]),
        ],
    )
    def test_words_name_jobs_which_come_by_id_and_once(
        self, queue: Workspace, words: list[str], ids: list[int]
    ) -> None:
        assert [job.id for job in select(queue, words)] == ids

    @pytest.mark.parametrize(
        "word", ["6-11", "5-3", "resnet", "RESNET18", "", "²", "9" * 5000, "1-", "-1", "0", "../1"]
    )
    def test_a_word_that_names_none_is_an_error(self, queue: Workspace, word: str) -> None:
        with pytest.raises(UnknownJob):
            select(queue, [word])

    def test_one_unknown_word_among_known_ones_is_an_error(self, queue: Workspace) -> None:
        with pytest.raises(UnknownJob, match="'4'"):
            select(queue, ["1,4", "3"])

    def test_all_of_an_empty_queue_is_none_and_its_last_is_an_error(self, workspace: Workspace) -> None:
        assert select(workspace, ["all"]) == []
        with pytest.raises(UnknownJob) as caught:
            select(workspace, ["last"])
        assert str(caught.value) == f"no job 'last' here: {no_jobs(workspace)}"
        assert str(workspace.root.absolute()) in no_jobs(workspace) and "autotune submit" in no_jobs(workspace)


class TestWhatTheErrorSays:
    def text(self, workspace: Workspace) -> str:
        with pytest.raises(UnknownJob) as caught:
            select(workspace, ["77"])
        return str(caught.value)

    def test_it_names_all_of_a_few_jobs_and_the_last_of_many(
        self, workspace: Workspace, make_job: Callable[..., JobPaths]
    ) -> None:
        make_job(3, "vgg")
        assert self.text(workspace) == "no job '77' here: there is 3 (vgg)"
        for id, name in ((1, "a"), (2, "b"), (5, "net"), (12, "7up")):
            make_job(id, name)
        assert self.text(workspace) == "no job '77' here: there are 1 (a), 2 (b), 3 (vgg), 5 (net), 12 (7up)"
        make_job(13, "new")
        assert self.text(workspace).endswith("there are ... 2 (b), 3 (vgg), 5 (net), 12 (7up), 13 (new)")


class TestSelectOne:
    def test_it_gives_the_one_and_none_or_several_are_an_error(self, queue: Workspace, tmp_path: Path) -> None:
        assert select_one(queue, "vgg").id == 3
        for workspace, word, count in ((queue, "all", 5), (queue, "1,5", 2), (Workspace(tmp_path / "new"), "all", 0)):
            with pytest.raises(UnknownJob, match=rf"^'{word}' names {count} jobs; give one$"):
                select_one(workspace, word)


def test_a_job_name_may_hold_dashes(workspace: Workspace) -> None:
    assert workspace.job(2, "bert-base-2").name == "bert-base-2"
