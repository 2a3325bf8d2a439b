"""A real Ray with several nodes on this machine: nodes come, die and are refused, and no trial is lost or doubled.

One cluster serves all tests of the module, in the order of the file. They need a process for themselves: under
pytest-xdist they are skipped, and `scripts/test.sh` runs them apart.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.config import load_config
from autotune.daemon.loop import Daemon
from autotune.storage import formats
from autotune.storage.daemon_info import running_daemon
from autotune.storage.formats import SIMULATED, Failure, JobState, Trial
from autotune.storage.journal import StageDone, StageFailed, read
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.testing import StageRunnerContract
from autotune.workers.cluster.runner import ClusterRunner
from autotune.workers.stage_runner import StageRunner
from autotune.workers.worker_pool import WorkerPool

from ...rpc_lab import Lab
from ...waiting import until
from .ray_nodes import CLUSTER, LIMIT_S, Nodes, add_pinned, joined

if importlib.util.find_spec("ray") is None:
    warnings.warn("RAY IS NOT INSTALLED: nothing tests the cluster; run: pip install 'autotune[ray]'", stacklevel=1)
    pytest.skip("Ray is not installed", allow_module_level=True)
if os.environ.get("PYTEST_XDIST_WORKER"):
    pytest.skip("a cluster needs a test process for itself", allow_module_level=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    yield started
    started.cluster.shutdown()


class TestContract(StageRunnerContract):
    """A cluster keeps what every runner promises. Its workers run in the copies of the nodes."""

    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls, nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
        workspace = cls.make_workspace(tmp_path_factory.mktemp("contract"))
        with workspace.config.open("a") as file:
            file.write(CLUSTER.format(address=nodes.address, timeout_s=30))
        return workspace

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls, nodes: Nodes, settings: Workspace) -> Iterator[ClusterRunner]:
        nodes.only("n1")
        runner = ClusterRunner(settings, load_config(settings.config))
        joined(runner, 1)
        yield runner
        runner.stop()

    def works_for(self, folder: str, workspace: Workspace) -> bool:
        """Whether a folder is a copy of this workspace: other clusters on this machine have copies, too."""
        settings = Path(folder) / "autotune.toml"
        ours = not settings.exists() or settings.read_text() == workspace.config.read_text()
        return ours and Path(folder).name.startswith("autotune-node-")


@pytest.fixture
def on_ray(nodes: Nodes, workspace: Workspace, simulate: Callable[..., None]) -> Callable[..., None]:
    """Gives the workspace simulated devices, on the nodes of the cluster."""

    def settle(timeout_s: float = 30.0, **settings: object) -> None:
        given = {"search_s": 0.05, "build_s": 0.05, "measure_s": 0.4, "train_s": 0.05, **settings}
        simulate(devices=1, cpus=2, **given)
        with workspace.config.open("a") as file:
            file.write(CLUSTER.format(address=nodes.address, timeout_s=timeout_s))

    return settle


def hashes(workspace: Workspace, tasks: int) -> list[str]:
    logs = [TuningLog(workspace.tuning_log("simulated-test", f"{task:016x}").records) for task in range(tasks)]
    return [trial.hash for log in logs for trial in log.trials()]


def serve(workspace: Workspace, runner: StageRunner | None = None, until_s: float = LIMIT_S) -> int:
    return Daemon(
        workspace, load_config(workspace.config), drain=True, until=time.time() + until_s, runner=runner
    ).run()


def state(job: JobPaths) -> JobState:
    return formats.read(JobState, job.state)


def meanwhile(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_node_with_other_versions_is_refused_by_name_and_the_job_waits(
    nodes: Nodes, workspace: Workspace, on_ray: Callable[..., None], make_job: Callable[..., JobPaths], tmp_path: Path
) -> None:
    info = tmp_path / "site" / "apache_tvm-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-tvm\nVersion: 0.1\n")
    path = os.pathsep.join([str(info.parent), *sys.path])
    nodes.only()
    nodes.add("old", env_vars={"PYTHONPATH": path})
    on_ray()
    job = make_job(1, "net", tasks=1, target=SIMULATED, trials=8)
    told: list[Any] = []

    def look() -> None:
        until(lambda: any(node.state == "refused" for node in nodes_shown(workspace)))
        told.extend(node for node in nodes_shown(workspace) if node.state == "refused")
        time.sleep(1.5)  # the reasons are published once a second
        told.append(state(job).reason)
        os.kill(os.getpid(), signal.SIGINT)

    thread = meanwhile(look)
    assert serve(workspace) == 130
    thread.join()
    (node, reason) = told
    assert (node.name, node.state) == ("old", "refused") and "apache-tvm 0.1 in place of" in node.detail
    assert reason.kind == "no-node" and "old refused" in reason.detail


def nodes_shown(workspace: Workspace) -> tuple[Any, ...]:
    daemon = running_daemon(workspace)
    return daemon.nodes if daemon else ()


def test_nodes_die_come_and_are_drained_in_the_middle_and_every_trial_is_measured_once(
    nodes: Nodes, workspace: Workspace, on_ray: Callable[..., None], make_job: Callable[..., JobPaths]
) -> None:
    """One that dies loses what it was at; one that Ray will take away ends its stages and gets no more."""
    nodes.only("n1", "n2")
    on_ray()
    job = make_job(1, "net", tasks=2, target=SIMULATED, trials=5000)  # more than are ever measured here
    drained: list[float] = []
    losses: list[StageFailed] = []

    def done_on(name: str, since: float = 0.0) -> list[StageDone]:
        ended = [event for event in read(job.journal) if isinstance(event, StageDone)]
        return [event for event in ended if event.summary["node"] == name and event.began >= since]

    def lost() -> list[StageFailed]:
        return [event for event in read(job.journal) if isinstance(event, StageFailed)]

    def is_shown(name: str, state: str) -> bool:
        return any((node.name, node.state) == (name, state) for node in nodes_shown(workspace))

    def disturb() -> None:
        try:
            until(lambda: bool(done_on("n1") and done_on("n2")))
            nodes.kill("n1")
            nodes.add("n3")
            until(lambda: is_shown("n3", "serving") and bool(lost()))
            nodes.drain("n2")
            until(lambda: is_shown("n2", "draining"))
            drained.append(time.time())
            until(lambda: bool(done_on("n3", since=drained[0])))
            losses.extend(lost())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = meanwhile(disturb)
    assert serve(workspace, until_s=2 * LIMIT_S) == 130
    thread.join()
    assert drained and not done_on("n2", since=drained[0])
    measured = hashes(workspace, 2)
    assert len(measured) == len(set(measured)) > 8
    assert losses and {event.outcome for event in losses} == {"lost"}
    assert all("node n1" in event.detail for event in losses)


@pytest.mark.slow
def test_a_node_that_hangs_is_lost_after_its_time_and_used_again_when_it_answers(
    nodes: Nodes, workspace: Workspace, on_ray: Callable[..., None], make_job: Callable[..., JobPaths]
) -> None:
    nodes.only("n5")
    on_ray(timeout_s=2.5)
    job = make_job(1, "net", tasks=1, target=SIMULATED, trials=32)
    stopped: list[psutil.Process] = []

    def hang() -> None:
        until(lambda: len(hashes(workspace, 1)) >= 6)
        named = psutil.process_iter(["cmdline"])
        stopped.extend(process for process in named if "ray::Host" in " ".join(process.info["cmdline"] or []))
        for process in stopped:
            process.suspend()
        until(lambda: any(node.state == "lost" for node in nodes_shown(workspace)))
        for process in stopped:
            process.resume()

    thread = meanwhile(hang)
    assert serve(workspace) == 0
    thread.join()
    assert stopped and state(job).state == "done"
    measured = hashes(workspace, 1)
    assert len(measured) == len(set(measured)) == 32


@pytest.mark.slow
def test_a_node_that_is_slow_is_named_with_what_it_is_slow_at(
    nodes: Nodes, workspace: Workspace, on_ray: Callable[..., None], make_job: Callable[..., JobPaths]
) -> None:
    nodes.only("n5")
    nodes.add("slow", resources={"gpu1": 1})
    on_ray(measure_s=0.2)
    with workspace.config.open("a") as file:
        file.write('[devices.gpu1]\nkind = "simulated"\nsearch_s = 0.05\nbuild_s = 0.05\nmeasure_s = 1.0\n')
    make_job(1, "net", tasks=2, target=SIMULATED, trials=1600)
    told: dict[str, Any] = {}

    def look() -> None:
        until(lambda: any(node.slowness for node in nodes_shown(workspace)))
        told.update({node.name: dict(node.slowness) for node in nodes_shown(workspace)})
        os.kill(os.getpid(), signal.SIGINT)

    thread = meanwhile(look)
    assert serve(workspace) == 130
    thread.join()
    assert told["n5"] == {} and told["slow"].keys() == {"measure"}


@pytest.mark.slow
def test_a_cluster_can_be_reached_through_its_client_server(
    nodes: Nodes, workspace: Workspace, on_ray: Callable[..., None], make_job: Callable[..., JobPaths]
) -> None:
    pytest.importorskip("grpc", reason="ray:// needs grpcio: pip install 'autotune[ray]'")
    nodes.only("n5")
    on_ray()
    text = workspace.config.read_text()
    workspace.config.write_text(text.replace(nodes.address, f"ray://127.0.0.1:{nodes.client_port}"))
    job = make_job(1, "net", tasks=1, target=SIMULATED, trials=16)
    assert serve(workspace) == 0
    assert state(job).state == "done" and len(set(hashes(workspace, 1))) == 16
    assert {event.summary["node"] for event in read(job.journal) if isinstance(event, StageDone)} == {"n5"}


@pytest.mark.slow
def test_a_bridge_that_is_killed_is_started_again(
    nodes: Nodes, workspace: Workspace, on_ray: Callable[..., None], make_job: Callable[..., JobPaths]
) -> None:
    nodes.only("n5")
    on_ray()
    job = make_job(1, "net", tasks=1, target=SIMULATED, trials=24)

    def kill() -> None:
        until(lambda: len(hashes(workspace, 1)) >= 4)
        for child in psutil.Process().children():
            if "autotune.workers.cluster.bridge" in child.cmdline():
                child.kill()

    thread = meanwhile(kill)
    assert serve(workspace) == 0
    thread.join()
    measured = hashes(workspace, 1)
    assert state(job).state == "done" and len(measured) == len(set(measured)) == 24
    assert any(isinstance(event, StageFailed) and event.outcome == "lost" for event in read(job.journal))


@pytest.mark.slow
def test_the_same_trials_as_on_this_machine(
    nodes: Nodes, workspace: Workspace, on_ray: Callable[..., None], make_job: Callable[..., JobPaths]
) -> None:
    """The devices answer from a log, in which a build and a measurement have failed."""
    recorded = [Trial(f"{n}", None, [], (100.0 - n, 101.0 - n), None, "0009-old", 0, 0.0) for n in range(24)]
    for n, kind in ((3, "build"), (5, "measure")):
        recorded[n] = replace(recorded[n], times_us=(), failure=Failure(kind, "error", "too deep"))  # type: ignore
    TuningLog(workspace.root / "recorded.jsonl").add(recorded)
    nodes.only("n5")
    on_ray(measure_s=0.05, trials="recorded.jsonl")

    def tuned(id: int, runner: StageRunner | None) -> list[Any]:
        make_job(id, "net", tasks=1, target=SIMULATED, target_key=f"simulated-{id}", trials=24)
        assert serve(workspace, runner) == 0
        log = TuningLog(workspace.tuning_log(f"simulated-{id}", f"{0:016x}").records)
        return [(trial.hash, trial.times_us, trial.round, trial.failure) for trial in log.trials()]

    there = tuned(1, None)
    here = tuned(2, WorkerPool(workspace, 5.0))
    assert there == here and len(here) == 24
    assert [failure.stage for *_, failure in here if failure] == ["build", "measure"]


def real(workspace: Workspace, nodes: Nodes, more: str = "") -> None:
    """Settings for real TVM on the nodes of the cluster."""
    with workspace.config.open("a") as file:
        file.write(f"[measure]\nmin_repeat_ms = 1\nthreads = 1\n[job]\ntrials_per_round = 4\n{more}")
        file.write(CLUSTER.format(address=nodes.address, timeout_s=30))


def nodes_by_kind(workspace: Workspace) -> dict[str, set[str]]:
    """On which nodes the stages of each kind were done."""
    by_kind: dict[str, set[str]] = {}
    for paths in workspace.job_list():
        for event in read(paths.journal):
            if isinstance(event, StageDone):
                by_kind.setdefault(event.kind, set()).add(event.summary["node"])
    return by_kind


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each of the two nodes needs a CPU")
def test_a_real_task_is_measured_on_cpus_of_its_model_and_built_on_any(
    nodes: Nodes, workspace: Workspace, convolution: Callable[..., Path], tmp_path: Path
) -> None:
    """With real TVM: what another kind of node builds is measured and verified on this one, and the log is here."""
    from autotune.api.queue import submit

    real(workspace, nodes)
    model = convolution(tmp_path / "net.onnx", (1, 16, 14, 14), 16)
    target = '{"kind": "llvm", "mcpu": "ivybridge", "num-cores": 1}'
    job = submit(model, target=target, workspace=workspace.root, trials=4)
    other = tmp_path / "site" / "sitecustomize.py"
    other.parent.mkdir()
    other.write_text("from autotune.machine import hardware\nhardware.cpu_model = lambda: 'Another 1/2/3'\n")
    nodes.only()
    add_pinned(nodes, "a-other", 1, env_vars={"PYTHONPATH": os.pathsep.join([str(other.parent), *sys.path])})
    add_pinned(nodes, "measures", 0)
    runner = ClusterRunner(workspace, load_config(workspace.config))
    joined(runner, 2)
    assert serve(workspace, runner, until_s=150.0) == 0
    assert job.progress().trials == 4 and job.progress().latency_ms
    by_kind = nodes_by_kind(workspace)
    assert by_kind["build"] == {"a-other"}, "it comes first among nodes with as many free CPUs"
    assert by_kind["measure"] == {"measures"}
    (paths,) = workspace.job_list()
    done = [event for event in read(paths.journal) if isinstance(event, StageDone)]
    assert any(event.kind == "measure" and event.summary["verified"] for event in done)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each of the two nodes needs a CPU")
def test_boards_are_measured_on_from_the_node_that_has_them(
    nodes: Nodes, workspace: Workspace, convolution: Callable[..., Path], tmp_path: Path, lab: Lab
) -> None:
    from autotune.api.queue import submit

    real(workspace, nodes, lab.section(count=1, request_timeout_s=3, retry_s=0.5))
    model = convolution(tmp_path / "net.onnx", (1, 8, 14, 14), 8)
    job = submit(model, target="phone", workspace=workspace.root, trials=4)
    nodes.only()
    add_pinned(nodes, "a-builds", 0)
    add_pinned(nodes, "boards", 1, resources={"phone": 1})
    runner = ClusterRunner(workspace, load_config(workspace.config))
    joined(runner, 2)

    def attach() -> None:
        until(lambda: any(board_failures(workspace)))
        lab.start_server(supervised=True)

    thread = meanwhile(attach)
    assert serve(workspace, runner, until_s=150.0) == 0
    thread.join()
    assert job.progress().trials == 4 and job.progress().latency_ms
    by_kind = nodes_by_kind(workspace)
    assert by_kind["measure"] == {"boards"} and "a-builds" in by_kind["build"]


def board_failures(workspace: Workspace) -> list[str]:
    (paths,) = workspace.job_list()
    events = list(read(paths.journal))
    return [event.detail for event in events if isinstance(event, StageFailed) and event.outcome == "device-lost"]
