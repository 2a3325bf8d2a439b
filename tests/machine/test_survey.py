"""What `doctor` says of machines of other shapes, each time with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.machine.survey import Remark, Survey

CPU = "sys/devices/system/cpu"
DISK = "9 1 0:2 / / rw - ext4 a rw"
PRIVATE = {"proc/1/mountinfo": DISK, "proc/self/mountinfo": f"{DISK}\n10 9 0:3 / /locks rw - tmpfs b rw"}
GROUP = {"proc/self/cgroup": "0::/", "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 none rw"}
ALL = (0, 1, 2, 3)
THREADS = {f"{CPU}/cpu{n}/topology/core_cpus_list": f"{n % 2},{n % 2 + 2}" for n in ALL}
NODES = {f"sys/devices/system/node/node{n}/cpulist": f"{2 * n}-{2 * n + 1}" for n in (0, 1)}


def remarks(root: Path, shared=ALL, measured=ALL) -> list[Remark]:
    return Survey(shared, measured, Path("/locks"), ALL, root).remarks()


def test_a_plain_machine_gives_no_cause(plant):
    assert remarks(plant({"proc/stat": "cpu 100 0 100 9000 0 0 0 3 0 0"})) == []


@pytest.mark.parametrize(
    ("files", "fact", "remedy"),
    [
        (PRIVATE, "the locks are seen by few: /locks is private", "lock_dir"),
        ({**GROUP, "sys/fs/cgroup/cpu.max": "250000 100000"}, "a quota of 2.5 CPUs' time on 4 CPUs", "cpuset"),
        ({**GROUP, "sys/fs/cgroup/memory.max": 2 << 30}, "a limit of 2.0 GiB of memory", "raise it"),
        (THREADS, "use 4 hyper-threads of 2 cores", "threads = 2"),
        ({"sys/devices/cpu_atom/cpus": "2-3"}, "efficiency cores too: cpu 2, 3", "cpu_slots = 2"),
        (NODES, "2 NUMA nodes, 0, 1", "numactl"),
        ({f"{CPU}/cpu3/cpufreq/scaling_governor": "powersave"}, "governor powersave", "cpupower"),
        ({"proc/stat": "cpu 100 0 100 700 0 0 0 100 0 0"}, "took 10% of its CPU time", "CPUs of its own"),
    ],
)  # fmt: skip
def test_each_has_its_line_and_its_remedy(plant, files, fact, remedy):
    (remark,) = remarks(plant(files))
    assert fact in remark.fact
    assert remedy in remark.remedy


def test_enough_memory_is_for_information(plant):
    (remark,) = remarks(plant({**GROUP, "sys/fs/cgroup/memory.max": 64 << 30}))
    assert remark.fact.startswith("a limit of 64.0 GiB of memory (")
    assert not remark.remedy


def test_kept_cpus_that_share_a_core_with_a_search(plant):
    root = plant(THREADS)
    (remark,) = remarks(root, shared=(0, 1, 2), measured=(3,))
    assert remark.fact == "measurements on cpu 3 share a core with other stages"
    assert remarks(root, shared=(0, 2), measured=(1,)) == []
