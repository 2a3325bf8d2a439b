"""A GPU keeps the contract of devices: `test_contract.py` runs this on the stand-in, whose kernels run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.stages import measure
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
