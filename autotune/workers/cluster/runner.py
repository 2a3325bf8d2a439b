"""The daemon's runner for a cluster: it keeps a bridge to the cluster running, and never imports Ray itself."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import time
from collections.abc import Collection, Iterator

from autotune.config import Config
from autotune.errors import ConfigError, DiskProblem, MachineProblem
from autotune.planning.view import MachineResources
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import ClusterNodes, Fatal, KillStage, Message, RunStage, StageReport, receive, send
from autotune.storage.daemon_info import ClusterNode
from autotune.storage.paths import Workspace
from autotune.workers import daemon_child
from autotune.workers.stage_runner import StageRunner

_FIRST_RETRY_S = 1.0
_MAX_RETRY_S = 30.0
_STOP_S = 10.0


class ClusterRunner(StageRunner):
    """Runs stages on the nodes of a Ray cluster.

    A bridge that dies takes nothing with it but the stages that run: they are reported as lost, and a new bridge is
    started, again and again.

    Raises:
        ConfigError: Ray or its client is not installed, or a simulated device answers from a file that is not sent to
            nodes.
    """

    def __init__(self, workspace: Workspace, config: Config) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("[cluster] engine = \"ray\" needs Ray; run: pip install 'autotune-tvm[ray]'")
        if config.cluster.address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
            raise ConfigError("[cluster] address \"ray://...\" needs Ray's client; run: pip install 'ray[client]'")
        for name, device in config.devices.items():
            if device.trials and not (workspace.root / device.trials).resolve().is_relative_to(
                workspace.root.resolve()
            ):
                raise ConfigError(f"[devices.{name}] trials: on a cluster the file must be in the workspace")
        self._workspace = workspace
        self._bridge: subprocess.Popen[bytes] | None = None
        self._answers: MessageReader | None = None
        self._handed: set[int] = set()
        self._unsent: list[int] = []
        self._nodes: tuple[ClusterNode, ...] = ()
        self._machine = MachineResources((), ())
        self._trouble = f"connecting to Ray at {config.cluster.address}"
        self._fatal = ""
        self._retry_at = 0.0
        self._retry_s = _FIRST_RETRY_S

    def run(self, kind: str, request: RunStage) -> None:
        """Hand a stage to the bridge. See `StageRunner`."""
        self._handed.add(request.id)
        if self._bridge is None:
            self._unsent.append(request.id)
        else:
            self._send(request)

    def kill_stage(self, id: int) -> None:
        """Have a stage killed on its node. See `StageRunner`."""
        if id in self._handed:
            self._send(KillStage(id))

    def descriptors(self) -> list[int]:
        """The standard output of the bridge. See `StageRunner`."""
        return [] if self._answers is None else [self._answers.descriptor]

    def reports(self, readable: Collection[int]) -> Iterator[StageReport]:
        """Yield what the bridge reports, and what became of the stages of a bridge that died. See `StageRunner`."""
        for id in self._unsent:
            self._handed.discard(id)
            yield StageReport(id, "lost", reason=self._trouble)
        self._unsent.clear()
        if self._answers is not None and self._answers.descriptor in readable:
            yield from filter(None, map(self._take, receive(self._answers)))
        if self._answers is not None and self._answers.ended:
            yield from self._give_up()
        if self._bridge is None and time.monotonic() >= self._retry_at:
            self._start()

    def stop(self) -> None:
        """End the bridge, which ends everything on the nodes. See `StageRunner`."""
        bridge = self._bridge
        self._bridge = None
        self._answers = None
        if bridge is None or bridge.stdin is None:
            return
        with contextlib.suppress(OSError):
            bridge.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            bridge.wait(_STOP_S)
        daemon_child.end(bridge)

    def machine(self) -> MachineResources:
        """The CPUs and devices of the nodes that serve. See `StageRunner`."""
        return self._machine

    def nodes(self) -> tuple[ClusterNode, ...]:
        """All nodes. See `StageRunner`."""
        return self._nodes

    def trouble(self) -> str:
        """What keeps the bridge from the cluster, or each node from serving. See `StageRunner`."""
        if self._trouble or not self._nodes:
            return self._trouble or "the cluster has no node with CPUs"
        return "; ".join(f"{node.name} {node.state}{': ' + node.detail if node.detail else ''}" for node in self._nodes)

    def _start(self) -> None:
        """Start a bridge, or say why that cannot be done now: it is tried again."""
        self._fatal = ""
        try:
            log = self._workspace.worker_log("ray")
            root = str(self._workspace.root)
            self._bridge = daemon_child.start("autotune.workers.cluster.bridge", log, "--workspace", root)
        except (DiskProblem, MachineProblem) as problem:
            self._trouble = str(problem)
            return self._try_later()
        assert self._bridge.stdout is not None
        self._answers = MessageReader(self._bridge.stdout.fileno())

    def _try_later(self) -> None:
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(_MAX_RETRY_S, 2 * self._retry_s)

    def _send(self, message: Message) -> None:
        if self._bridge is not None and self._bridge.stdin is not None:
            with contextlib.suppress(OSError):  # it has died: `reports` will say so
                send(self._bridge.stdin.fileno(), message)

    def _take(self, message: Message) -> StageReport | None:
        if isinstance(message, StageReport):
            awaited = message.id in self._handed
            self._handed.discard(message.id)
            return message if awaited else None
        if isinstance(message, Fatal):
            self._fatal = message.reason
        elif isinstance(message, ClusterNodes):
            self._trouble = ""
            self._retry_s = _FIRST_RETRY_S
            self._show(message.nodes)
        return None

    def _show(self, nodes: tuple[ClusterNode, ...]) -> None:
        self._nodes = nodes
        serving = [
            MachineResources(node.cpus, node.devices, node.measure_cpus) for node in nodes if node.state == "serving"
        ]
        machine = MachineResources.of_nodes(serving)
        self._machine = machine if machine != self._machine else self._machine

    def _give_up(self) -> Iterator[StageReport]:
        assert self._bridge is not None
        daemon_child.end(self._bridge)
        self._bridge = None
        self._answers = None
        self._trouble = self._fatal or "the connection to the cluster was lost"
        self._try_later()
        self._show(())
        handed = self._handed
        self._handed = set()
        for id in sorted(handed):
            yield StageReport(id, "lost", reason=f"{self._trouble}; see {self._workspace.worker_log('ray')}")
