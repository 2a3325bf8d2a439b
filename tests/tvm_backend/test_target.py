"""What a target is known to have."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from autotune.errors import BadTarget, MachineProblem
from autotune.machine.gpus import CudaDevice
from autotune.tvm_backend import target as module
from autotune.tvm_backend.target import check_here, check_tensor_cores, device_kind, resolve_target, vector_registers

X86 = [("nehalem", (4, 16)), ("znver3", (8, 16)), ("skylake-avx512", (16, 32))]
TARGETS = [({"kind": "llvm", "mcpu": mcpu}, found) for mcpu, found in X86] + [
    ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, (4, 32)),
    ({"kind": "cuda", "arch": "sm_80"}, (1, 255)),
]


@pytest.mark.parametrize(("description", "found"), TARGETS)
def test_vector_registers_are_those_of_the_instruction_set(description, found):
    import tvm

    assert vector_registers(tvm.target.Target(description)) == found


@pytest.mark.parametrize(
    ("text", "asked"),
    (
        ("llvm -mcpu=znver3", {"mcpu": "znver3"}),
        ("llvm -mattr=+avx2,+fma -num-cores=3", {"mattr": ["+avx2", "+fma"], "num-cores": 3}),
    ),
)
def test_options_may_follow_the_kind(text, asked):
    found = resolve_target(text, threads=2).description
    assert {**found, **asked} == found
    assert resolve_target(json.dumps({"kind": "llvm", **asked}), threads=2).description == found


@pytest.mark.parametrize("text", ("llvm znver3", "llvm -mcpu", "llvm -=3"))
def test_what_is_no_option_is_refused_by_name(text):
    with pytest.raises(BadTarget, match=f"{text.split()[1]}' is no option such as -mcpu=znver3"):
        resolve_target(text, threads=1)


class TestAnotherMachine:
    CPU: ClassVar = {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}
    GPU: ClassVar = {"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm"}}

    @pytest.fixture
    def moved(self, monkeypatch):
        """What is done to go to a machine with other hardware."""

        def move():
            monkeypatch.setattr(module, "cpu_model", lambda: "Another CPU 6/143/8")
            monkeypatch.setattr(module, "cuda_devices", lambda: (CudaDevice(0, "NVIDIA H200", "sm_90"),))

        return move

    @pytest.mark.parametrize("target", [CPU, GPU])
    def test_a_job_of_this_machine_is_at_home_and_one_of_another_key_is_not(self, target):
        key = device_kind(target).key
        check_here(json.loads(json.dumps(target)), key)
        with pytest.raises(MachineProblem):
            check_here(target, key[:-1] + ("1" if key.endswith("0") else "0"))

    def test_one_of_another_cpu_is_not_and_both_are_named(self, moved):
        key = device_kind(self.CPU).key
        moved()
        with pytest.raises(MachineProblem, match=r"on another machine \(Old CPU; this is Another CPU 6/143/8\)"):
            check_here(self.CPU, key, "Old CPU")

    def test_an_old_job_does_not_say_which_it_was(self, moved):
        key = device_kind(self.CPU).key
        moved()
        with pytest.raises(
            MachineProblem, match=r"on another machine, or with another TVM, .* autotune retry JOB --here"
        ):
            check_here(self.CPU, key)

    def test_a_job_for_cuda_may_get_its_gpu_later_but_no_other_one(self, moved, monkeypatch):
        early = device_kind(self.GPU).key
        moved()
        check_here(self.GPU, early)
        key = device_kind(self.GPU).key
        monkeypatch.setattr(module, "cuda_devices", lambda: (CudaDevice(0, "NVIDIA H100", "sm_90"),))
        with pytest.raises(MachineProblem, match="for a GPU that this machine does not have"):
            check_here(self.GPU, key)

    def test_what_does_not_exist_is_everywhere(self):
        check_here({"kind": "simulated"}, "simulated-0123456789")
        with pytest.raises(MachineProblem):
            check_here(self.CPU, "simulated-0123456789")


class TestCudaKeys:
    """What a GPU takes does not depend on the CPU beside it."""

    def test_two_hosts_share_the_logs_of_a_gpu(self):
        hosts = ({"kind": "llvm", "mcpu": "znver4"}, {"kind": "llvm", "mcpu": "skylake"})
        one, other = ({"kind": "cuda", "arch": "sm_90", "host": host} for host in hosts)
        assert device_kind(one).key == device_kind(other).key

    def test_an_architecture_with_a_suffix_is_the_one_that_tvm_knows(self):
        found = module.resolve_target('{"kind": "cuda", "arch": "sm_90a"}', threads=1)
        assert found.description["arch"] == "sm_90"


@pytest.mark.parametrize("arch", ["sm_70", "", None])
def test_fp16_needs_tensor_cores_that_tvm_uses(arch):
    check_tensor_cores({"kind": "cuda", "arch": "sm_75"})
    with pytest.raises(BadTarget, match="from sm_75 on"):
        check_tensor_cores({"kind": "cuda"} if arch is None else {"kind": "cuda", "arch": arch})
