"""The steps of an export as the user reads them: numbered, and verified before anything takes long."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import Busy
from autotune.machine import gpus
from autotune.machine.leases import cpu_name, lease
from autotune.processes.messages import ExportRequest
from autotune.tvm_backend.export import progress
from autotune.tvm_backend.export.progress import Leases, NumberedSteps, plan


def request(**given: Any) -> ExportRequest:
    whole = ExportRequest("w", "j", "o", (0,), (0,), 1, "l", 1e-3, 20, 5.0, 8, ())
    return dataclasses.replace(whole, **given)


def test_verification_comes_before_candidates_are_built_again() -> None:
    steps = plan(request(untuned=True))
    assert steps.index(progress.VERIFYING) < steps.index(progress.BUILDING) < steps.index(progress.UNTUNED)
    assert steps[-1] == progress.COMPARING


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, {progress.UNTUNED}),
        ({"contenders": 1, "untuned": True}, {progress.BUILDING, progress.TIMING, progress.COMPILING_AGAIN}),
    ],
    ids=["nobody asked for the untuned model", "no candidate is timed again"],
)
def test_what_is_not_done_is_not_counted(given: dict[str, Any], missing: set[str]) -> None:
    assert set(plan(request(untuned=True))) - set(plan(request(**given))) == missing


def test_a_quick_export_ends_when_the_library_is_verified() -> None:
    assert plan(request(quick=True))[-1] == progress.VERIFYING


def test_each_step_has_its_number_and_a_wait_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, bool]] = []
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    steps = NumberedSteps(lambda step, waiting=False: told.append((step, waiting)), ("reading", "building"))
    steps.wait("a CPU")
    steps.begin("building")
    steps.done(1, 9)
    now = 6.0
    steps.done(4, 9)
    assert told == [
        ("waiting for a CPU", True),
        ("step 2 of 2: building", False),
        ("step 2 of 2: building (4 of 9 done)", False),
    ]


def test_a_gpu_is_timed_beside_work_on_all_cpus_but_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "pin", lambda cpus: None)
    monkeypatch.setattr(progress, "gpu_of", lambda spec: gpus.CudaDevice(0, "A GPU", "sm_90"))
    folder = tmp_path / "locks"
    told: list[str] = []
    given = request(lock_folder=str(folder), cpus=(0, 1, 2))
    leases = Leases(given, None, NumberedSteps(lambda step, waiting=False: told.append(step), ()))  # type: ignore[arg-type]
    with lease(folder, [cpu_name(0), cpu_name(2)], wait_s=0), leases.timing():
        for name in (cpu_name(1), "cuda:0"):
            with pytest.raises(Busy):
                lease(folder, [name], wait_s=0)
    assert not told, "nothing was waited for"


def test_all_cpus_that_are_free_are_taken_for_what_can_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "pin", lambda cpus: None)
    folder = tmp_path / "locks"
    told: list[str] = []
    given = request(lock_folder=str(folder), cpus=(0, 1, 2))
    leases = Leases(given, None, NumberedSteps(lambda step, waiting=False: told.append(step), ()))  # type: ignore[arg-type]
    with lease(folder, [cpu_name(1)], wait_s=0), leases.free_cpus() as count:
        assert count == 2
    with leases.free_cpus() as count:
        assert count == 3
    assert not told, "nothing was waited for"
