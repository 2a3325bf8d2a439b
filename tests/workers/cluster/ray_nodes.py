"""A real Ray with several nodes on this machine."""

from __future__ import annotations

import importlib.util
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autotune.workers.stage_runner import StageRunner

from ...rpc_lab import free_port

LIMIT_S = 90.0
CLUSTER = '\n[cluster]\nengine = "ray"\naddress = "{address}"\nnode_timeout_s = {timeout_s}\n'


class Nodes:
    """A cluster on this machine. Each node has two CPUs and a device, all of them simulated."""

    def __init__(self) -> None:
        from ray._private import utils
        from ray.cluster_utils import Cluster

        utils.set_sigterm_handler = lambda handler: None  # it is for the main thread alone, and nodes come beside it
        os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
        head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False}
        if importlib.util.find_spec("grpc") is not None:
            self.client_port = head["ray_client_server_port"] = free_port()
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: dict[str, Any] = {}
        self.starter = ThreadPoolExecutor(1)  # Linux kills a node when the thread that started it ends

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, name: str, **more: Any) -> None:
        node = {"num_cpus": 2, "resources": {"gpu0": 1}, "node_name": name, "object_store_memory": 80 << 20, **more}
        self.nodes[name] = self.starter.submit(self.cluster.add_node, wait=False, **node).result()

    def kill(self, name: str) -> None:
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def drain(self, name: str) -> None:
        """Tell Ray that a node will be taken away in ten minutes."""
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        by = int(1000 * (time.time() + 600))
        accepted, refusal = GcsClient(address=self.address).drain_node(self.nodes[name].node_id, reason, "test", by)
        assert accepted, refusal

    def only(self, *names: str) -> None:
        """Have exactly these nodes."""
        for name in set(self.nodes) - set(names):
            self.kill(name)
        for name in names:
            if name not in self.nodes:
                self.add(name)


def joined(runner: StageRunner, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while sum(node.state == "serving" for node in runner.nodes()) < count:
        assert time.monotonic() < deadline, runner.trouble()
        list(runner.reports(runner.descriptors()))


def add_pinned(nodes: Nodes, name: str, cpu: int, **more: Any) -> None:
    """Add a node that has one CPU of this machine."""
    before = os.sched_getaffinity(0)
    pin = nodes.starter.submit  # the thread that starts nodes, which inherit its CPUs
    try:
        pin(os.sched_setaffinity, 0, {sorted(before)[cpu]}).result()
        nodes.add(name, **{"num_cpus": 1, "resources": {}, **more})
    finally:
        pin(os.sched_setaffinity, 0, before).result()
