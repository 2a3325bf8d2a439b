"""Every device that can be had here keeps the contract that `autotune.testing` ships."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import devices
from autotune.commands.submit.publish import Submission, submit
from autotune.config import load_config
from autotune.options import TuningOptions
from autotune.stages.benches import BENCHES
from autotune.storage import formats
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths, Workspace
from autotune.testing import DeviceContract, DeviceJob

from ..cuda_stand_in import StandIn
from ..cuda_stand_in.on_cpu import image
from ..rpc_lab import Lab

MakeJob = Callable[..., JobPaths]
FAST = "\n[measure]\nrepeats = 1\nmin_repeat_ms = 1\nverify = true\n"


def product() -> Any:
    """Return a product of matrices, for which every device has many schedules."""
    import tvm
    from tvm import te

    left, right = (te.placeholder((64, 64), "float32", name=name) for name in ("left", "right"))
    axis = te.reduce_axis((0, 64), name="axis")
    both = te.compute((64, 64), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis), name="both")
    return tvm.IRModule({"main": te.create_prim_func([left, right, both])})


def job_for(workspace: Workspace, paths: JobPaths, target: dict[str, Any], measured_on: str) -> DeviceJob:
    """Give a job a target and a task that multiplies matrices."""
    from autotune.tvm_backend.search.tasks import task_hash, write_program

    config = load_config(workspace.config)
    spec = replace(formats.read(JobSpec, paths.spec), target=target)
    device = devices.of_job(spec, config)
    BENCHES[type(device)].load(workspace)
    program = product()
    tasks = (replace(spec.tasks[0], hash=task_hash(program)),)
    formats.write(paths.spec, replace(spec, tasks=tasks, target_key=device.log_kind().key))
    paths.tasks.mkdir()
    write_program(paths.task(0), program)
    return DeviceJob(workspace, paths, measured_on)


class TestCpu(DeviceContract):
    @pytest.fixture
    def job(self, workspace: Workspace, make_job: MakeJob) -> DeviceJob:
        workspace.config.write_text(workspace.config.read_text() + FAST)
        target = {"kind": "llvm", "mcpu": "x86-64", "num-cores": 1}
        return job_for(workspace, make_job(tasks=1), target, "cpu")


class TestBoard(DeviceContract):
    @pytest.fixture
    def job(self, workspace: Workspace, make_job: MakeJob, lab: Lab) -> DeviceJob:
        lab.start_server()
        workspace.config.write_text(workspace.config.read_text() + FAST + lab.section(request_timeout_s=20))
        target = load_config(workspace.config).boards["phone"].description
        return job_for(workspace, make_job(tasks=1, board="phone"), target, "rpc-phone:0")


class TestSimulated(DeviceContract):
    @pytest.fixture
    def job(self, workspace: Workspace, make_job: MakeJob, simulate: Callable[..., None]) -> DeviceJob:
        simulate(speed=1000.0)
        paths = make_job(tasks=1, target="simulated")
        spec = formats.read(JobSpec, paths.spec)
        key = devices.for_target(spec.target).log_kind().key
        formats.write(paths.spec, replace(spec, target_key=key))
        return DeviceJob(workspace, paths, "simulated:gpu0")


class TestCommand(DeviceContract):
    @pytest.fixture
    def job(self, workspace: Workspace, tmp_path: Path) -> DeviceJob:
        space = tmp_path / "space.toml"
        space.write_text("parameters.ms = [1, 2, 3, 4]\n[measure]\ncommand = ['echo', '{ms}']\nrepeats = 1\n")
        config = load_config(workspace.config)
        spec = submit(workspace, config, Submission(space, TuningOptions(trials=9)), lambda step: None)
        return DeviceJob(workspace, workspace.job(spec.id, spec.name), "cpu")

    def test_every_name_says_what_device_it_is(self, job: DeviceJob) -> None:
        """It lends no device: it measures on those of models, so that both wait for each other."""
        assert type(job.device).lent(job.config) == ()

    test_no_two_devices_share_a_lease = test_every_name_says_what_device_it_is


@pytest.mark.slow
@pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")
def test_a_gpu_keeps_it_on_the_stand_in(computing_gpu: StandIn) -> None:
    """In a process of its own, for the libraries of CUDA are chosen when a process starts."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(Path(__file__).with_name("on_gpu.py")),
    ]
    environment = {**os.environ, **computing_gpu.environment()}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout
