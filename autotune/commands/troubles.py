"""The lines below the tables of `status` on nodes of a cluster and boards that do not work as they should."""

from __future__ import annotations

import time

from autotune.errors import one_line
from autotune.storage.daemon_formats import ClusterNode, DaemonInfo


def troubles(daemon: DaemonInfo) -> list[str]:
    """Return a line for each node that takes no stages or is slow, and for each board that is set aside."""
    nodes = filter(None, map(_of_node, daemon.nodes))
    at = {it.device: time.strftime("%H:%M:%S", time.localtime(it.until)) for it in daemon.aside}
    boards = (f"{it.device} is set aside until {at[it.device]}: {it.reason}" for it in daemon.aside)
    return [one_line(line) for line in (*nodes, *boards)]


def _of_node(node: ClusterNode) -> str:
    """Return what is wrong with a node; empty if nothing is."""
    if node.state != "serving":
        return f"node {node.name} is {node.state}{': ' + node.detail if node.detail else ''}"
    slow = ", ".join(f"{kind} takes {times} times as long" for kind, times in node.slowness.items())
    return f"node {node.name} is slow: compared with other nodes, {slow}" if slow else ""
