"""What runs on a node, as a Ray actor: a pool of warm workers over a copy of the workspace.

One thread owns the pool. The methods of `Host` are called by Ray on threads of their own, and only talk to it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from autotune.config import Config, load_config
from autotune.devices import lease_names
from autotune.errors import AutotuneError, StorageError, WorkerError
from autotune.machine import gpus
from autotune.machine.hardware import cpu_model, kept_cpus, lent_cpus
from autotune.processes.messages import KillStage, RunStage, StageReport
from autotune.storage import seals
from autotune.storage.formats import JobSpec
from autotune.workers.cluster.parcel import Parcel, Scratch, StageFiles
from autotune.workers.worker_pool import WorkerPool

_TICK_S = 0.25
_READY_S = 10.0


@dataclass(frozen=True)
class NodeFacts:
    """What a node has.

    Attributes:
        cpus: The numbers of the CPUs that it lends, as the node counts them.
        measure_cpus: Those of them that are kept for measurements.
        cpu: The model of its CPUs.
    """

    cpus: tuple[int, ...]
    measure_cpus: tuple[int, ...]
    cpu: str
    gpus: tuple[gpus.CudaDevice, ...] = ()


@dataclass(frozen=True)
class StageOrder:
    """A stage to run on a node. The names of CPUs and devices are the node's own.

    Attributes:
        kind: The kind of its job's target.
        lease: Whether it leases its CPUs and its device.
        parcel: What the node lacks for it, packed.
    """

    kind: str
    request: RunStage
    spec: JobSpec
    lease: bool
    parcel: bytes


@dataclass(frozen=True)
class Found:
    """What a stage has written, packed, and its report if it has ended."""

    id: int
    parcel: bytes
    report: StageReport | None = None


@dataclass
class _Running:
    """A stage that the pool has. `written` tells what it has written since it was started."""

    files: StageFiles
    written: Callable[[], Parcel]


@dataclass
class Host:
    """The actor.

    Args:
        name: The name of the node.
        settings: The text of `autotune.toml`.
        recorded: The logs of trials that its simulated devices answer from, by their paths from the workspace.
        cpus: How many CPUs the node may lend.
        grace_s, stages_each: For the pool of workers.
        key: The key of the user whose daemon it is, for the seals of what is built here and measured elsewhere.
    """

    name: str
    settings: str
    recorded: Mapping[str, bytes]
    cpus: int
    grace_s: float
    stages_each: int
    key: str = ""
    _running: dict[int, _Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.key:
            os.environ[seals.VARIABLE] = self.key
        self._scratch = Scratch.make()
        for path, data in self.recorded.items():  # the settings are refused without them
            (self._scratch.workspace.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self._scratch.workspace.root / path).write_bytes(data)
        self._scratch.workspace.config.write_text(self.settings)
        self._inbox: queue.SimpleQueue[tuple[int, StageOrder | KillStage]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self._wake, self._waker = os.pipe()
        self._early: dict[int, StageOrder | KillStage] = {}
        self._next = 0
        self._leaving = False
        self._thread = threading.Thread(target=self._serve, name="autotune-host", daemon=True)
        self._thread.start()

    def facts(self) -> NodeFacts:
        """Return what this node has to lend."""
        machine = self._config().machine
        if machine.simulated_cpus:
            return NodeFacts(tuple(range(min(self.cpus, machine.simulated_cpus))), (), cpu_model())
        slots = min(self.cpus, machine.cpu_slots) if machine.cpu_slots else self.cpus
        lent = lent_cpus(slots)
        kept, idle = kept_cpus(lent, machine.measure_cpus)
        return NodeFacts(tuple(cpu for cpu in lent if cpu not in idle), kept, cpu_model(), gpus.cuda_devices())

    def deliver(self, number: int, command: StageOrder | KillStage) -> None:
        """Take a command. They are carried out by their numbers, from 0 on: Ray may deliver them in another order."""
        self._inbox.put((number, command))
        os.write(self._waker, b"x")

    def found(self, wait_s: float) -> list[Found]:
        """Wait for news of stages, and return them; none when the time is over."""
        if not self._thread.is_alive():
            raise WorkerError("the thread that runs stages has ended")
        news: list[Found] = []
        try:
            news.append(self._outbox.get(timeout=wait_s))
            while True:
                news.append(self._outbox.get_nowait())
        except queue.Empty:
            return news

    def leave(self) -> None:
        """Kill all stages and delete the copy of the workspace."""
        self._leaving = True
        os.write(self._waker, b"x")
        self._thread.join(_READY_S)

    def _config(self) -> Config:
        return load_config(self._scratch.workspace.config)

    def _serve(self) -> None:
        """Run stages until told to leave. The pool belongs to this thread: its workers die when it ends."""
        pool = WorkerPool(self._scratch.workspace, self.grace_s, self.stages_each)
        looked_at = time.monotonic()
        try:
            while not self._leaving:
                ready, _, _ = select.select([self._wake, *pool.descriptors()], [], [], _TICK_S)
                if self._wake in ready:
                    os.read(self._wake, 1024)
                    self._carry_out(pool)
                for report in pool.reports(ready):
                    self._report(report)
                if time.monotonic() - looked_at >= _TICK_S:
                    looked_at = time.monotonic()
                    self._tell_trials()
        finally:
            pool.stop()
            self._scratch.remove()

    def _carry_out(self, pool: WorkerPool) -> None:
        while not self._inbox.empty():
            number, command = self._inbox.get()
            self._early[number] = command
        while self._next in self._early:
            command = self._early.pop(self._next)
            self._next += 1
            if isinstance(command, KillStage):
                pool.kill_stage(command.id)
            else:
                self._start(pool, command)

    def _start(self, pool: WorkerPool, order: StageOrder) -> None:
        request = order.request
        files = StageFiles(self._scratch.workspace, order.spec, request)
        try:
            self._scratch.put(Parcel.unpack(order.parcel), files)
            if order.lease:
                names = lease_names(self._config(), request.cpus, request.device, self.name)
                request = replace(request, resources=tuple(names))
            self._running[request.id] = _Running(files, self._scratch.watch(files))
            pool.run(order.kind, request)
        except (AutotuneError, OSError) as error:  # this node's disk is full, say
            self._running.pop(request.id, None)
            self._outbox.put(Found(request.id, Parcel().pack(), StageReport(request.id, "lost", reason=str(error))))

    def _report(self, report: StageReport) -> None:
        running = self._running.pop(report.id)
        try:
            written = running.written()
        except (AutotuneError, OSError) as error:
            written = Parcel()
            report = StageReport(report.id, "lost", report.seconds, reason=str(error))
        self._outbox.put(Found(report.id, written.pack(), report))

    def _tell_trials(self) -> None:
        """Send on what was measured so far, so that little is lost with the node."""
        for id, running in self._running.items():
            with contextlib.suppress(StorageError):  # the report will bring them
                if running.files.request.kind == "measure" and (trials := self._scratch.new_trials(running.files)):
                    self._outbox.put(Found(id, Parcel(trials=trials).pack()))
