"""Kernels are timed again where the queue has timed them otherwise than the library will run them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune import devices
from autotune.commands.export import request
from autotune.config import Config
from autotune.processes.messages import ExportRequest
from autotune.settings import ExportSettings
from autotune.storage import formats
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

CONFIG = Config(export=ExportSettings(contenders=5))
CPU = devices.for_target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1})
IN_CONTEXT = CPU.kind_holding(1000).key


def of(workspace: Workspace, paths: JobPaths, *, retime: bool) -> ExportRequest:
    spec = formats.read(JobSpec, paths.spec)
    return request.request_of(workspace, CONFIG, paths, spec, workspace.root / "lib", (), retime=retime)


@pytest.mark.parametrize(
    ("job", "threads", "again", "count"),
    [
        ({"target_key": IN_CONTEXT}, 1, False, 1),
        ({"target_key": IN_CONTEXT}, 1, True, 5),
        ({"target_key": IN_CONTEXT}, 2, False, 5),
        ({"target_key": CPU.log_kind().key}, 1, False, 5),
        ({"target_key": "llvm-of-another-machine"}, 1, False, 5),
        ({"target": "cuda"}, 1, False, 5),
        ({"target_key": IN_CONTEXT, "fresh": True}, 1, False, 5),
        ({"target_key": IN_CONTEXT, "board": "phone"}, 1, True, 1),
    ],
    ids=[
        "in context",
        "asked for",
        "on other threads",
        "in a loop",
        "elsewhere",
        "on a GPU",
        "on other days",
        "on a board",
    ],
)
def test_kernels_are_timed_again_unless_they_were_timed_here_in_context_on_as_many_threads(
    workspace: Workspace,
    make_job: Callable[..., JobPaths],
    monkeypatch: pytest.MonkeyPatch,
    job: dict[str, str],
    threads: int,
    again: bool,
    count: int,
) -> None:
    monkeypatch.setattr(request.capacity, "threads", lambda config: threads)
    paths = make_job(**job)
    spec = formats.read(JobSpec, paths.spec)
    asked = of(workspace, paths, retime=again)
    assert (asked.contenders, asked.disturbed_only) == (count, count == 1 and not spec.board)


@pytest.mark.parametrize(
    ("times", "disturbed", "count"),
    [
        ((10.0, 12.0), ("", ""), 1),
        ((10.0, 12.0), ("", "by another process"), 5),
        ((10.0, 12.0), ("by another process", ""), 5),
        ((10.0, 14.0), ("", "by another process"), 1),
        ((10.0,), ("by another process",), 1),
    ],
    ids=["quiet", "the second", "the first", "too slow a second", "no other"],
)
def test_those_of_which_a_measurement_was_disturbed_are_timed_again_wherever_they_were_timed(
    workspace: Workspace,
    make_job: Callable[..., JobPaths],
    monkeypatch: pytest.MonkeyPatch,
    times: tuple[float, ...],
    disturbed: tuple[str, ...],
    count: int,
) -> None:
    monkeypatch.setattr(request.capacity, "threads", lambda config: 1)
    paths = make_job(target_key=IN_CONTEXT)
    task = formats.read(JobSpec, paths.spec).tasks[0]
    log = TuningLog(workspace.tuning_log(IN_CONTEXT, task.hash).records)
    pairs = zip(times, disturbed, strict=True)
    log.add([Trial(f"c{us}", [[], []], [], (us,), None, "j", 0, 0.0, disturbed=by) for us, by in pairs])
    asked = of(workspace, paths, retime=False)
    assert (asked.contenders, asked.disturbed_only) == (count, True)
