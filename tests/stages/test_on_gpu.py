"""Stages of a job for GPUs that compute on CPUs open no GPU."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from autotune.config import Config
from autotune.machine.gpus import CudaDevice, visible
from autotune.processes.messages import RunStage
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import Kind, StageFile
from autotune.storage.paths import JobPaths, Workspace

GPU = CudaDevice(0, "NVIDIA H100", "sm_90", "GPU-11")


@pytest.mark.parametrize("kind", ["search", "build", "train"])
def test_a_stage_without_a_gpu_sees_none(
    workspace: Workspace, make_job: Callable[..., JobPaths], monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """XGBoost would open the GPU that another stage measures on."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    paths = make_job(target="cuda")
    formats.write(paths.stage(0, 0), StageFile(0, 0, kind))
    request = RunStage(0, paths.folder.name, 0, 0, kind, (0,), 60.0)
    Stage.load(workspace, Config(), request).bench.check_device()
    assert visible([GPU], os.environ["CUDA_VISIBLE_DEVICES"]) == ()
