"""The process between the daemon and a Ray cluster.

The daemon starts it by command line. It reads `RunStage` and `KillStage` from standard input. On standard output it
writes `Ready` once it is connected, `ClusterNodes` whenever a node has changed, and a `StageReport` for every stage.
When standard input ends, it ends the stages on all nodes and exits. When the cluster is gone, it exits.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from autotune import devices
from autotune.config import load_config
from autotune.errors import AutotuneError, DiskProblem
from autotune.processes.children import die_with_parent
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import ClusterNodes, Fatal, KillStage, Ready, RunStage, StageReport, receive, send
from autotune.storage.daemon_info import ClusterNode
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.seals import user_key
from autotune.storage.tuning_log import TuningLog
from autotune.workers.cluster.exchange import Logs, NodeCopy, merge, merge_trials
from autotune.workers.cluster.host import Found, StageOrder
from autotune.workers.cluster.link import (
    Ended,
    Event,
    HostOptions,
    Joined,
    Link,
    News,
    RayNode,
    Refused,
    Waiting,
    version_probe,
)
from autotune.workers.cluster.parcel import Parcel, StageFiles
from autotune.workers.cluster.places import Pace, Place, Timed

_LOG = logging.getLogger("autotune.cluster")
_LIST_EVERY_S = 1.0
_RETRY_LOST_S = 5.0
_RETRY_REFUSED_S = 60.0
_DISK_PAUSE_S = 1.0
_SHOWN_LOST_S = 600.0
_SILENT_S = 60.0


@dataclass
class _Node:
    """A node that Ray lists."""

    link: Link
    shown: ClusterNode
    copy: NodeCopy  # what it has of the workspace
    number: int
    place: Place | None = None  # its names, once it serves
    retry_at: float = 0.0  # when to try it again that is lost or refused, in monotonic seconds


@dataclass
class _Handed:
    """A stage that a node has. `sent` and `received` count bytes."""

    request: RunStage
    files: StageFiles
    node: _Node
    sent: int = 0
    received: int = 0


@dataclass
class Bridge:
    """The loop of the process. Only its main thread touches the workspace."""

    workspace: Workspace
    commands: MessageReader
    reports: int
    options: HostOptions
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _stages: dict[int, _Handed] = field(default_factory=dict)
    _events: queue.SimpleQueue[Event | list[RayNode]] = field(default_factory=queue.SimpleQueue)
    _logs: Logs = field(default_factory=lambda: cache(TuningLog))
    _late: dict[tuple[Link, int], StageFiles] = field(default_factory=dict)
    _pace: Pace = field(default_factory=Pace)
    _listed_at: float = 0.0
    _numbers: int = 0
    _shown: tuple[ClusterNode, ...] = ()

    def __post_init__(self) -> None:
        self._wake, self._waker = os.pipe()
        self._config = load_config(self.workspace.config)

    def serve(self) -> None:
        """Serve until standard input ends, then end what runs."""
        self._listed_at = time.monotonic()
        threading.Thread(target=self._list_nodes, name="autotune-nodes", daemon=True).start()
        send(self.reports, Ready(os.getpid()))
        while not self.commands.ended:
            ready, _, _ = select.select([self.commands.descriptor, self._wake], [], [], _LIST_EVERY_S)
            if self.commands.descriptor in ready:
                for command in receive(self.commands):
                    self._obey(command)
            if self._wake in ready:
                os.read(self._wake, 65536)
            while not self._events.empty():
                self._take(self._events.get())
            self._publish()
            if time.monotonic() - self._listed_at > _SILENT_S:
                raise SystemExit("the cluster does not answer")
        links = [node.link for node in self._nodes.values()]
        ends = [threading.Thread(target=link.end, daemon=True) for link in links]
        for end in ends:
            end.start()
        for end in ends:
            end.join()

    def _tell(self, event: Event | list[RayNode]) -> None:
        self._events.put(event)
        os.write(self._waker, b"x")

    def _list_nodes(self) -> None:
        import ray

        while True:
            try:
                nodes = ray.nodes()
            except Exception:  # the cluster is gone, and with it all that this process is there for
                _LOG.exception("the cluster does not list its nodes")
                os._exit(1)
            there = [node for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
            draining = _draining() if there else ()
            self._tell([_ray_node(node, node["NodeID"] in draining) for node in there])
            time.sleep(_LIST_EVERY_S)

    def _obey(self, command: object) -> None:
        if isinstance(command, RunStage):
            self._hand_over(command)
        elif isinstance(command, KillStage) and command.id in self._stages:
            self._stages[command.id].node.link.send(command)

    def _hand_over(self, request: RunStage) -> None:
        node = next((node for node in self._nodes.values() if node.place and node.place.has(request)), None)
        if node is None or node.place is None:
            return self._report(StageReport(request.id, "lost", reason="its node is gone"))
        try:
            spec = read_spec(JobPaths(self.workspace.jobs / request.job))
            files = StageFiles(self.workspace, spec, request)
            parcel = node.copy.parcel(files, self._config).pack()
        except (AutotuneError, OSError) as error:
            blocked = isinstance(error, DiskProblem) and error.passing
            return self._report(StageReport(request.id, "blocked" if blocked else "failed", reason=str(error)))
        self._stages[request.id] = _Handed(request, files, node, len(parcel))
        measured_on = devices.of_job(spec, self._config).kind_of_nodes(self.workspace, spec)
        order = node.place.local(request, measured_on, self._config)
        node.link.send(StageOrder(spec.target_kind, order, spec, bool(request.resources), parcel))

    def _take(self, event: Event | list[RayNode]) -> None:
        if isinstance(event, list):
            self._update(event)
            return
        node = self._nodes.get(event.link.node.id)
        if isinstance(event, Ended):
            self._late = {key: files for key, files in self._late.items() if key[0] is not event.link}
            return
        if node is None or node.link is not event.link or node.shown.state == "lost":
            if isinstance(event, News) and (files := self._late.get((event.link, event.found.id))):
                self._merge(partial(merge_trials, files, Parcel.unpack(event.found.parcel), self._logs))
            return
        if isinstance(event, News):
            self._take_found(node, event.found)
        elif isinstance(event, Joined):
            resources = event.link.node.resources
            node.place = Place.of(node.shown.name, node.number, event.facts, resources, self._config)
            node.shown = node.place.serving(self._config)
        elif isinstance(event, Waiting):
            node.shown = replace(node.shown, detail=event.reason)
        elif isinstance(event, Refused):
            node.shown = ClusterNode(node.shown.name, "refused", event.reason)
            node.retry_at = time.monotonic() + _RETRY_REFUSED_S
            _LOG.warning("node %s is refused: %s", node.shown.name, event.reason)
        else:
            self._lose(node, event.reason)

    def _update(self, listed: list[RayNode]) -> None:
        """Take in which nodes there are. One that is new, or lost and due again, gets a host."""
        now = self._listed_at = time.monotonic()
        there = {node.id: node for node in listed}
        for id in set(self._nodes) - set(there):
            self._lose(self._nodes[id], "Ray says that it is gone")
            if now >= self._nodes[id].retry_at + _SHOWN_LOST_S:
                del self._nodes[id]
        for id, ray_node in there.items():
            node = self._nodes.get(id)
            if node is None or (node.retry_at and now >= node.retry_at):
                if not ray_node.draining:
                    self._nodes[id] = self._new_node(ray_node)
            elif node.place is not None:
                node.shown = self._shown_as(node.place, ray_node)

    def _shown_as(self, place: Place, node: RayNode) -> ClusterNode:
        """Return what the daemon is told of a node with a host. On one that drains only the running stages go on."""
        serving = replace(place.serving(self._config), slowness=self._pace.slowness(place.name))
        return replace(serving, state="draining", detail="Ray takes it away") if node.draining else serving

    def _new_node(self, ray_node: RayNode) -> _Node:
        shown = {id: other.shown for id, other in self._nodes.items()}
        before = [id for id, other in shown.items() if other.name == ray_node.name and other.state == "lost"]
        for id in before:
            del self._nodes[id]
        names = {node.shown.name for id, node in self._nodes.items() if id != ray_node.id}
        name = ray_node.name if ray_node.name not in names else f"{ray_node.name}-{ray_node.id[:6]}"
        self._numbers += 1
        link = Link(replace(ray_node, name=name), self.options, self._tell)
        return _Node(link, ClusterNode(name, "joining"), NodeCopy(self.workspace, self._logs), self._numbers)

    def _lose(self, node: _Node, reason: str) -> None:
        """Give a node up: nothing that it still does counts, and its stages are to run elsewhere."""
        if node.shown.state == "lost":
            return
        _LOG.warning("node %s is lost: %s", node.shown.name, reason)
        self._pace.forget(node.shown.name)
        node.shown = ClusterNode(node.shown.name, "lost", reason)
        node.place = None
        node.retry_at = time.monotonic() + _RETRY_LOST_S
        self._publish()  # before the reports, or the daemon would send the stages to this node again
        for id in [id for id, stage in self._stages.items() if stage.node is node]:
            self._late[node.link, id] = self._stages[id].files
            self._end(id, StageReport(id, "lost", reason=f"node {node.shown.name} is lost: {reason}"))

    def _take_found(self, node: _Node, answer: Found) -> None:
        stage = self._stages.get(answer.id)
        if stage is None:
            return
        stage.received += len(answer.parcel)
        parcel = Parcel.unpack(answer.parcel)
        node.copy.received(parcel)
        if answer.report is None:
            self._merge(lambda: merge_trials(stage.files, parcel, self._logs))
        else:
            self._merge(lambda: merge(stage.files, parcel, self._logs))
            self._end(answer.id, answer.report)
            if answer.report.outcome == "lost":  # the node cannot even begin a stage
                self._lose(node, answer.report.reason)
                threading.Thread(target=node.link.end, daemon=True).start()

    def _merge(self, work: Callable[[], None]) -> None:
        """Write what a node has found. What the disk does not take now is tried again: it exists nowhere else."""
        while True:
            try:
                return work()
            except DiskProblem as problem:
                _LOG.error("what a node found is kept until the disk takes it: %s", problem)
                time.sleep(_DISK_PAUSE_S)

    def _end(self, id: int, report: StageReport) -> None:
        stage = self._stages.pop(id)
        if report.outcome == "done":
            self._time(stage.node, stage.request, report.seconds)
            more = {"node": stage.node.shown.name, "sent": stage.sent, "received": stage.received}
            report = replace(report, summary={**report.summary, **more})
        self._report(report)

    def _time(self, node: _Node, request: RunStage, seconds: float) -> None:
        self._pace.took(node.shown.name, Timed(request.kind, request.job, request.task), seconds)
        if (slowness := self._pace.slowness(node.shown.name)) != node.shown.slowness:
            node.shown = replace(node.shown, slowness=slowness)

    def _report(self, report: StageReport) -> None:
        send(self.reports, report)

    def _publish(self) -> None:
        shown = tuple(sorted((node.shown for node in self._nodes.values()), key=lambda node: node.name))
        if shown != self._shown:
            self._shown = shown
            send(self.reports, ClusterNodes(shown))


def _ray_node(listed: dict[str, Any], draining: bool) -> RayNode:
    name = listed.get("NodeName") or listed["NodeManagerAddress"]
    return RayNode(listed["NodeID"], name, dict(listed["Resources"]), draining)


def _draining() -> Collection[str]:
    """Return the ids of the nodes that Ray will take away soon; none where Ray does not tell, as over `ray://`."""
    import ray

    with contextlib.suppress(Exception):  # there is no public function
        return set(ray._private.state.state.get_draining_nodes())
    return ()


def connect(address: str) -> None:
    """Connect this process to a Ray cluster.

    Raises:
        Exception: Whatever Ray raises if it cannot.
    """
    import ray

    ray.init(
        address=address,
        namespace="autotune",
        logging_level=logging.WARNING,
        log_to_driver=False,
        configure_logging=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="autotune.workers.cluster.bridge")
    parser.add_argument("--workspace", type=Path, required=True)
    options = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal signals the daemon too, which decides
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    reports = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between the reports
    workspace = Workspace(options.workspace)
    try:
        config = load_config(workspace.config)
        settings = workspace.config.read_text() if workspace.config.exists() else ""
        logs = {device.trials for device in config.devices.values() if device.trials}
        recorded = {name: (workspace.root / name).read_bytes() for name in logs}
        connect(config.cluster.address)
    except Exception as error:  # Ray raises many kinds of errors
        lines = str(error).strip().splitlines()
        reason = f"cannot connect to Ray: {type(error).__name__}: {lines[0] if lines else ''}"
        send(reports, Fatal(reason[:300]))
        sys.exit(1)
    daemon = config.daemon
    limits = (daemon.stop_grace_s, daemon.worker_stages, config.cluster.node_timeout_s)
    hosts = HostOptions(settings, recorded, version_probe()(), *limits, user_key().decode())
    Bridge(workspace, MessageReader(0), reports, hosts).serve()
    os._exit(0)  # threads may still wait for nodes


if __name__ == "__main__":
    main()
