"""CPUs and devices of nodes: different names for the daemon, the node's own there, one kind for like hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune import devices
from autotune.config import Config
from autotune.device_settings import BoardSettings
from autotune.devices import Cpu, Gpu
from autotune.machine.gpus import CudaDevice
from autotune.machine.hardware import cpu_model
from autotune.processes.messages import RunStage
from autotune.settings import MachineSettings, MeasureSettings
from autotune.storage import device_kind
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.workers.cluster.host import NodeFacts
from autotune.workers.cluster.places import Place

EPYC = "AMD EPYC 25/17/1"
XEON = "Intel Xeon 6/143/8"
H100 = CudaDevice(1, "NVIDIA H100", "sm_90", "GPU-1")


def kind_of_nodes(workspace: Workspace, spec: JobSpec) -> str:
    return devices.of_job(spec, Config()).kind_of_nodes(workspace, spec)


def place(number: int, model: str = EPYC, gpus: tuple[CudaDevice, ...] = (), devices: tuple[str, ...] = ()) -> Place:
    return Place(f"n{number}", number, NodeFacts((0, 1, 5), (5,), model, gpus), devices)


def request(cpus: tuple[int, ...], device: str = "") -> RunStage:
    return RunStage(1, "0001-net", 0, 0, "measure", cpus, 60.0, ("cpu-0",), device=device)


def test_every_name_of_the_daemon_is_one_of_the_node() -> None:
    one = place(1, gpus=(H100,), devices=("npu",))
    two = place(2, gpus=(H100,))
    first = one.serving(Config())
    second = two.serving(Config())
    assert not {*first.cpus, *first.devices} & {*second.cpus, *second.devices}
    assert (first.cpus, first.measure_cpus) == ((10_000, 10_001, 10_005), (10_005,))
    locals_ = {device: one.local(request(first.cpus, device), "", Config()) for device in first.devices}
    assert sorted(item.device for item in locals_.values()) == ["cpu", "cuda:1", "simulated:npu"]
    assert {item.cpus for item in locals_.values()} == {(0, 1, 5)}
    assert one.has(request(first.cpus)) and not one.has(request(second.cpus))


def test_nodes_with_simulated_cpus_measure_on_nothing_real() -> None:
    shown = place(1, gpus=(H100,), devices=("npu",)).serving(Config(machine=MachineSettings(simulated_cpus=3)))
    assert shown.devices == ("simulated:n1/npu",)


def test_a_job_is_measured_on_hardware_like_that_which_it_is_for(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    def kinds(place: Place, threads: int = 2) -> set[str]:
        shown = place.serving(Config(measure=MeasureSettings(threads=threads)))
        return {device.partition(":")[0] for device in shown.devices}

    target = {"kind": "llvm", "mcpu": "znver3", "num-cores": 2}
    amd = read_spec(make_job(1, machine=EPYC))
    two = replace(amd, target=target)
    assert kind_of_nodes(workspace, two) in kinds(place(1)) and kind_of_nodes(workspace, two) in kinds(place(2))
    assert kind_of_nodes(workspace, two) not in kinds(place(1, XEON)), "two kinds of nodes never mix in a log"
    assert kind_of_nodes(workspace, two) not in kinds(place(1), threads=4)
    assert kind_of_nodes(workspace, amd) == Cpu.kind_of_model(EPYC, 1)
    assert kind_of_nodes(workspace, read_spec(make_job(2))) == Cpu.kind_of_model(cpu_model(), 1)


def test_a_node_of_another_cpu_model_only_compiles_for_the_target() -> None:
    config = Config(measure=MeasureSettings(threads=2))
    amd = place(1)
    intel = place(2, XEON)
    wanted = Cpu.kind_of_model(EPYC, 2)
    assert not amd.local(request((10_000,)), wanted, config).cross
    assert intel.local(request((20_000,)), wanted, config).cross
    assert not intel.local(request((20_000,)), Gpu.kind_of_model(H100.name), config).cross, "a host compiles for GPUs"


def test_boards_are_on_the_nodes_that_have_their_resource() -> None:
    board = BoardSettings(key="rk3588", target='{"kind": "llvm", "num-cores": 4}', count=3)
    config = Config(boards={"phone-a": board})
    facts = NodeFacts((0, 1), (), EPYC)
    near = Place.of("n1", 1, facts, {"CPU": 2.0, "phone-a": 2.0}, config)
    far = Place.of("n2", 2, facts, {"CPU": 2.0}, config)
    boards = [name for name in near.serving(config).devices if name.startswith("rpc-")]
    assert boards == ["rpc-phone-a:n1/0", "rpc-phone-a:n1/1"]
    assert near.local(request((10_000,), boards[1]), "rpc-phone-a", config).device == "rpc-phone-a:1"
    assert not any(name.startswith("rpc-") for name in far.serving(config).devices)
    assert not far.local(request((20_000,)), "rpc-phone-a", config).cross
    plenty = Place.of("n3", 3, facts, {"phone-a": 9.0}, config)
    assert plenty.boards == {"phone-a": 3}, "no more than the settings say"


def test_a_job_for_a_gpu_is_measured_on_gpus_of_its_model(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    kind = DeviceKind({"kind": "cuda", "arch": "sm_90"}, H100.name, {})
    device_kind.note(workspace, kind)
    spec = read_spec(make_job(1, target="cuda", target_key=kind.key))
    assert kind_of_nodes(workspace, spec) == Gpu.kind_of_model(H100.name)
    assert f"{Gpu.kind_of_model(H100.name)}:n1/1" in place(1, gpus=(H100,)).serving(Config()).devices


@pytest.mark.parametrize(
    ("device", "simulated", "names"),
    [
        ("simulated:npu", True, ["simcpu-n1-0", "simulated:npu-n1"]),
        ("simulated:npu", False, ["cpu-0", "simulated:npu-n1"]),
        ("cuda:1", False, ["cpu-0", "cuda:1"]),
        ("cpu", False, ["cpu-0"]),
        ("", True, ["simcpu-n1-0"]),
    ],
)
def test_nodes_share_the_real_resources_of_a_machine_and_only_those(
    device: str, simulated: bool, names: list[str]
) -> None:
    config = Config(machine=MachineSettings(simulated_cpus=int(simulated)))
    assert devices.lease_names(config, (0,), device, node="n1") == names
