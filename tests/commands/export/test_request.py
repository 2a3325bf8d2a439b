"""Kernels are timed again where the queue has timed them otherwise than the library will run them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune import devices
from autotune.commands.export import request
from autotune.config import Config
from autotune.settings import ExportSettings
from autotune.storage import formats
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths

CONFIG = Config(export=ExportSettings(contenders=5))
CPU = devices.for_target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1})
IN_CONTEXT = CPU.kind_holding(1000).key


@pytest.mark.parametrize(
    ("job", "threads", "again", "count"),
    [
        ({"target_key": IN_CONTEXT}, 1, False, 1),
        ({"target_key": IN_CONTEXT}, 1, True, 5),
        ({"target_key": IN_CONTEXT}, 2, False, 5),
        ({"target_key": CPU.log_kind().key}, 1, False, 5),
        ({"target_key": "llvm-of-another-machine"}, 1, False, 5),
        ({"target": "cuda"}, 1, False, 5),
        ({"target_key": IN_CONTEXT, "board": "phone"}, 1, True, 1),
    ],
    ids=["in context", "asked for", "on other threads", "in a loop", "elsewhere", "on a GPU", "on a board"],
)
def test_kernels_are_timed_again_unless_they_were_timed_here_in_context_on_as_many_threads(
    make_job: Callable[..., JobPaths],
    monkeypatch: pytest.MonkeyPatch,
    job: dict[str, str],
    threads: int,
    again: bool,
    count: int,
) -> None:
    monkeypatch.setattr(request.capacity, "threads", lambda config: threads)
    spec = formats.read(JobSpec, make_job(**job).spec)
    assert request.contenders(CONFIG, spec, again=again) == count
