"""What of the machine is lent, and what stages lease of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune import devices
from autotune.commands.export.export import export
from autotune.commands.submit.publish import Submission, preview, publish
from autotune.config import Config
from autotune.daemon import capacity
from autotune.device_settings import BoardSettings, DeviceSettings
from autotune.devices import Board, Cpu
from autotune.errors import BadInput, BadState, BadTarget
from autotune.machine.hardware import usable_cpus
from autotune.options import TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.settings import MachineSettings, MeasureSettings
from autotune.storage.formats import JobSpec, TaskSpec, read
from autotune.storage.paths import JobPaths, Workspace

SIMULATED = {"gpu0": DeviceSettings(), "big": DeviceSettings()}


def test_simulated_devices_stand_beside_the_real_ones_and_simulated_cpus_lend_nothing_real() -> None:
    machine = capacity.machine(Config(devices=SIMULATED))
    assert machine.cpus == usable_cpus()
    assert machine.kinds["simulated"] == ("simulated:gpu0", "simulated:big")
    assert "cpu" in machine.kinds
    config = Config(machine=MachineSettings(simulated_cpus=32), devices=SIMULATED)
    assert capacity.machine(config).cpus == tuple(range(32))
    assert set(capacity.machine(config).kinds) == {"simulated"}
    assert devices.lease_names(config, (0, 3), "simulated:gpu0") == ["simcpu-0", "simcpu-3", "simulated:gpu0"]


def test_real_cpus_are_leased_by_their_number_and_cpu_is_no_device_of_its_own() -> None:
    assert devices.lease_names(Config(), (1,), "") == ["cpu-1"]
    assert devices.lease_names(Config(), (0, 1), "cpu") == ["cpu-0", "cpu-1"]
    assert devices.lease_names(Config(), (1,), "cuda:0") == ["cpu-1", "cuda:0"]


def test_boards_are_devices_that_are_leased_by_tracker_and_key() -> None:
    board = BoardSettings(tracker="lab:9190", key="rk3588", count=2, request_timeout_s=5.0)
    config = Config(boards={"phone": board})
    phone = Board({}, "phone", board)
    assert capacity.machine(config).kinds["rpc-phone"] == ("rpc-phone:0", "rpc-phone:1")
    assert devices.lease_names(config, (1,), "rpc-phone:1") == ["cpu-1", "rpc-lab_9190-rk3588-1"]
    assert capacity.limit_s(config, "measure", 8, phone) > 3 * 8 * (5 + 20)  # or slow boards would end the stage
    assert capacity.limit_s(config, "build", 9, phone) > capacity.limit_s(config, "build", 8, phone)
    assert capacity.limit_s(config, "build", 8, phone) == capacity.limit_s(config, "build", 8, Cpu({}))


def test_a_job_for_boards_is_measured_on_them_alone(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    spec = read(JobSpec, make_job(board="phone").spec)
    assert capacity.job_device(workspace, Config(), spec) == "rpc-phone"


def test_the_cpus_kept_for_measurements_are_the_last_and_the_other_threads_of_their_cores_are_lent_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "lent_cpus", lambda slots: (2, 3, 5, 7))
    machine = capacity.machine(Config(machine=MachineSettings(measure_cpus=1)))
    assert (machine.shared_cpus, machine.cpu_device) == ((2, 3, 5), (7,))
    assert capacity.threads(Config(machine=MachineSettings(measure_cpus=1))) == 1
    assert capacity.threads(Config(machine=MachineSettings(measure_cpus=1), measure=MeasureSettings(threads=3))) == 3
    assert capacity.threads(Config()) == 4
    monkeypatch.setattr(capacity, "lent_cpus", lambda slots: tuple(range(8)))
    monkeypatch.setattr(capacity, "kept_cpus", lambda lent, count: ((3,), (7,)))
    machine = capacity.machine(Config(machine=MachineSettings(measure_cpus=1)))
    assert (machine.shared_cpus, machine.cpu_device) == ((0, 1, 2, 4, 5, 6), (3,))


def test_simulated_cpus_take_no_job_that_would_measure_and_a_simulated_device_has_no_export(
    workspace: Workspace, make_job: Callable[..., JobPaths], tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"x")
    config = Config(machine=MachineSettings(simulated_cpus=4), devices=SIMULATED)
    with pytest.raises(BadTarget, match="takes jobs for --target simulated only"):
        preview(Submission(model), config, print)
    with pytest.raises(BadState, match="0001-net was tuned for a device that does not exist"):
        export(workspace, Config(), make_job(target="simulated"), workspace.root / "out", print)
    assert not (workspace.root / "out").exists()


def test_an_export_writes_over_no_file_of_the_users(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    mine = workspace.root / "out" / "run.py"
    mine.parent.mkdir()
    mine.write_text("print('mine')")
    with pytest.raises(BadInput, match=r"out has a run.py that autotune did not make; give a new folder"):
        export(workspace, Config(), make_job(), mine.parent, print)
    assert mine.read_text() == "print('mine')"
    assert [path.name for path in mine.parent.iterdir()] == ["run.py"]


def test_a_job_is_published_without_a_model_where_its_tasks_are_known(workspace: Workspace) -> None:
    task = TaskSpec("conv", "0" * 16, 1, "1x8", 0.5, True)
    imported = ImportAnswer({"kind": "simulated"}, "simulated-x", (), (task,), (0,))
    spec = publish(workspace, Config(), Submission(Path("net"), TuningOptions(target="simulated", trials=8)), imported)
    (paths,) = workspace.job_list()
    assert read(JobSpec, paths.spec) == spec
    assert [path.name for path in paths.stage_files()] == ["t000-r0000.json"]
