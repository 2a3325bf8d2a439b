"""The daemon's side of a cluster, without one."""

from __future__ import annotations

import importlib.util
import os
import resource
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.config import load_config
from autotune.errors import ConfigError
from autotune.processes.messages import RunStage, StageReport
from autotune.storage.paths import Workspace
from autotune.workers.cluster.link import version_fault, version_probe
from autotune.workers.cluster.runner import ClusterRunner


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts a package `ray` in place of the real one, which does what a text says when it is loaded."""

    def make(text: str) -> None:
        (tmp_path / "site" / "ray").mkdir(parents=True)
        (tmp_path / "site" / "ray" / "__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{':'.join(sys.path)}")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    return make


def test_ray_must_be_installed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'autotune-tvm\[ray\]'"):
        ClusterRunner(workspace, load_config(workspace.config))


def test_the_settings_of_a_cluster_are_looked_at_before_anything_is_started(
    workspace: Workspace, ray: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray("")
    text = workspace.config.read_text() + '[cluster]\nengine = "ray"\naddress = "{}"\n'
    workspace.config.write_text(text.format("first:6379"))
    assert ClusterRunner(workspace, load_config(workspace.config)).trouble() == "connecting to Ray at first:6379"
    (tmp_path / "recorded.jsonl").touch()
    with workspace.config.open("a") as file:
        file.write('[devices.gpu0]\nkind = "simulated"\ntrials = "../recorded.jsonl"\n')
    with pytest.raises(ConfigError, match=r"\[devices.gpu0\] trials: .* in the workspace"):
        ClusterRunner(workspace, load_config(workspace.config))
    workspace.config.write_text(text.format("ray://127.0.0.1:10001"))
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc" else find(name))
    with pytest.raises(ConfigError, match=r"ray://.* pip install 'ray\[client\]'"):
        ClusterRunner(workspace, load_config(workspace.config))


@pytest.mark.parametrize(
    ("package", "trouble"),
    [
        (
            "def init(**_):\n    raise ConnectionError('no')",
            "cannot connect to Ray: ConnectionError: no",
        ),
        ("import os; os._exit(7)", "the connection to the cluster was lost"),
    ],
)
def test_a_bridge_that_finds_no_cluster_says_so_and_is_started_again(
    workspace: Workspace, ray: Callable[[str], None], package: str, trouble: str
) -> None:
    ray(package)
    runner = ClusterRunner(workspace, load_config(workspace.config))
    request = RunStage(2, "0001-net", 0, 0, "search", (10_000,), 60.0)
    reports: list[StageReport] = []
    bridges = set()
    try:
        runner.run("simulated", replace(request, id=1))
        assert [(report.id, report.outcome) for report in runner.reports([])] == [(1, "lost")], "there is no bridge yet"
        runner.run("simulated", request)
        deadline = time.monotonic() + 30
        while len(bridges) < 2 and time.monotonic() < deadline:
            reports += runner.reports(select.select(runner.descriptors(), [], [], 0.1)[0])
            bridges |= {runner._bridge.pid} if runner._bridge else set()
        assert len(bridges) == 2
        assert [(report.id, report.outcome) for report in reports] == [(2, "lost")]
        assert trouble in runner.trouble() and trouble in reports[0].reason
        assert runner.machine().cpus == () and runner.nodes() == ()
    finally:
        runner.stop()


@contextmanager
def one_file_more() -> Iterator[None]:
    """This process can open one more file, and so start no process, which needs several pipes."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_bridge_that_cannot_be_started_is_not_taken_for_a_problem_of_the_disk_and_is_tried_again(
    workspace: Workspace, ray: Callable[[str], None]
) -> None:
    ray("import time; time.sleep(60)")
    runner = ClusterRunner(workspace, load_config(workspace.config))
    try:
        with one_file_more():
            assert list(runner.reports([])) == []
        assert runner.trouble().startswith("this machine starts no more processes (too many open files)")
        deadline = time.monotonic() + 30
        while not runner.descriptors() and time.monotonic() < deadline:
            time.sleep(0.1)
            assert list(runner.reports([])) == []
        assert runner.descriptors()
    finally:
        runner.stop()


def test_a_bridge_whose_log_cannot_be_written_is_tried_again(workspace: Workspace, ray: Callable[[str], None]) -> None:
    ray("import time; time.sleep(60)")
    log = workspace.worker_log("ray")
    log.mkdir(parents=True)
    runner = ClusterRunner(workspace, load_config(workspace.config))
    assert list(runner.reports([])) == []
    assert str(log) in runner.trouble() and not runner.descriptors()


def test_versions_that_differ_are_named() -> None:
    here = {"autotune": "1.0", "apache-tvm": "0.27"}
    assert version_fault(here, dict(here)) == ""
    assert version_fault(here, {**here, "apache-tvm": "0.26"}) == "apache-tvm 0.26 in place of 0.27"
    assert version_fault(here, {"apache-tvm": "0.27"}) == "autotune missing in place of 1.0"
    versions = version_probe()()
    assert versions["autotune"] and version_fault(versions, versions) == ""
