"""What every runner of stages keeps, as a class of tests."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from autotune.processes.messages import RunStage, StageReport
from autotune.storage import formats
from autotune.storage.formats import Control, JobSpec, StageFile, TaskSpec
from autotune.storage.job_files import read_spec, read_stage
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.workers.stage_runner import StageRunner

_LIMIT_S = 120.0
_SETTINGS = """
[machine]
lock_dir = "{locks}"
simulated_cpus = 2
[devices.gpu0]
kind = "simulated"
search_s = 0.01
build_s = 0.01
measure_s = {measure_s}
train_s = 0.01
"""


class StageRunnerContract:
    """Subclass it as `TestYours` and override `runner`, a fixture that makes a runner for a workspace.

    Stages run on a simulated device called `gpu0`, which the runner's first machine must have. What is tested are the
    promises of `autotune.workers.stage_runner.StageRunner`.
    """

    measure_s = 0.2

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Workspace:
        """Make a workspace with its settings, which come before the runner."""
        return self.make_workspace(tmp_path)

    @classmethod
    def make_workspace(cls, folder: Path) -> Workspace:
        """Make a workspace with a simulated device in a folder."""
        workspace = Workspace(folder / "workspace")
        locks = folder / "locks"
        for folder in (workspace.jobs, workspace.logs):
            folder.mkdir(parents=True)
        workspace.config.write_text(_SETTINGS.format(locks=locks, measure_s=cls.measure_s))
        return workspace

    @pytest.fixture
    def runner(self, settings: Workspace) -> StageRunner:
        """Make the runner, and stop it after the test."""
        raise NotImplementedError

    @pytest.fixture
    def job(self, settings: Workspace) -> JobPaths:
        """Publish a job of two tasks for the simulated device. It shares its trials with no other job."""
        id = 1 + len(settings.job_list())
        tasks = tuple(TaskSpec(f"conv{index}", f"{index:016x}", 1, "1x8", 0.5, True) for index in range(2))
        spec = JobSpec(
            id=id,
            name="net",
            model="net.onnx",
            target={"kind": formats.SIMULATED},
            target_key=f"simulated-{id}",
            inputs=(),
            tasks=tasks,
            trials=64,
            trials_per_round=4,
            strategy="random",
            sampler="greedy",
            known_at_submit=(0,) * len(tasks),
            submitted_at=1e9,
        )
        paths = settings.job(id, "net")
        paths.stages.mkdir(parents=True)
        formats.write(paths.spec, spec)
        formats.write(paths.control, Control())
        for task in range(len(tasks)):
            formats.write(paths.stage(task, 0), StageFile(task, 0, "search"))
        return paths

    def place(self, runner: StageRunner, kind: str) -> tuple[tuple[int, ...], str]:
        """Return a CPU for a stage, and the device for a measurement."""
        machine = runner.machine()
        cpus, devices = (machine.cpus, machine.devices) if machine else ((0,), ("simulated:gpu0",))
        return cpus[:1], devices[0] if kind == "measure" else ""

    def leases(self, cpus: Sequence[int], device: str) -> tuple[str, ...]:
        """Return what a stage leases on this machine."""
        return (*(f"simcpu-{cpu}" for cpu in cpus), *([device] if device else []))

    def request(self, runner: StageRunner, job: JobPaths, id: int, task: int = 0, limit_s: float = 60.0) -> RunStage:
        """Return the next stage of the first round of a task."""
        kind = read_stage(job, job.stage(task, 0), read_spec(job)).kind
        cpus, device = self.place(runner, kind)
        return RunStage(
            id, job.folder.name, task, 0, kind, cpus, limit_s, self.leases(cpus, device), count=4, device=device
        )

    def reports(self, runner: StageRunner, until: Callable[[list[StageReport]], bool]) -> list[StageReport]:
        """Collect reports as the daemon does until they are enough."""
        reports: list[StageReport] = []
        deadline = time.monotonic() + _LIMIT_S
        while not until(reports):
            assert time.monotonic() < deadline, f"only {reports}"
            readable, _, _ = select.select(runner.descriptors(), [], [], 0.1)
            reports += runner.reports(readable)
        return reports

    def serve(self, runner: StageRunner, request: RunStage) -> StageReport:
        """Run one stage to its end."""
        runner.run(formats.SIMULATED, request)
        (report,) = self.reports(runner, bool)
        return report

    def trials(self, workspace: Workspace, job: JobPaths) -> list[str]:
        """Return the hashes in the tuning log of a job's first task."""
        log = workspace.tuning_log(f"simulated-{job.id}", f"{0:016x}").records
        return [trial.hash for trial in TuningLog(log).trials()]

    def test_a_round_runs_stage_by_stage_and_each_is_in_the_workspace_when_it_is_reported(
        self, runner: StageRunner, settings: Workspace, job: JobPaths
    ) -> None:
        spec = read_spec(job)
        for id, following in enumerate(("build", "measure", "train"), 1):
            report = self.serve(runner, self.request(runner, job, id))
            assert (report.id, report.outcome, report.reason) == (id, "done", "")
            file = read_stage(job, job.stage(0, 0), spec)
            assert file.kind == following
            if following == "measure":
                libraries = [job.artifacts_of(0, 0) / item.library for item in file.candidates]
                assert all(path.stat().st_size for path in libraries) and len(libraries) == 4
            if following == "train":
                assert sorted(self.trials(settings, job)) == sorted(item.hash for item in self.candidates)
            self.candidates = file.candidates or self.candidates
        report = self.serve(runner, self.request(runner, job, 9))
        assert report.outcome == "done" and report.summary["trained_on"] == 4
        assert [path.name for path in job.stage_files_of(0)] == [job.stage(0, 1).name]

    candidates: Sequence[formats.Candidate] = ()

    def test_stages_run_side_by_side_and_each_is_reported_once(self, runner: StageRunner, job: JobPaths) -> None:
        for id in (1, 2):
            runner.run(formats.SIMULATED, self.request(runner, job, id, task=id - 1))
        reports = self.reports(runner, lambda reports: len(reports) >= 2)
        quiet = time.monotonic() + 0.5
        reports += self.reports(runner, lambda _: time.monotonic() > quiet)
        assert sorted((report.id, report.outcome) for report in reports) in (
            [(1, "done"), (2, "done")],
            [(1, "busy"), (2, "done")],
            [(1, "done"), (2, "busy")],
        )

    def test_a_stage_that_cannot_be_run_is_reported_as_failed(self, runner: StageRunner, job: JobPaths) -> None:
        request = self.request(runner, job, 1)
        job.stage(0, 0).unlink()
        assert self.serve(runner, request).outcome == "failed"

    def test_a_stage_that_is_killed_is_reported_as_crashed_and_what_it_measured_is_kept(
        self, runner: StageRunner, settings: Workspace, job: JobPaths
    ) -> None:
        self.to_measure(runner, job, settings)
        request = self.request(runner, job, 5)
        runner.run(formats.SIMULATED, request)
        first = self.reports(runner, lambda reports: bool(reports or self.trials(settings, job)))
        assert first == []
        runner.kill_stage(5)
        runner.kill_stage(77)
        (report,) = self.reports(runner, bool)
        assert (report.id, report.outcome) == (5, "crashed")
        kept = self.trials(settings, job)
        assert 0 < len(kept) < 4
        self.quicken(settings)
        assert self.serve(runner, self.request(runner, job, 6)).outcome == "done"
        log = self.trials(settings, job)
        assert log[: len(kept)] == kept and len(log) == len(set(log)) == 4

    def test_a_stage_beyond_its_limit_is_reported_as_out_of_time(
        self, runner: StageRunner, settings: Workspace, job: JobPaths
    ) -> None:
        self.to_measure(runner, job, settings)
        assert self.serve(runner, self.request(runner, job, 5, limit_s=0.5)).outcome == "timeout"
        self.quicken(settings)
        assert self.serve(runner, self.request(runner, job, 6)).outcome == "done", "its CPU and device are free again"

    def test_nothing_runs_on_after_it_is_stopped(self, runner: StageRunner, settings: Workspace, job: JobPaths) -> None:
        self.to_measure(runner, job, settings)
        runner.run(formats.SIMULATED, self.request(runner, job, 5))
        self.reports(runner, lambda _: bool(self.trials(settings, job)))
        assert self.workers(settings)
        runner.stop()
        runner.stop()
        deadline = time.monotonic() + 20
        while self.workers(settings):
            assert time.monotonic() < deadline, self.workers(settings)
            time.sleep(0.05)
        size = len(self.trials(settings, job))
        time.sleep(0.5)
        assert len(self.trials(settings, job)) == size

    def works_for(self, folder: str, workspace: Workspace) -> bool:
        """Return whether a worker for a folder is one of this runner's."""
        return Path(folder) == workspace.root

    def workers(self, workspace: Workspace) -> list[list[str]]:
        """Return the command lines of this runner's workers, wherever they run on this machine."""
        lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        ours = [line for line in lines if "autotune.workers.worker" in line]
        return [line for line in ours if self.works_for(line[line.index("--workspace") + 1], workspace)]

    def to_measure(self, runner: StageRunner, job: JobPaths, workspace: Workspace) -> None:
        """Bring the first round to its measurement, and make measurements slow."""
        for id in (1, 2):
            assert self.serve(runner, self.request(runner, job, id)).outcome == "done"
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace(f"measure_s = {self.measure_s}", "measure_s = 12.0"))

    def quicken(self, workspace: Workspace) -> None:
        """Make measurements quick again."""
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace("measure_s = 12.0", f"measure_s = {self.measure_s}"))
