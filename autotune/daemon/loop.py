"""The daemon: load jobs, obey users, dispatch stages, publish states, collect reports; and again. Never imports TVM."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from autotune.config import Config
from autotune.daemon.clock import DaemonClock, Pause
from autotune.daemon.collector import Collector, StageTimes
from autotune.daemon.dispatcher import Dispatcher
from autotune.daemon.end_commands import EndCommands
from autotune.daemon.job_queue import NOTHING, SOMETHING, Change, JobQueue
from autotune.daemon.publisher import Condition, Publisher, StatusFile
from autotune.daemon.running import DevicesAside, RunningStages
from autotune.errors import DaemonRunning, DiskProblem, MachineProblem, TimedOut, disk_problem
from autotune.machine.leases import private_reason
from autotune.planning.windows import Hours
from autotune.processes.interrupts import Interrupts, interrupts
from autotune.storage import daemon_info, locks
from autotune.storage.leftovers import leftovers
from autotune.storage.paths import Workspace
from autotune.storage.private_folders import check_ours, private_folder
from autotune.storage.quarantine import Quarantine
from autotune.storage.watch import FolderWatch
from autotune.tvm_backend.load import check_versions
from autotune.workers.cluster.runner import ClusterRunner
from autotune.workers.stage_runner import StageRunner
from autotune.workers.worker_pool import WorkerPool

_LOG = logging.getLogger("autotune.daemon")
_DELETE_LEFTOVERS_EVERY_S = 3600.0
_FOLDERS_AT_ONCE = 3
_FOLDERS_AT_THE_END = 500
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
    _lock: locks.Lease = field(init=False)
    _pause: Pause = field(init=False)
    _watch: FolderWatch = field(init=False)
    _queue: JobQueue = field(init=False)
    _stage_times: StageTimes = field(init=False)
    _running: RunningStages = field(init=False)
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
        with self._alone(), interrupts(self._stop_soon) as self._interrupts:
            self._assemble()
            try:
                self._introduce()
                self._serve()
            finally:
                self._runner.stop()
                self._stage_times.save(last=True)
                daemon_info.note_stop(self.workspace)
                if self._lock.in_place():
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
        if self.workspace.tuning.exists():
            check_ours(self.workspace.tuning)
        self._lock = self._take_lock()
        try:
            yield
        finally:
            self._lock.release()

    def _take_lock(self) -> locks.Lease:
        lock = locks.try_lock(self.workspace.daemon_lock)
        if lock is None:
            raise DaemonRunning(
                f"a daemon already serves {self.workspace.root.absolute()}{daemon_info.holder(self.workspace)}"
            )
        return lock

    def _stay_alone(self) -> Change:
        """Lock `jobs/` again if another folder has taken its place: a second daemon could lock that one."""
        if self._lock.in_place() or not self.workspace.jobs.is_dir():
            return NOTHING
        check_ours(self.workspace.jobs)
        lock = self._take_lock()
        self._lock.release()
        self._lock = lock
        _LOG.warning("%s was replaced while it was served; the new one is served now", self.workspace.jobs)
        return SOMETHING

    @property
    def _policy(self) -> str:
        return self.policy or self.config.daemon.policy

    @property
    def _window(self) -> str:
        return self.window or self.config.daemon.window

    def _assemble(self) -> None:
        clock = self.clock
        self._pause = Pause(clock)
        self._watch = FolderWatch(self.workspace.jobs)
        self._queue = JobQueue(self.workspace, self.config, clock)
        self._stage_times = StageTimes.load(self.workspace, clock)
        self._running = RunningStages(self.config, self._runner, DevicesAside(self.config, clock))
        estimates = self._stage_times.estimates
        hours = Hours.parse(self._window)
        self._dispatcher = Dispatcher(self._queue, self._running, clock, hours, estimates, self._policy)
        attempts = self.config.daemon.attempts
        self._collector = Collector(attempts, self._queue, self._dispatcher, self._pause, self._stage_times)

    def _introduce(self) -> None:
        Quarantine(self.workspace.quarantine).failures("")  # a newer autotune's could be read by no stage
        daemon_info.note_start(self.workspace)
        hours = self._dispatcher.hours
        status_file = StatusFile.begin(self.workspace, hours, self._policy, self._window, self.clock)
        end_commands = EndCommands(self.workspace, self.config)
        self._publisher = Publisher(
            self._queue, self._dispatcher, status_file, end_commands, self._stage_times, self.clock
        )
        if reason := private_reason(self.config.machine.lock_folder):
            _LOG.warning(
                "other processes on this machine do not see this daemon's locks: %s; see autotune doctor", reason
            )
        window = self._window
        _LOG.info("serving %s with pid %d%s", self.workspace.root, os.getpid(), f", {window}" if window else "")

    def _serve(self) -> None:
        change = SOMETHING
        while not self._is_over():
            change = self._tick(change)
            if self._is_drained():
                repaired = self._step(self._queue.load_repaired)
                if not repaired.any:
                    break
                change |= repaired
        self._publish(change, last=True)
        self._delete_leftovers(_FOLDERS_AT_THE_END)

    def _tick(self, change: Change) -> Change:
        """Do everything once.

        Args:
            change: What has changed since stages were last started.

        Returns:
            What has changed since then.
        """
        change |= self._step(self._stay_alone)
        change |= self._step(self._delete_leftovers)
        change |= self._step(self._load_and_obey)
        change |= self._queue.retry_blocked() | Change(self._running.aside.retry())
        if not self._stopping:
            change |= self._step(partial(self._dispatcher.dispatch, change, self._pause))
        after = self._step(partial(self._publish, change))
        self._stage_times.save()
        # Trouble is over if nothing runs that could show it, and nothing has failed for as long as the pause.
        over = not self._running and not self._pause.on and self._pause.end()
        return after | Change(over) | self._collect()

    def _step(self, step: Callable[[], Change]) -> Change:
        """Do a step. If nothing can be done for now, because the disk is full, say, begin a pause."""
        try:
            return step()
        except (DiskProblem, MachineProblem) as problem:
            self._pause.begin(str(problem))
        except OSError as error:
            self._pause.begin(str(disk_problem("use", error.filename or "a file", error)))
        return SOMETHING

    def _load_and_obey(self) -> Change:
        """Look for new jobs and requests, if there may be any; of a large queue no more often than it is worth."""
        begun = self.clock.monotonic()
        change = NOTHING
        trouble = self._pause.trouble  # which may have kept a job from being read
        if begun >= self._read_queue_at and (self._watch.changed() or trouble):
            change |= self._queue.load()
            change |= self._queue.obey()
            now = self.clock.monotonic()
            self._read_queue_at = now + _READING_PAUSE * (now - begun)
        self._running.kill_unless(self._queue.wants)
        return change

    def _publish(self, change: Change, last: bool = False) -> Change:
        condition = Condition(self._stopping, self._pause.trouble, self._collector.busy)
        return self._publisher.publish(change, condition, last)

    def _collect(self) -> Change:
        """Wait for reports, a signal or the next poll, and take in what came."""
        descriptors = [self._interrupts.descriptor, *self._runner.descriptors()]
        readable = self.clock.wait(descriptors, self.config.daemon.poll_s)
        nodes = self._runner.nodes()
        if self._interrupts.descriptor in readable:
            self._interrupts.drain()
        change = NOTHING
        for report in self._runner.reports(readable):
            change |= self._step(partial(self._collector.take, report))
        return change | Change(self._runner.nodes() != nodes)

    def _delete_leftovers(self, folders: int = _FOLDERS_AT_ONCE) -> Change:
        """Look through some folders. Of a large queue all would take seconds."""
        if self.clock.monotonic() >= self._delete_leftovers_at:
            self._delete_leftovers_at = self.clock.monotonic() + _DELETE_LEFTOVERS_EVERY_S
            self._leftovers = leftovers(self.workspace, self.config.machine.lock_folder)
        for _ in islice(self._leftovers, folders):
            pass
        return NOTHING

    def _stop_soon(self) -> None:
        """Start nothing more; what runs may finish within the grace."""
        if self._stop_by is None:
            self._stop_by = self.clock.monotonic() + self.config.daemon.stop_grace_s

    @property
    def _stopping(self) -> bool:
        return self._stop_by is not None

    @property
    def _late(self) -> bool:
        return self.until is not None and self.clock.time() >= self.until

    def _is_over(self) -> bool:
        """Whether to leave, because the time is up or a signal came: when nothing runs, or the grace is over.

        A second signal, and SIGQUIT, end the grace at once.
        """
        if self._late:
            self._stop_soon()
        if self._stop_by is None:
            return False
        received = self._interrupts.received
        overdue = self.clock.monotonic() >= self._stop_by or len(received) > 1 or signal.SIGQUIT in received
        return overdue or not self._running

    def _is_drained(self) -> bool:
        """Whether to leave, because all that can be done is done. Jobs with unusable files may have been repaired."""
        working = not self._dispatcher.stalled or self._publisher.behind or self._queue.retries_blocked
        return self.drain and not working and not self._pause.trouble
