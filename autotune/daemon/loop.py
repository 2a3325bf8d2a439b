"""The daemon: load jobs, apply controls, dispatch, publish, collect; and again. Never imports TVM."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

from autotune.config import Config
from autotune.daemon import uptime
from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock
from autotune.daemon.collector import Collector
from autotune.daemon.devices_aside import DevicesAside
from autotune.daemon.dispatcher import Dispatcher
from autotune.daemon.end_commands import EndCommands
from autotune.daemon.job_queue import JobQueue
from autotune.daemon.leftovers import leftovers
from autotune.daemon.pause import Pause
from autotune.daemon.publisher import Publisher
from autotune.daemon.running import RunningStages
from autotune.daemon.stage_times import StageTimes
from autotune.daemon.status_file import StatusFile
from autotune.daemon.watch import FolderWatch
from autotune.errors import DaemonRunning, DiskProblem, MachineProblem, TimedOut, disk_problem
from autotune.machine.shared_folder import private_reason
from autotune.planning.windows import Hours
from autotune.processes.interrupts import Interrupts, interrupts
from autotune.storage import locks
from autotune.storage.daemon_info import holder
from autotune.storage.paths import Workspace
from autotune.storage.quarantine import Quarantine
from autotune.storage.room import private_folder
from autotune.tvm_backend.load import check_versions
from autotune.workers.cluster.runner import ClusterRunner
from autotune.workers.pool import WorkerPool
from autotune.workers.runner import StageRunner

_LOG = logging.getLogger("autotune.daemon")
_DELETE_LEFTOVERS_EVERY_S = 3600.0
_FOLDERS_AT_ONCE, _FOLDERS_AT_THE_END = 3, 500
# After the queue was read, it is not read again for so many times as long.
_READING_PAUSE = 10.0


@dataclass
class Daemon:
    """One daemon of one workspace.

    Args:
        drain: Leave when nothing is left to do.
        until: Leave at this epoch second.
        policy: Overrides the one of the settings.
        window: Overrides the one of the settings.
        runner: Runs the stages; by default workers on this machine.
        clock: What the daemon goes by; by default the time of this machine.
    """

    workspace: Workspace
    config: Config
    drain: bool = False
    until: float | None = None
    policy: str = ""
    window: str = ""
    runner: StageRunner | None = None
    clock: DaemonClock = field(default_factory=DaemonClock)
    _interrupts: Interrupts = field(init=False)
    _runner: StageRunner = field(init=False)
    _changes: Changes = field(init=False, default_factory=Changes)
    _pause: Pause = field(init=False)
    _watch: FolderWatch = field(init=False)
    _running: RunningStages = field(init=False)
    _queue: JobQueue = field(init=False)
    _stage_times: StageTimes = field(init=False)
    _aside: DevicesAside = field(init=False)
    _dispatcher: Dispatcher = field(init=False)
    _collector: Collector = field(init=False)
    _publisher: Publisher = field(init=False)
    _stop_by: float | None = None
    _read_queue_at: float = 0.0
    _delete_leftovers_at: float = 0.0
    _leftovers: Iterator[object] = field(default_factory=lambda: iter(()))

    def run(self) -> int:
        """Serve until drained, told to stop, or out of time. Returns the exit code.

        Raises:
            DaemonRunning: Another daemon serves this workspace.
            UnsupportedVersion: The workers could not load this TVM.
            NewerFormat: The workspace is a newer autotune's.
            TimedOut: `until` came before the work was done.
        """
        self._runner = self.runner or self._local_workers()
        policy, window = self.policy or self.config.daemon.policy, self.window or self.config.daemon.window
        hours = Hours.parse(window)
        with self._alone(), interrupts(self._stop_soon) as self._interrupts:
            self._assemble(hours, policy)
            try:
                self._introduce(hours, policy, window)
                while not self._leaving():
                    self._tick()
                self._publisher.publish(self._stopping, last=True)
                self._delete_leftovers(_FOLDERS_AT_THE_END)
            finally:
                self._runner.stop()
                self._stage_times.save(last=True)
                uptime.stopped(self.workspace)
                with suppress(OSError):
                    self.workspace.daemon_info.unlink(missing_ok=True)
        if self._interrupts.received:
            return 128 + self._interrupts.received[0]
        if self._late and not self._dispatcher.stalled:
            raise TimedOut("the daemon's time is up; start it again to continue")
        no_board = any(wait.kind == "device-aside" for wait in self._dispatcher.waits().values())
        return 1 if self._publisher.failed or self._queue.blocked or no_board else 0

    def _local_workers(self) -> StageRunner:
        check_versions()
        if self.config.cluster.engine:
            return ClusterRunner(self.workspace, self.config)
        settings = self.config.daemon
        log_bytes = settings.log_mb * 1_000_000
        return WorkerPool(self.workspace, settings.stop_grace_s, settings.worker_stages, log_bytes)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        for folder in (self.workspace.jobs, self.workspace.logs):
            private_folder(folder)
        held = locks.try_lock(self.workspace.daemon_lock)
        if held is None:
            raise DaemonRunning(f"a daemon already serves {self.workspace.root.absolute()}{holder(self.workspace)}")
        with held:
            yield

    def _assemble(self, hours: Hours, policy: str) -> None:
        self._pause = Pause(self._changes, self.clock)
        self._watch = FolderWatch(self.workspace.jobs)
        self._running = RunningStages(self._runner)
        self._queue = JobQueue(self.workspace, self.config, self._running, self._changes, self.clock)
        self._stage_times = StageTimes.load(self.workspace, self.clock)
        self._aside = DevicesAside(self.config, self._changes, self.clock)
        self._dispatcher = Dispatcher(
            self.config,
            self._queue,
            self._running,
            self._changes,
            self._pause,
            self.clock,
            hours,
            self._stage_times.estimates,
            policy,
            self._aside,
        )
        self._collector = Collector(
            self.config,
            self._queue,
            self._running,
            self._changes,
            self._pause,
            self._dispatcher,
            self._stage_times,
        )

    def _introduce(self, hours: Hours, policy: str, window: str) -> None:
        Quarantine(self.workspace.quarantine).failures("")  # a newer autotune's could be read by no stage
        uptime.started(self.workspace)
        self._publisher = Publisher(
            self._queue,
            self._running,
            self._changes,
            self._pause,
            self._dispatcher,
            self._stage_times,
            self._collector,
            StatusFile.begin(self.workspace, hours, policy, window, self.clock),
            EndCommands(self.workspace, self.config),
            self.clock,
        )
        if reason := private_reason(self.config.machine.lock_folder):
            _LOG.warning(
                "other processes on this machine do not see this daemon's locks: %s; see autotune doctor", reason
            )
        _LOG.info("serving %s with pid %d%s", self.workspace.root, os.getpid(), f", {window}" if window else "")

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """Begin a pause if nothing can be done for now, because the disk is full, say."""
        try:
            yield
        except (DiskProblem, MachineProblem) as problem:
            self._pause.begin(str(problem))
        except OSError as error:
            self._pause.begin(str(disk_problem("use", error.filename or "a file", error)))

    def _tick(self) -> None:
        with self._pausing():
            self._delete_leftovers()
            self._read_queue()
            self._queue.retry_blocked()
            self._aside.retry()
            if not self._stopping:
                self._dispatcher.dispatch()
            self._publisher.publish(self._stopping)
            self._stage_times.save()
            if not self._running and not self._pause.on:
                self._pause.end()
        self._collect()

    def _read_queue(self) -> None:
        """Look for new jobs and requests, if there may be any; of a large queue no more often than it is worth."""
        begun = self.clock.monotonic()
        trouble = self._pause.trouble  # which may have kept a job from being read
        if begun >= self._read_queue_at and (self._watch.changed() or trouble):
            self._queue.load()
            self._queue.apply_controls()
            now = self.clock.monotonic()
            self._read_queue_at = now + _READING_PAUSE * (now - begun)

    def _delete_leftovers(self, folders: int = _FOLDERS_AT_ONCE) -> None:
        """Look through some folders. Of a large queue all would take seconds."""
        if self.clock.monotonic() >= self._delete_leftovers_at:
            self._delete_leftovers_at = self.clock.monotonic() + _DELETE_LEFTOVERS_EVERY_S
            self._leftovers = leftovers(self.workspace, self.config.machine.lock_folder)
        for _ in islice(self._leftovers, folders):
            pass

    def _collect(self) -> None:
        """Wait for reports, a signal or the next poll, and take in what came."""
        descriptors = [self._interrupts.descriptor, *self._runner.descriptors()]
        readable, nodes = self.clock.wait(descriptors, self.config.daemon.poll_s), self._runner.nodes()
        if self._interrupts.descriptor in readable:
            self._interrupts.drain()
        for report in self._runner.reports(readable):
            with self._pausing():
                self._collector.take(report)
        if self._runner.nodes() is not nodes:
            self._changes.note()

    def _stop_soon(self) -> None:
        """Start nothing more; what runs may finish within the grace."""
        if self._stop_by is None:
            self._stop_by = self.clock.monotonic() + self.config.daemon.stop_grace_s
            self._changes.unpublished = True

    @property
    def _stopping(self) -> bool:
        return self._stop_by is not None

    @property
    def _late(self) -> bool:
        return self.until is not None and self.clock.time() >= self.until

    def _leaving(self) -> bool:
        if self._late:
            self._stop_soon()
        if self._stop_by is not None:
            overdue = self.clock.monotonic() >= self._stop_by or len(self._interrupts.received) > 1
            return overdue or not self._running
        if not self.drain or not self._dispatcher.stalled or self._pause.trouble or self._publisher.behind:
            return False
        return not self._queue.retries_blocked and not self._repaired()

    def _repaired(self) -> bool:
        """Whether a job whose files were unusable can be served now. Asked before the queue counts as drained."""
        with self._pausing():
            return self._queue.load_repaired()
        return True
