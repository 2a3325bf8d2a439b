"""The daemon: load, obey, dispatch, publish, collect; and again. Never imports TVM."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from autotune.config import Config
from autotune.daemon import capacity, uptime
from autotune.daemon.archive import Archive
from autotune.daemon.hours import Hours
from autotune.daemon.leftovers import sweep
from autotune.daemon.pause import Pause
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.stage_times import StageTimes
from autotune.daemon.status_file import StatusFile
from autotune.daemon.watch import FolderWatch
from autotune.errors import DaemonRunning, DiskProblem, StorageError, TimedOut
from autotune.planning import policies
from autotune.planning.budget import ended
from autotune.planning.planner import Planner
from autotune.planning.view import Machine, Plan, RunningView, Start
from autotune.planning.waiting import TURN
from autotune.processes.interrupts import interrupts
from autotune.stages.progress import pardoned
from autotune.storage import locks
from autotune.storage.daemon_info import holder
from autotune.storage.paths import Workspace
from autotune.storage.quarantine import Quarantine
from autotune.storage.room import check_room, private_folder
from autotune.tvm_backend.load import check_versions
from autotune.workers.pool import Report, WorkerPool

_LOG = logging.getLogger("autotune.daemon")
_BUSY_PAUSE_S = 1.0
_LEFT_OUT_AGAIN_S = 30.0
_STATE_EVERY_S = 1.0
_SWEEP_EVERY_S = 3600.0
_PLAN_EVERY_S = 10.0  # in any case; else when something has changed


@dataclass(frozen=True)
class _Task:
    """A stage that was handed to a worker."""

    view: RunningView
    started_at: float


@dataclass
class Daemon:
    """One daemon of one workspace. `drain` leaves when nothing is left; `until` is an epoch second to leave at.

    `policy` and `window` override those of the settings.
    """

    workspace: Workspace
    config: Config
    drain: bool = False
    until: float | None = None
    policy: str = ""
    window: str = ""
    _planner: Planner | None = None
    _jobs: dict[int, QueuedJob] = field(default_factory=dict)
    _over: Archive = field(default_factory=Archive)
    _left_out: dict[int, str] = field(default_factory=dict)
    _look_again_at: float = 0.0
    _running: dict[int, _Task] = field(default_factory=dict)
    _plan: Plan = field(default_factory=lambda: Plan((), {}))
    _not_before: float = 0.0
    _sequence: int = 0
    _failed: bool = False
    _published_at: float = 0.0
    _changed: bool = True  # since the last plan
    _unpublished: bool = True
    _plan_by: float = 0.0
    _pause: Pause = field(default_factory=Pause)
    _stop_by: float | None = None
    _sweep_at: float = 0.0
    _stalled: bool = False  # nothing runs and the last plan starts nothing: only a change from outside goes on

    def run(self) -> int:
        """Serve until drained, told to stop, or out of time. Returns the exit code.

        Raises:
            DaemonRunning: another daemon serves this workspace.
            UnsupportedVersion: the workers could not load this TVM.
            NewerFormat: the workspace is a newer autotune's.
            TimedOut: `until` came before the work was done.
        """
        check_versions()
        self._pool = WorkerPool(self.workspace, self.config.daemon.stop_grace_s, self.config.daemon.worker_stages)
        self._hours = Hours.parse(self.window or self.config.daemon.window)
        self._watch = FolderWatch(self.workspace.jobs)
        with self._alone(), interrupts(self._stop_soon) as self._interrupts:
            self._stage_times = StageTimes.load(self.workspace)
            try:
                self._introduce()
                while not self._leaving():
                    self._tick()
                self._publish(last=True)
            finally:
                self._pool.stop()
                self._stage_times.save(last=True)
                uptime.stopped(self.workspace)
                with suppress(OSError):
                    self.workspace.daemon_info.unlink(missing_ok=True)
        if self._interrupts.received:
            return 128 + self._interrupts.received[0]
        if self.until is not None and time.time() >= self.until and not self._stalled:
            raise TimedOut("the daemon's time is up; what is left goes on when it is started again")
        return 1 if self._failed else 0

    def _tick(self) -> None:
        try:
            self._sweep()
            if self._watch.changed() or self._pause.trouble:  # which may have kept a job from being read
                self._load_jobs()
                self._obey()
            self._dispatch()
            self._publish()
            self._stage_times.save()
            if not self._running and not self._pause.on:
                self._go_on()
        except DiskProblem as problem:
            self._hold_back(str(problem))
        self._collect()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        for folder in (self.workspace.jobs, self.workspace.logs):
            private_folder(folder)
        held = locks.try_lock(self.workspace.daemon_lock)
        if held is None:
            raise DaemonRunning(f"a daemon already serves {self.workspace.root}{holder(self.workspace)}")
        with held:
            yield

    def _introduce(self) -> None:
        policy, window = self.policy or self.config.daemon.policy, self.window or self.config.daemon.window
        Quarantine(self.workspace.quarantine).failures("")  # a newer autotune's could be read by no stage
        uptime.started(self.workspace)
        self._status_file = StatusFile.begin(self.workspace, self._hours, policy, window)
        _LOG.info("serving %s with pid %d%s", self.workspace.root, os.getpid(), f", {window}" if window else "")

    def _stop_soon(self) -> None:
        """Start nothing more; what runs may finish within the grace."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self.config.daemon.stop_grace_s
            self._unpublished = True

    def _leaving(self) -> bool:
        if self.until is not None and time.time() >= self.until:
            self._stop_soon()
        if self._stop_by is not None:
            late = time.monotonic() >= self._stop_by or len(self._interrupts.received) > 1
            return late or not self._running
        return self.drain and self._stalled and not self._pause.trouble and not self._mended()

    def _mended(self) -> bool:
        """Whether a job that was left out goes on after all: asked once more before the queue counts as drained."""
        before, self._look_again_at = set(self._left_out), 0.0
        try:
            self._load_jobs()
        except DiskProblem as problem:
            self._hold_back(str(problem))
            return True
        return bool(before - set(self._left_out))

    def _sweep(self) -> None:
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_EVERY_S
            sweep(self.workspace, self.config.machine.lock_folder)

    def _load_jobs(self) -> None:
        """Open jobs that are new, drop those whose folder is gone."""
        found = {paths.id: paths for paths in self.workspace.job_list()}
        for known in (self._jobs, self._left_out, self._over):
            for id in set(known) - set(found):
                del known[id]
                self._touch()
        self._over.take_retried(found)
        kept = set(self._left_out)
        if time.monotonic() >= self._look_again_at:  # a job that was left out may have been mended
            kept, self._look_again_at = set(), time.monotonic() + _LEFT_OUT_AGAIN_S
        for id in sorted(set(found) - set(self._jobs) - set(self._over) - kept):
            with self._leaving_out(id):
                job = QueuedJob.open(self.workspace, found[id], self.config)
                job.enter(self._jobs.values(), time.time())
                self._jobs[id] = job
                self._left_out.pop(id, None)
                self._touch()

    def _touch(self) -> None:
        """Something has changed: plan and publish anew."""
        self._changed = self._unpublished = True

    @contextmanager
    def _leaving_out(self, id: int) -> Iterator[None]:
        """A job whose files cannot be used is left out, and `status` says why; the others go on."""
        try:
            yield
        except (StorageError, FileNotFoundError) as error:
            self._jobs.pop(id, None)
            if isinstance(error, DiskProblem) and error.passing:
                raise  # no fault of the job, which is read again when this is over
            if self._left_out.get(id) != (reason := f"cannot go on: {error}"):
                _LOG.error("leaving out job %d: %s", id, error)
                self._touch()
            self._left_out[id] = reason
            self._kill_stages(id)

    def _obey(self) -> None:
        """Take in what the user wants of each job since the last tick."""
        for id, job in list(self._jobs.items()):
            with self._leaving_out(id):
                if not job.obey():
                    continue
                self._touch()
                if job.ended and job.control.retries > job.state.retries_seen:
                    job.restart()
                if job.control.wanted == "cancel" and not job.ended:
                    self._kill_stages(id)

    def _kill_stages(self, job: int) -> None:
        for id in [id for id, task in self._running.items() if task.view.id.job == job]:
            self._pool.kill_stage(id)

    def _dispatch(self) -> None:
        clock, now = time.monotonic(), time.time()
        if self._stop_by is not None or clock < self._not_before or self._pause.on:
            return
        if not (self._changed or clock >= self._plan_by):
            return
        if self._pause.trouble:
            check_room(self.workspace.jobs, self.workspace.logs)
        self._changed, self._unpublished = False, True
        self._plan_by = clock + max(0.0, min(_PLAN_EVERY_S, self._hours.changes_at(now) - now))
        running = [task.view for task in self._running.values()]
        views = [job.view() for job in self._jobs.values() if job.active]
        views = [view for view in views if ended(view, running) is None]
        planner = self._planner_of(capacity.machine(self.config))
        self._plan = self._hours.explained(planner.plan(views, running, now, self._hours.limit(now)), now)
        for start in self._plan.starts:
            self._start(start)
        self._stalled = not self._running and not self._plan.late

    def _planner_of(self, machine: Machine) -> Planner:
        """The planner, which keeps what has not changed since the last tick; a new one for a changed machine."""
        if self._planner is None or self._planner.board.machine != machine:
            policy = policies.get(self.policy or self.config.daemon.policy)
            self._planner = Planner(machine, policy, self._stage_times.estimates)
        return self._planner

    def _start(self, start: Start) -> None:
        job = self._jobs[start.stage.id.job]
        self._sequence += 1
        now = time.time()
        view = RunningView(start.stage.id, start.stage.kind, start.cpus, start.count, start.device, now)
        kind = job.spec.target_kind
        request = {
            "id": self._sequence,
            "job": job.paths.folder.name,
            "task": view.id.task,
            "round": view.id.round,
            "kind": view.kind,
            # A policy that waits for nobody leases nothing.
            "resources": capacity.lease_names(self.config, view.cpus, start.device) if start.lease else [],
            "cpus": list(view.cpus),
            "count": view.count,
            "device": start.device,
            "attempt": job.failures.get(view.id, 0),
            "limit_s": capacity.limit_s(self.config, view.kind, start.stage.candidates),
        }
        self._pool.run(kind, request)
        self._running[self._sequence] = _Task(view, now)
        job.serve(now)

    def _collect(self) -> None:
        """Wait for reports, a signal or the next poll, and take in what came."""
        descriptors = self._pool.descriptors()
        readable, _, _ = select.select([self._interrupts.descriptor, *descriptors], [], [], self.config.daemon.poll_s)
        if self._interrupts.descriptor in readable:
            self._interrupts.drain()
        for report in self._pool.reports(readable):
            try:
                self._take(report)
            except DiskProblem as problem:
                self._hold_back(str(problem))

    def _take(self, report: Report) -> None:
        self._stalled = False
        self._touch()
        task = self._running.pop(report.id, None)
        if task is None or task.view.id.job not in self._jobs:
            return
        job, id = self._jobs[task.view.id.job], task.view.id
        if report.outcome == "busy":
            self._not_before = time.monotonic() + _BUSY_PAUSE_S
            self._plan = replace(self._plan, waits={**self._plan.waits, job.id: report.reason})
            return
        with self._leaving_out(job.id):
            job.refresh(id.task)
            if task.view.kind == "measure":  # whatever became of it, it may have logged trials
                self._follow_logs()
            if report.outcome == "blocked":  # no fault of the stage, which runs again when that is over
                self._hold_back(report.reason)
            elif report.outcome == "done":
                self._go_on()
                self._take_result(job, task, report)
            elif job.control.wanted != "cancel":
                self._take_failure(job, task, report)

    def _follow_logs(self) -> None:
        for job in [job for job in self._jobs.values() if job.active]:
            with self._leaving_out(job.id):
                job.follow_logs()

    def _take_result(self, job: QueuedJob, task: _Task, report: Report) -> None:
        id, kind = task.view.id, task.view.kind
        job.failures.pop(id, None)
        self._stage_times.learn(job.view(), task.view, report.summary, report.seconds)
        facts = {key: value for key, value in report.summary.items() if key != "kind"}
        job.note_stage("stage", task.view, report.seconds, **facts)
        if kind == "search" and not report.summary.get("proposed"):
            job.exhaust(id.task)
        if kind == "measure":
            _LOG.info("%s: %s", job.paths.folder.name, job.progress(id.task, report.summary))

    def _take_failure(self, job: QueuedJob, task: _Task, report: Report) -> None:
        id, kind = task.view.id, task.view.kind
        attempts = job.failures[id] = job.failures.get(id, 0) + 1
        reason = f"{kind}: {report.outcome}: {report.reason}"
        _LOG.warning("%s task %d round %d: %s", job.paths.folder.name, id.task, id.round, reason)
        job.note_stage("stage failed", task.view, report.seconds, reason=reason)
        if attempts - pardoned(job.paths, id.task, id.round, attempts - 1) >= self.config.daemon.attempts:
            job.set_aside(id.task, reason)

    def _publish(self, last: bool = False) -> None:
        """Write states and the daemon's own picture where they changed, at most once a second."""
        now = time.monotonic()
        running = [task.view for task in self._running.values()]
        if not (self._unpublished or last) or (now - self._published_at < _STATE_EVERY_S and running and not last):
            return
        self._published_at, self._unpublished = now, False
        board, waits = self._planner.board if self._planner else None, {**self._plan.waits, **self._left_out}
        # First: on a full disk it may be the one small file that still fits.
        self._status_file.publish(board, running, waits, self._stop_by is not None, self._pause.trouble)
        for job in list(self._jobs.values()):
            if not job.ended:
                with self._leaving_out(job.id):
                    self._publish_job(job, running)
            if job.ended:
                self._over.put(self._jobs.pop(job.id))
                self._stage_times.forget(job.id)

    def _publish_job(self, job: QueuedJob, running: list[RunningView]) -> None:
        busy = any(view.id.job == job.id for view in running)
        if job.control.wanted == "cancel":
            if not busy:
                job.publish("cancelled", "cancelled")
        elif job.control.wanted == "hold":
            job.publish("held", "held; finishing what runs" if busy else job.control.reason or "held")
        elif (why := ended(job.view(), running)) is not None:
            self._finish(job, why)
        elif busy:
            job.publish("running", "")
        else:
            began = job.state.trials_done or job.state.state == "running"
            reason = self._plan.waits.get(job.id, TURN)
            job.wait_for(reason)
            job.publish("running" if began else "waiting", reason)
        if job.ended:
            _LOG.info("%s: %s, %s", job.paths.folder.name, job.state.state, job.state.reason)

    def _finish(self, job: QueuedJob, why: str) -> None:
        aside = [task.set_aside for task in job.state.tasks if task.set_aside]
        if aside and len(aside) == len(job.spec.tunable):
            self._failed = True
            job.publish("failed", aside[0])
        else:
            job.publish("done", why + (f"; {len(aside)} tasks set aside: {aside[0]}" if aside else ""))

    def _hold_back(self, trouble: str) -> None:
        """A disk that is full or read-only, say: start nothing until it takes what we write."""
        self._pause.begin(trouble)
        self._touch()

    def _go_on(self) -> None:
        if self._pause.trouble:
            self._pause.end()
            self._touch()
