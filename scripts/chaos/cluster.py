"""Break parts of a Ray cluster while it tunes, and judge what is left: jobs, trials, and how long it took.

python scripts/chaos/cluster.py kills [--kills 10] [--seed 0]   real models on two nodes, killed at random times
python scripts/chaos/cluster.py head                            the head is killed, and started again later
python scripts/chaos/cluster.py freeze [--seconds 60] [--whole] the raylet of a node is stopped (SIGSTOP), and goes on
unshare -n python scripts/chaos/cluster.py split [--seconds 60] the network of a node is cut, and comes back
python scripts/chaos/cluster.py slow                            of two nodes, one measures five times as slowly

All nodes are on this machine. `kills` tunes real models, each node on CPUs of its own, for some five minutes; the
others use simulated devices and take one to three. Needs `pip install 'autotune-tvm[ray]'`. `split` needs to be root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rig import Trial, finish, free_port, make_job, make_models

from autotune.api.queue import submit
from autotune.storage.paths import Workspace

_HEAD = "10.77.0.1"
_APART = "10.77.0.2"  # of a node with a network of its own, and of all others then
_STORE = 80 << 20
_TRIALS = 320  # of a simulated job


@dataclass
class Cluster:
    """Processes of `ray start`, each with all that it starts."""

    folder: Path
    ip: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"

    def start_head(self) -> None:
        words = ["--head", "--port", str(self.port), "--node-ip-address", self.ip, "--num-cpus", "0"]
        self._start("head", [*words, "--include-dashboard", "false", "--temp-dir", str(self.folder)])

    def add(self, name: str, *before: str, ip: str = "", **resources: int) -> None:
        """Start a node, and wait until it runs: of several that start at once on one machine, Ray gives up some.

        Before its command stand those that choose its CPUs or its network.
        """
        cpus = resources.pop("cpus")
        words = ["--address", self.address, "--node-ip-address", ip or self.ip, "--node-name", name]
        words += ["--num-cpus", str(cpus), "--resources", json.dumps(resources)]
        self._start(name, words, before)
        output = self.folder / f"{name}.out"
        while "runtime started" not in output.read_text():
            if self.running[name].poll() is not None:
                self._start(name, words, before)
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """kill -9 of all processes of a node."""
        with suppress(psutil.NoSuchProcess):
            for process in self.processes(name):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.running.pop(name).wait()

    def processes(self, name: str) -> list[psutil.Process]:
        parent = psutil.Process(self.running[name].pid)
        return [parent, *parent.children(recursive=True)]

    def raylet(self, name: str) -> psutil.Process:
        return next(process for process in self.processes(name) if process.name() == "raylet")

    def _start(self, name: str, words: list[str], before: tuple[str, ...] = ()) -> None:
        command = [*before, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        # The ports are fixed by default, and nodes of one machine would contend for them.
        ports = ["--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", str(free_port())]
        shared = ["--object-store-memory", str(_STORE), *ports]
        with (self.folder / f"{name}.out").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*command, *shared, *words], stdout=log, stderr=log, start_new_session=True
            )


@contextmanager
def cluster(ip: str = "127.0.0.1") -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # the names of sockets must be short
    started = Cluster(folder, ip)
    try:
        started.start_head()
        time.sleep(5)
        if started.running["head"].poll() is not None:
            raise SystemExit((folder / "head.out").read_text())
        yield started
    finally:
        for name in list(started.running):
            started.kill(name)
        shutil.rmtree(folder, ignore_errors=True)


def make_workspace(root: Path, address: str, timeout_s: float, simulated: float = 0.0) -> Workspace:
    workspace = Workspace(root / "workspace")
    for folder in (workspace.jobs, workspace.logs):
        folder.mkdir(parents=True)
    lines = ["[machine]", f'lock_dir = "{root / "locks"}"']
    if simulated:
        lines += ["simulated_cpus = 2"]
        for name, times in (("gpu0", 1), ("gpu1", 5)):
            lines += [f"[devices.{name}]", 'kind = "simulated"', f"measure_s = {times * simulated}"]
            lines += [f"{kind}_s = {simulated}" for kind in ("search", "build", "train")]
    lines += ["[cluster]", 'engine = "ray"', f'address = "{address}"', f"node_timeout_s = {timeout_s}"]
    workspace.config.write_text("\n".join(lines) + "\n")
    return workspace


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Two nodes, each on half of the CPUs. At random times one is killed, and another takes its place."""
    rng = random.Random(options.seed)
    cpus = sorted(os.sched_getaffinity(0))
    halves = [cpus[: len(cpus) // 2], cpus[len(cpus) // 2 :]]
    with tempfile.TemporaryDirectory() as folder, cluster() as here:
        trial = Trial(make_workspace(Path(folder), here.address, 15.0), options.limit)
        with trial.workspace.config.open("a") as file:
            file.write("[measure]\nthreads = 1\n")
        make_models(Path(folder), *options.models)
        for model in options.models:
            submit(Path(folder, f"{model}.onnx"), workspace=trial.workspace.root, trials=options.trials)
        alive = {}

        def add(number: int, half: list[int]) -> None:
            here.add(f"n{number}", "taskset", "-c", ",".join(map(str, half)), cpus=len(half))
            alive[f"n{number}"] = half

        def breaks() -> None:
            for number in range(options.kills):
                if not trial.wait(lambda: all(trial.state(name) == "serving" for name in alive)):
                    return
                time.sleep(rng.uniform(0.2, 8.0))
                name = rng.choice(sorted(alive))
                here.kill(name)
                trial.note("killed", node=name)
                add(number + 3, alive.pop(name))

        add(1, halves[0])
        add(2, halves[1])
        return trial.play(breaks)


@contextmanager
def simulated(
    limit_s: float, timeout_s: float, seconds: float, ip: str = "127.0.0.1"
) -> Iterator[tuple[Cluster, Trial]]:
    with tempfile.TemporaryDirectory() as folder, cluster(ip) as here:
        trial = Trial(make_workspace(Path(folder), here.address, timeout_s, simulated=seconds), limit_s)
        for id in (1, 2):
            make_job(trial.workspace, id, 2, _TRIALS)
        yield here, trial


def head(options: argparse.Namespace) -> dict[str, Any]:
    """The head is killed. Nodes do not outlive their head for long: they are killed, and started after it."""
    with simulated(options.limit, 10.0, 1.0) as (here, trial):
        here.add("n1", cpus=2, gpu0=1)
        here.add("n2", cpus=2, gpu0=1)

        def breaks() -> None:
            trial.wait(lambda: len(trial.trials()) >= 30)
            here.kill("head")
            trial.note("head killed")
            trial.wait(lambda: trial.state("n1") != "serving")
            trial.note("daemon knows")
            time.sleep(options.seconds / 4)
            here.start_head()
            trial.note("head started")
            for number in (1, 2):
                here.kill(f"n{number}")
                here.add(f"n{number + 2}", cpus=2, gpu0=1)
            trial.wait(lambda: trial.state("n3") == "serving")
            trial.note("a node serves")

        return trial.play(breaks)


def freeze(options: argparse.Namespace) -> dict[str, Any]:
    """The raylet of a node is stopped for a while, or with it all that runs there. What ends late must not count twice.

    If it is the raylet alone, the workers go on, and the daemon does not miss it.
    """
    with simulated(options.limit, 5.0, 1.0) as (here, trial):
        # It has an address of its own: Ray might connect the daemon to the cluster through any node with its address.
        here.add("n1", ip="127.0.0.2", cpus=2, gpu0=1)
        here.add("n2", cpus=2, gpu0=1)

        def breaks() -> None:
            trial.wait(lambda: min(trial.done_on("n1"), trial.done_on("n2")) >= 3)
            stopped = here.processes("n1") if options.whole else [here.raylet("n1")]
            for process in stopped:
                process.suspend()
            trial.note("stopped")
            _watch(trial, "n1", options.seconds)
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            trial.note("goes on", state=trial.state("n1"))
            if trial.wait(lambda: trial.state("n1") == "serving"):
                trial.note("serves again")

        return trial.play(breaks)


def split(options: argparse.Namespace) -> dict[str, Any]:
    """One node has a network of its own, whose cable is pulled out for a while."""
    holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    time.sleep(0.5)
    inside = ["nsenter", "-t", str(holder.pid), "-n"]
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", "at0", "type", "veth", "peer", "name", "at1", "netns", str(holder.pid)],
        ["ip", "addr", "add", f"{_HEAD}/24", "dev", "at0"],
        ["ip", "link", "set", "at0", "up"],
        [*inside, "ip", "link", "set", "lo", "up"],
        [*inside, "ip", "addr", "add", f"{_APART}/24", "dev", "at1"],
        [*inside, "ip", "link", "set", "at1", "up"],
    ):
        subprocess.run(command, check=True)
    try:
        with simulated(options.limit, 5.0, 2.0, _HEAD) as (here, trial):
            here.add("n1", *inside, ip=_APART, cpus=2, gpu0=1)
            here.add("n2", cpus=2, gpu0=1)

            def breaks() -> None:
                trial.wait(lambda: trial.done_on("n1") >= 3)
                subprocess.run(["ip", "link", "set", "at0", "down"], check=True)
                trial.note("cut")
                _watch(trial, "n1", options.seconds)
                subprocess.run(["ip", "link", "set", "at0", "up"], check=True)
                trial.note("mended")
                if trial.wait(lambda: trial.state("n1") == "serving"):
                    trial.note("serves again")

            return trial.play(breaks)
    finally:
        holder.kill()
        holder.wait()


def _watch(trial: Trial, node: str, seconds: float) -> None:
    """Wait for some seconds, and note when the daemon has given the node up."""
    began = time.time()
    if trial.wait(lambda: trial.state(node) != "serving" or time.time() >= began + seconds):
        trial.note("daemon knows" if trial.state(node) != "serving" else "daemon does not know", node=trial.state(node))
    trial.wait(lambda: time.time() >= began + seconds)


def slow(options: argparse.Namespace) -> dict[str, Any]:
    """The device of one node takes five times as long for a measurement as that of the other."""
    with simulated(options.limit, 5.0, 0.5) as (here, trial):
        here.add("n1", cpus=2, gpu0=1)
        here.add("n2", cpus=2, gpu1=1)

        def slowness() -> dict[str, int]:
            shown = trial.shown("n2")
            return dict(shown.slowness) if shown else {}

        def watches() -> None:
            if trial.wait(lambda: bool(slowness())):
                trial.note("daemon knows", node="n2", slowness=slowness())

        return trial.play(watches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "head", "freeze", "split", "slow"))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=96, help="of each model")
    parser.add_argument("--models", nargs="+", default=["tiny_cnn", "mlp", "squeezenet"])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long something is broken")
    parser.add_argument("--whole", action="store_true", help="stop all processes of the node, and not only its raylet")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which the daemon stops")
    options = parser.parse_args()
    work = {"kills": kills, "head": head, "freeze": freeze, "split": split, "slow": slow}[options.what]
    finish(work(options))


if __name__ == "__main__":
    main()
