"""A GPU keeps the contract of devices: `test_contract.py` runs this on the stand-in, whose kernels run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.processes.isolate import KeptChild
from autotune.stages import measure
from autotune.stages.bench import OpenDevice, Timer
from autotune.storage.formats import Candidate
from autotune.storage.paths import JobPaths, Workspace
from autotune.testing import DeviceContract, DeviceJob

from .test_contract import FAST, job_for


class TestGpu(DeviceContract):
    @pytest.fixture
    def job(self, workspace: Workspace, make_job: Callable[..., JobPaths]) -> DeviceJob:
        from autotune.tvm_backend.load import load_tvm
        from autotune.tvm_backend.target import resolve_target

        load_tvm("cuda")  # before another package brings a runtime of CUDA of its own
        workspace.config.write_text(
            workspace.config.read_text() + FAST + "gpu_spin_up_ms = 1\nwarmup = 0\ntimeout_s = 4.0\n"
        )
        target = resolve_target("cuda", threads=1).description
        return job_for(workspace, make_job(tasks=1, target="cuda"), target, "cuda:0")

    def test_the_start_of_a_process_on_a_gpu_is_no_candidates_time(self, job: DeviceJob) -> None:
        """The first module that a process loads takes five seconds here, and a candidate may take four."""
        bench = self.built(job)
        fault = Path(os.environ["AUTOTUNE_CUDA_STAND_IN"], "fault")
        fault.write_text("cold")
        try:
            told = measure.run(bench.stage)
        finally:
            fault.unlink()
        assert told["failed"] == 0

    def test_one_runner_times_the_candidates_of_two_measurements(self, job: DeviceJob) -> None:
        """A context takes a second to make, and a GPU that has cooled down a fifth of one to be as fast as it can."""
        kept = KeptChild()
        bench = type(self.built(job))(replace(job.stage("measure"), kept=kept))
        candidates = bench.stage.file.candidates
        try:
            first, second = (list(bench.results(candidates, None, _with_its_runner, [])) for _ in range(2))
        finally:
            kept.end()
        assert [outcome.kind for _, outcome in first + second] == ["ok"] * 2 * len(candidates)
        assert len({tuple(outcome.value) for _, outcome in first + second}) == 1


def _with_its_runner(device: OpenDevice) -> Timer:
    """Time candidates, and return where: the process, and the runner in it."""

    def timed(candidate: Candidate) -> Any:
        assert min(device.time(candidate, None)) > 0
        return os.getpid(), id(device.runner)  # type: ignore[attr-defined]

    return timed
