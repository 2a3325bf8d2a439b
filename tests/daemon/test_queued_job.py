"""The ledger follows from a job's files: whoever opens it anew knows as much as who wrote them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from autotune.commands.logs import events
from autotune.config import Config
from autotune.daemon.queued_job import QueuedJob
from autotune.errors import DamagedFile, DiskProblem, StorageError
from autotune.planning.planner import CPU, TURN
from autotune.planning.view import RunningView, StageId, StageView
from autotune.processes.messages import StageReport
from autotune.reasons import Reason, sentence
from autotune.storage import formats
from autotune.storage.formats import (
    Candidate,
    Control,
    JobState,
    StageFile,
    TaskProgress,
    TaskSpec,
    Trial,
)
from autotune.storage.job_files import read_control, read_state
from autotune.storage.journal import StageDone, TaskSetAside, WaitStarted
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

Make = Callable[..., JobPaths]
FIXED = TaskSpec("reshape", "f" * 16, 1, "1x8", 0.0, False)


def open_job(workspace: Workspace, paths: JobPaths) -> QueuedJob:
    return QueuedJob.open(workspace, paths, Config())


class TestOpening:
    def test_it_reads_spec_control_and_state(self, workspace: Workspace, make_job: Make) -> None:
        ledger = open_job(workspace, make_job(4, control=Control("hold"), state=JobState("held", Reason("held"))))
        assert (ledger.id, ledger.control.wanted, ledger.state.state, ledger.active) == (4, "hold", "held", False)
        assert open_job(workspace, make_job(5, "runs")).active
        assert not open_job(workspace, make_job(6, "goes", control=Control("cancel"))).active
        ended = open_job(workspace, make_job(7, "over", state=JobState("failed")))
        assert ended.ended and not ended.active

    def test_a_damaged_state_is_as_good_as_none_and_a_damaged_spec_cannot_be_opened(
        self, workspace: Workspace, make_job: Make
    ) -> None:
        paths = make_job(state=JobState("held"))
        paths.state.write_text("{")
        assert open_job(workspace, paths).state == read_state(paths) == JobState()
        paths.spec.write_text("{")
        with pytest.raises(DamagedFile):
            open_job(workspace, paths)

    @pytest.mark.parametrize("content", [None, "{"])
    def test_a_job_whose_control_is_lost_is_held(self, make_job: Make, content: str | None) -> None:
        """One that was to be held must not start by damage; what a newer version says is no damage."""
        paths = make_job()
        paths.control.unlink() if content is None else paths.control.write_text(content)
        control = read_control(paths)
        said = sentence(control.reason)
        assert control.wanted == "hold" and str(paths.control) in said and "autotune release" in said
        paths.control.write_text('{"format": "autotune-control", "version": 3}')
        with pytest.raises(StorageError):
            read_control(paths)


class TestStages:
    def test_a_new_job_has_a_search_for_each_task_that_can_be_tuned_and_a_stage_counts_its_candidates(
        self, workspace: Workspace, make_job: Make
    ) -> None:
        task = TaskSpec("conv", "0" * 16, 1, "1x8", 0.5, True)
        paths = make_job(3, tasks=(FIXED, task), known_at_submit=(0, 0))
        view = open_job(workspace, paths).view()
        assert view.stages == (StageView(StageId(3, 1, 0), "search"),)
        assert [item.exhausted for item in view.tasks] == [True, False]
        formats.write(paths.stage(1, 0), StageFile(1, 0, "build", (Candidate("a", [], []), Candidate("b", [], []))))
        assert open_job(workspace, paths).view().stages == (StageView(StageId(3, 1, 0), "build", 2),)

    def test_refreshing_a_task_reads_its_stages_only_and_reloading_reads_all(
        self, workspace: Workspace, make_job: Make
    ) -> None:
        paths = make_job(tasks=2)
        ledger = open_job(workspace, paths)
        for task in (0, 1):
            paths.stage(task, 0).unlink()
            formats.write(paths.stage(task, 1), StageFile(task, 1, "search"))
        ledger.refresh(1)
        assert {id[1:] for id in ledger.rounds.stages} == {(0, 0), (1, 1)}
        ledger.reload()
        assert {id[1:] for id in ledger.rounds.stages} == {(0, 1), (1, 1)}

    def test_a_round_that_left_the_measurement_unreported_is_known_by_its_trials(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        """Its candidates are in flight no more: not to count its trials either would spend the budget twice."""
        paths = make_job(tasks=1)
        ledger = open_job(workspace, paths)
        add(0, 5.0, 4.0)
        formats.write(paths.stage(0, 0), StageFile(0, 0, "train"))
        ledger.refresh(0)
        assert (ledger.view().stages[0].candidates, ledger.view().trials_done) == (0, 2)

    def test_a_task_without_a_stage_file_gets_its_next_search_back(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job(tasks=2)
        paths.stage(1, 0).unlink()
        log = TuningLog(workspace.tuning_log("llvm-test", f"{1:016x}").records)
        log.add([Trial("a", [], [], (3.0,), None, paths.folder.name, 4, 0.0)])
        stages = open_job(workspace, paths).rounds.stages
        assert {id: file.kind for id, file in stages.items()} == {
            StageId(1, 0, 0): "search",
            StageId(1, 1, 5): "search",
        }
        assert formats.read(StageFile, paths.stage(1, 5)) == StageFile(1, 5, "search")


class TestTrials:
    def test_they_come_from_the_tuning_logs(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        add(0, None, 30.0, None, 10.0, 20.0)
        first, second = open_job(workspace, make_job()).view().tasks
        assert (first.trials, first.running_best) == (5, (math.inf, 30.0, 30.0, 10.0, 10.0))
        assert (second.trials, second.running_best) == (0, ())

    def test_trials_of_other_jobs_are_followed(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        ledger = open_job(workspace, make_job())
        add(1, 10.0)
        assert ledger.view().trials_done == 0
        ledger.trials.refresh_all()
        assert ledger.view().trials_done == 1

    def test_a_fresh_job_counts_those_since_it_was_submitted(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        add(0, 30.0, 20.0, 10.0)
        view = open_job(workspace, make_job(fresh=True, known_at_submit=(2, 5))).view()
        assert view.tasks[0].running_best == (30.0, 20.0, 10.0)
        assert [task.trials for task in view.tasks] == [1, 0], "the log of the second was lost"


class TestView:
    def test_it_has_what_the_planner_needs(self, workspace: Workspace, make_job: Make) -> None:
        ledger = open_job(workspace, make_job(5, trials=99, trials_per_round=7, priority=3))
        ledger.exhausted.add(1)
        view = ledger.view()
        assert (view.id, view.device, view.trials, view.trials_per_round, view.priority) == (5, "cpu", 99, 7, 3)
        assert [task.weight for task in view.tasks] == [1, 2] and view.deadline is None
        assert [task.exhausted for task in view.tasks] == [False, True]
        assert open_job(workspace, make_job(6, "late", deadline=1.8e9)).view().deadline == 1.8e9

    def test_two_jobs_share_a_task_by_its_key(self, workspace: Workspace, make_job: Make) -> None:
        first, second = (open_job(workspace, make_job(id, f"n{id}", tasks=id)).view() for id in (1, 2))
        gpu = open_job(workspace, make_job(3, "gpu", tasks=1, target="cuda")).view()
        assert first.tasks[0].key == second.tasks[0].key != second.tasks[1].key
        assert gpu.tasks[0].key != first.tasks[0].key
        assert gpu.device == "cuda"


class TestSettingAside:
    def test_it_lasts_and_is_noted(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job()
        ledger = open_job(workspace, paths)
        ledger.set_aside(1, "build: crashed")
        ledger.publish("running", None)
        again = open_job(workspace, paths)
        assert [task.set_aside for task in again.view().tasks] == [False, True]
        assert again.state.tasks[1].set_aside == "build: crashed"
        (event,) = events(paths, False)
        assert event == TaskSetAside(1, "build: crashed", at=event.at)


class TestPublishing:
    def test_the_state_tells_how_far_it_is(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        add(0, 30.0, 10.0)
        add(1, None)
        paths = make_job()
        open_job(workspace, paths).publish("running", CPU)
        state = read_state(paths)
        assert (state.state, state.reason, state.trials_done) == ("running", CPU, 3)
        assert [(task.trials, task.best_us) for task in state.tasks] == [(2, 10.0), (1, None)]

    def test_it_is_written_only_when_it_changed(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job()
        ledger = open_job(workspace, paths)
        ledger.publish("waiting", CPU)
        before = paths.state.stat().st_ino
        ledger.publish("waiting", CPU)
        assert paths.state.stat().st_ino == before
        ledger.publish("waiting", TURN)
        assert paths.state.stat().st_ino != before

    def test_an_end_that_could_not_be_written_is_written_later_and_its_time_stays(
        self, workspace: Workspace, make_job: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = open_job(workspace, make_job())
        ledger.publish("running", None)
        assert read_state(ledger.paths).finished_at is None

        def full(*_: object) -> None:
            raise DiskProblem("no space")

        with monkeypatch.context() as patched:
            patched.setattr(formats, "write", full)
            with pytest.raises(DiskProblem):
                ledger.publish("done", Reason("budget-used"))
        assert not ledger.ended
        ledger.publish("done", Reason("budget-used"))
        assert read_state(ledger.paths).state == "done"
        # who follows the journal stops at the state, which comes last
        assert [event.state for event in events(ledger.paths, follow=True)][-1:] == ["done"]
        finished = read_state(ledger.paths).finished_at
        assert finished is not None and abs(finished - time.time()) < 60
        ledger.publish("done", Reason("budget-used"))
        assert read_state(ledger.paths).finished_at == finished

    def test_what_it_waits_for_is_told_once(self, workspace: Workspace, make_job: Make) -> None:
        """Not whenever the words change, nor the turn that every job waits for at first."""
        paths = make_job()
        ledger = open_job(workspace, paths)
        for reason in (
            TURN,
            Reason("lease", resources=("cpu-3",)),
            Reason("lease", resources=("cpu-4",)),
            CPU,
            CPU,
            Reason("window", opens_at=22.0),
            Reason("window", opens_at=23.0),
            TURN,
        ):
            ledger.journal.waiting(reason)
        told = [(type(event), event.reason.topic) for event in events(paths, False)]
        assert told == [(WaitStarted, topic) for topic in ("lease", "cpu", "window", "turn")]

    def test_the_journal_tells_since_when_and_on_what_a_stage_ran(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job()
        ledger = open_job(workspace, paths)
        stage = RunningView(StageId(1, 0, 2), "measure", (0, 1), 8, "cpu", 1700.25)
        ledger.journal.stage_done(stage, StageReport(1, "done", seconds=3.5, waited=0.25), {"failed": 1})
        (event,) = events(paths, False)
        place = {"kind": "measure", "task": 0, "round": 2, "cpus": (0, 1), "device": "cpu"}
        assert event == StageDone(**place, began=1700.5, seconds=3.5, summary={"failed": 1}, at=event.at)


class TestObeying:
    def test_a_wish_is_read_once(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job()
        ledger = open_job(workspace, paths)
        ledger.refresh_control()
        assert not ledger.refresh_control()
        formats.write(paths.control, Control("hold", 2))
        assert ledger.refresh_control() and ledger.control == Control("hold", 2)
        assert not ledger.refresh_control()
        ledger.publish("running", None)
        assert read_state(paths).retries_seen == 2
        paths.control.unlink()
        assert not open_job(workspace, paths).refresh_control()

    def test_a_restart_forgets_failures_and_keeps_trials(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        add(0, 10.0)
        aside = (TaskProgress(1, 10.0), TaskProgress(0, None, "build: crashed"))
        ledger = open_job(
            workspace, make_job(control=Control("run", 1), state=JobState("failed", tasks=aside, finished_at=5.0))
        )
        ledger.exhausted.add(0)
        ledger.failures[StageId(1, 1, 0)] = 3
        ledger.restart()
        view = ledger.view()
        assert not ledger.ended and not ledger.failures
        assert not any(task.exhausted or task.set_aside for task in view.tasks)
        assert view.trials_done == 1 and len(view.stages) == 2
        ledger.publish("waiting", None)
        assert (ledger.state.retries_seen, ledger.state.finished_at) == (1, None)


class TestTheClockWasWrong:
    """When a job was submitted orders the queue, and the clock may have been wrong then."""

    @pytest.mark.parametrize(("submitted", "settled"), [(9e9, 2000.0), (5.0, 1000.0), (1500.0, 1500.0)])
    def test_a_job_takes_its_place_by_its_number(
        self, workspace: Workspace, make_job: Make, submitted: float, settled: float
    ) -> None:
        first = open_job(workspace, make_job(1, submitted_at=1000.0))
        second = open_job(workspace, make_job(2, "late", submitted_at=submitted))
        second.enter_queue([first, second], now=2000.0)
        assert second.view().submitted_at == second.view().served_at == settled


class TestTimeUsed:
    def stage(self, began: float, ended: float) -> StageDone:
        return StageDone(kind="build", began=began, at=ended, seconds=ended - began)

    def test_stages_at_once_count_once_and_waiting_does_not_count(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job(within_s=10.0)
        ledger = open_job(workspace, paths)
        assert not ledger.view().time_used
        ledger.journal.append(self.stage(100.0, 106.0))
        ledger.journal.append(self.stage(101.0, 107.0))
        assert not ledger.view().time_used
        ledger.journal.append(self.stage(500.0, 503.0))
        assert ledger.view().time_used
        assert open_job(workspace, paths).view().time_used, "another daemon knows it, too"
        free = open_job(workspace, make_job(2, "free"))
        free.journal.append(self.stage(0.0, 1e9))
        assert not free.view().time_used


class TestSettled:
    def test_an_automatic_budget_ends_when_more_would_gain_little_and_a_number_is_kept_to(
        self, workspace: Workspace, make_job: Make, add: Callable[..., None]
    ) -> None:
        add(0, *[100.0] * 60)
        ledger = open_job(workspace, make_job(tasks=1, trials=500, automatic=True))
        assert ledger.view().settled
        assert not open_job(workspace, make_job(2, "given", tasks=1, trials=500)).view().settled
        add(0, *[50.0] * 20)
        ledger.trials.refresh_all()
        assert not ledger.view().settled
