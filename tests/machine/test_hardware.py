"""The CPUs that tuning uses, of those there are."""

from __future__ import annotations

import os

import pytest

from autotune.machine import hardware
from autotune.machine.hardware import allowed_cpus, cache_bytes, cpu_model, kept_cpus, lent_cpus, usable_cpus
from autotune.tvm_backend.isa.instruction_sets import cpu_flags

_CPU = "sys/devices/system/cpu"
_THREADS = {f"{_CPU}/cpu{n}/topology/core_cpus_list": f"{n % 4},{n % 4 + 4}" for n in range(8)}
_GROUP = {"proc/self/cgroup": "0::/", "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 none rw"}
_X86 = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: avx2 avx512_vnni

processor\t: 1
"""
_ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd asimddp i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1

"""


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    monkeypatch.setattr(hardware, "allowed_cpus", lambda: tuple(range(8)))


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("max", tuple(range(8))), ("200000", (0, 1)), ("190000", (0,)), ("199900", (0, 1)), ("50000", (0,))],
)
def test_a_container_gets_as_many_cpus_as_it_has_time_for(plant, quota, cpus):
    assert usable_cpus(plant({**_THREADS, **_GROUP, "sys/fs/cgroup/cpu.max": f"{quota} 100000"})) == cpus


def test_a_process_may_run_on_the_cpus_that_it_was_pinned_to():
    last = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {last})
    assert allowed_cpus() == (last,)


def test_slots_are_cores_before_they_are_second_threads(plant):
    root = plant(_THREADS)
    assert lent_cpus(0, root) == tuple(range(8))
    assert lent_cpus(5, root) == (0, 1, 2, 3, 4)
    assert lent_cpus(99, root) == tuple(range(8))


def test_kept_cpus_leave_one_for_other_stages(plant):
    root = plant({"proc/stat": ""})
    assert kept_cpus((0, 1), 4, root) == ((1,), ())
    assert kept_cpus((0,), 1, root) == ((), ())


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        (_X86, "AMD EPYC 25/17/1", {"avx2", "avx512_vnni"}),
        (_ARM, "Arm CPU 0x41/0xd40/0x1/1", {"fp", "asimd", "asimddp", "i8mm"}),
    ],
    ids=["x86", "Arm"],
)
def test_the_kernel_says_which_cpu_there_is_and_what_it_can_do(plant, text, model, flags):
    root = plant({"proc/cpuinfo": text})
    assert cpu_model(root) == model
    assert cpu_flags(root) == flags


def test_a_cache_that_cpus_share_counts_once(plant):
    def cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
        folder = f"{_CPU}/cpu{cpu}/cache/index{index}"
        facts = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}
        return {f"{folder}/{name}": text for name, text in facts.items()}

    files = dict[str, str]()
    for cpu in range(4):
        pair = "0,2" if cpu % 2 == 0 else "1,3"
        files |= cache(cpu, 0, 1, "Data", "48K", pair) | cache(cpu, 1, 1, "Instruction", "32K", pair)
        files |= cache(cpu, 2, 2, "Unified", "2048K", pair) | cache(cpu, 3, 3, "Unified", "300M", "0-3")
    root = plant(files)
    assert cache_bytes(2, (0, 2), root) == 2 * 2**20
    assert cache_bytes(2, (0, 1, 2), root) == 4 * 2**20
    assert cache_bytes(1, (0, 1), root) == 96 * 2**10
    assert cache_bytes(3, range(4), root) == 300 * 2**20
    assert cache_bytes(4, range(4), root) == 0
