"""The bridge's line to one node: a thread that makes the node's host and waits for what it finds.

The threads of links make all calls to Ray that may take long. They tell the bridge what happened through a queue.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.processes.messages import KillStage
from autotune.workers.cluster.host import Found, Host, NodeFacts, StageOrder

# A node may have to start Python and import autotune from a slow disk.
_START_S = 120.0
_POLL_S = 2.0
_STOP_S = 5.0
_LATE_S = 600.0
Versions = Mapping[str, str]


@dataclass(frozen=True)
class RayNode:
    """A node as Ray lists it: its id, its name, its resources, and whether it is about to be taken away."""

    id: str
    name: str
    resources: dict[str, float]
    draining: bool = False


@dataclass(frozen=True)
class HostOptions:
    """What hosts are made with; see `Host`.

    Attributes:
        settings: The text of `autotune.toml`.
        recorded: The logs that simulated devices answer from.
        versions: The versions that a node must have.
        timeout_s: The time after which a host that does not answer counts as lost.
        key: The key of the user, for seals.
    """

    settings: str
    recorded: Mapping[str, bytes]
    versions: Versions
    grace_s: float
    stages_each: int
    timeout_s: float
    key: str


@dataclass(frozen=True)
class Waiting:
    """Ray has not made the host yet, because of `reason`."""

    link: Link
    reason: str


@dataclass(frozen=True)
class Joined:
    """The host serves."""

    link: Link
    facts: NodeFacts


@dataclass(frozen=True)
class Refused:
    """The node cannot be used as it is."""

    link: Link
    reason: str


@dataclass(frozen=True)
class News:
    """A host has found something."""

    link: Link
    found: Found


@dataclass(frozen=True)
class Gone:
    """The host has died, or does not answer. Its stages have to run elsewhere."""

    link: Link
    reason: str


@dataclass(frozen=True)
class Ended:
    """The host is killed, and the link has nothing more to tell."""

    link: Link


Event = Waiting | Joined | Refused | News | Gone | Ended


class Link:
    """The line to a node. It ends with `Refused`, or with `Gone`, what the node found before, and `Ended`."""

    def __init__(self, node: RayNode, options: HostOptions, tell: Callable[[Event], None]) -> None:
        self.node = node
        self._options = options
        self._tell = tell
        self._host: Any = None
        self._asked: Any = None
        self._sent = 0
        self._thread = threading.Thread(target=self._run, name=f"autotune-link-{node.name}", daemon=True)
        self._thread.start()

    def send(self, command: StageOrder | KillStage) -> None:
        """Send a command to the host. Does not wait; if the host is gone, `Gone` will tell."""
        with contextlib.suppress(Exception):
            self._host.deliver.remote(self._sent, command)
        self._sent += 1

    def end(self) -> None:
        """Have the host kill its stages and leave, and kill it if it does not."""
        import ray

        if self._host is not None:
            with contextlib.suppress(Exception):  # whatever is wrong with it, it has to go
                ray.get(self._host.leave.remote(), timeout=_STOP_S)
            self._kill()

    def _kill(self) -> None:
        import ray

        if self._host is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray.kill(self._host)

    def _run(self) -> None:
        import ray

        try:
            installed = ray.get(self._at_node(ray.remote(version_probe())).remote(), timeout=_START_S)
            if difference := version_fault(self._options.versions, installed):
                return self._tell(Refused(self, f"it has {difference}"))
            self._tell(Joined(self, self._make_host()))
            while True:
                self._asked = self._host.found.remote(_POLL_S)
                self._tell_news(self._options.timeout_s)
        except Exception as error:  # Ray raises many kinds of errors, and errors of the host in disguise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._tell(Gone(self, f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]))
            self._end_late()
            self._tell(Ended(self))

    def _tell_news(self, timeout_s: float) -> None:
        import ray

        for news in ray.get(self._asked, timeout=timeout_s):
            self._tell(News(self, news))

    def _end_late(self) -> None:
        """Have a host leave that does not answer, and pass on what it has measured, should it ever answer again."""
        if self._asked is not None:
            with contextlib.suppress(Exception):  # it is gone, or it never answered
                self._host.leave.remote()
                self._tell_news(_LATE_S)
        self._kill()

    def _make_host(self) -> NodeFacts:
        """Make the host, which takes all of the node's CPUs and GPUs from Ray, and wait until it has them."""
        import ray

        cpus, gpus = (int(self.node.resources.get(name, 0)) for name in ("CPU", "GPU"))
        options = self._options
        resources = {"num_cpus": cpus, "num_gpus": gpus}
        wanted = self._at_node(ray.remote(Host), max_concurrency=8, **resources)
        how = (options.settings, options.recorded, cpus, options.grace_s, options.stages_each, options.key)
        host = wanted.remote(self.node.name, *how)
        asked = host.facts.remote()
        self._host = host
        while not ray.wait([asked], timeout=_POLL_S)[0]:
            self._tell(Waiting(self, f"Ray has not given its {cpus} CPUs yet; others use them, or it starts"))
        facts: NodeFacts = ray.get(asked)
        return facts

    def _at_node(self, remote: Any, **options: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(self.node.id, soft=False)
        return remote.options(scheduling_strategy=strategy, **{"num_cpus": 0, **options})


def version_probe() -> Callable[[], dict[str, str]]:
    """Return a function that says which versions a machine has.

    It travels to the node as code, because the node may lack autotune: a nested function does, one of a module is
    imported there.
    """

    def versions() -> dict[str, str]:
        from importlib import metadata

        installed = {}
        for package in ("autotune", "apache-tvm", "apache-tvm-ffi"):
            try:
                installed[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                installed[package] = ""
        try:
            from autotune.version import __version__

            installed["autotune"] = __version__
        except ImportError:
            installed["autotune"] = ""
        return installed

    return versions


def version_fault(here: Versions, there: Versions) -> str:
    """Return how the versions of a node differ from those of the daemon's machine; empty if they do not."""
    wrong = [
        f"{package} {there.get(package) or 'missing'} in place of {version or 'none'}"
        for package, version in here.items()
        if there.get(package, "") != version
    ]
    return ", ".join(wrong)
