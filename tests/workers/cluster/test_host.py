"""The host of a node, without Ray: it runs stages on its own copy of the files, and tells what they have found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from autotune.config import load_config
from autotune.processes.messages import KillStage, RunStage
from autotune.storage.formats import SIMULATED
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.workers.cluster.exchange import NodeCopy, merge
from autotune.workers.cluster.host import Found, Host, StageOrder
from autotune.workers.cluster.parcel import Parcel, StageFiles

LIMIT_S = 60.0


@pytest.fixture
def job(make_job: Callable[..., JobPaths], simulate: Callable[..., None]) -> JobPaths:
    simulate(devices=1, cpus=2, search_s=0.01, build_s=0.01, measure_s=8.0, train_s=0.01)
    return make_job(1, "net", tasks=2, target=SIMULATED)


@pytest.fixture
def host(workspace: Workspace, job: JobPaths) -> Iterator[Host]:
    host = Host("n1", workspace.config.read_text(), {}, 2, 5.0, 0)
    yield host
    host.leave()


@pytest.fixture
def copy(workspace: Workspace) -> NodeCopy:
    return NodeCopy(workspace, cache(TuningLog))


@pytest.fixture
def order(workspace: Workspace, job: JobPaths, copy: NodeCopy) -> Callable[..., tuple[StageOrder, StageFiles]]:
    def make(id: int, kind: str, task: int = 0, device: str = "") -> tuple[StageOrder, StageFiles]:
        spec = read_spec(job)
        request = RunStage(id, job.folder.name, task, 0, kind, (0,), LIMIT_S, count=8, device=device)  # type: ignore
        files = StageFiles(workspace, spec, request)
        return StageOrder(
            SIMULATED, request, spec, True, copy.parcel(files, load_config(workspace.config)).pack()
        ), files

    return make


def until_report(host: Host) -> list[Found]:
    arrived: list[Found] = []
    deadline = time.monotonic() + LIMIT_S
    while not any(item.report for item in arrived):
        assert time.monotonic() < deadline
        arrived += host.found(0.2)
    return arrived


def test_commands_are_carried_out_by_their_numbers_however_they_arrive(
    host: Host, job: JobPaths, order: Callable[..., tuple[StageOrder, StageFiles]], copy: NodeCopy
) -> None:
    """And what was measured is told while the stage still measures."""
    for number, kind in enumerate(("search", "build")):
        command, files = order(number, kind)
        host.deliver(number, command)
        (ended,) = until_report(host)
        assert ended.report is not None and ended.report.outcome == "done"
        merge(files, Parcel.unpack(ended.parcel), copy.logs)
        copy.received(Parcel.unpack(ended.parcel))
    command, files = order(2, "measure", device="simulated:gpu0")
    host.deliver(3, KillStage(1))
    assert not host.found(0.3)
    host.deliver(2, command)
    early = host.found(LIMIT_S)
    assert [item.report for item in early] == [None]
    (trials,) = Parcel.unpack(early[0].parcel).trials.values()
    host.deliver(4, KillStage(2))
    *more, last = until_report(host)
    assert last.report is not None and (last.report.id, last.report.outcome) == (2, "crashed")
    told = [*trials]
    for item in (*more, last):
        told += [trial for new in Parcel.unpack(item.parcel).trials.values() for trial in new]
    hashes = [trial.hash for trial in told]
    assert 0 < len(hashes) < 8 and len(hashes) == len(set(hashes))


def test_what_a_node_lends_is_bounded_by_ray_and_by_the_settings(host: Host, workspace: Workspace) -> None:
    assert host.facts().cpus == (0, 1)
    real = Host("n2", "[machine]\ncpu_slots = 1\n", {}, 64, 5.0, 0)
    try:
        assert len(real.facts().cpus) == 1 and real.facts().cpu
    finally:
        real.leave()


def test_a_host_that_leaves_deletes_its_copy(workspace: Workspace, job: JobPaths, tmp_path: Path) -> None:
    host = Host("n1", workspace.config.read_text(), {"recorded/net.jsonl": b"{}"}, 2, 5.0, 0)
    folder = host._scratch.workspace.root
    assert (folder / "recorded" / "net.jsonl").read_bytes() == b"{}"
    host.leave()
    assert not folder.exists()
