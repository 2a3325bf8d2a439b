"""A GPU keeps the contract of devices: `test_contract.py` runs this on the stand-in, which computes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.storage.paths import JobPaths, Workspace
from autotune.testing import DeviceContract, DeviceJob

from .test_contract import FAST, job_for


class TestGpu(DeviceContract):
    @pytest.fixture
    def job(self, workspace: Workspace, make_job: Callable[..., JobPaths]) -> DeviceJob:
        from autotune.tvm_backend.target import resolve_target

        workspace.config.write_text(workspace.config.read_text() + FAST.replace("true", "false"))
        target = resolve_target("cuda", threads=1).description
        return job_for(workspace, make_job(tasks=1, target="cuda"), target, "cuda:0")
