"""A container's limits, read from trees as the kernel shows them."""

from __future__ import annotations

import pytest

from autotune.machine import cgroups

V2 = {
    "proc/self/cgroup": "0::/system.slice/night.service",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate",
    "sys/fs/cgroup/system.slice/night.service/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 1500000",
}
V1 = {
    "proc/self/cgroup": "4:memory:/box/inner\n2:cpu,cpuacct:/box/inner\n0::/",
    "proc/self/mountinfo": (
        "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 25 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    ),
}


class TestVersion2:
    def test_the_quota_is_in_cpus_and_names_its_file(self, plant):
        file = "sys/fs/cgroup/system.slice/night.service/cpu.max"
        root = plant({**V2, file: "max 100000"})
        assert (cgroups.cpu_quota(root), cgroups.memory_limit(root)) == (None, None)
        assert cgroups.throttled_s(root) == pytest.approx(1.5)
        limit = cgroups.cpu_quota(plant({**V2, file: "150000 100000"}))
        assert limit is not None and (limit.amount, limit.file) == (1.5, root / file)

    def test_the_tightest_limit_of_nested_groups_counts(self, plant):
        root = plant(
            {
                **V2,
                "sys/fs/cgroup/system.slice/memory.max": 3 << 30,
                "sys/fs/cgroup/system.slice/night.service/memory.max": 8 << 30,
                "sys/fs/cgroup/system.slice/night.service/memory.high": "max",
                "sys/fs/cgroup/system.slice/cpu.max": "200000 100000",
                "sys/fs/cgroup/system.slice/night.service/cpu.max": "800000 100000",
            }
        )
        assert cgroups.memory_limit(root).amount == 3 << 30
        assert cgroups.cpu_quota(root).amount == 2.0

    def test_memory_high_is_a_limit_too_and_that_of_the_mount_where_the_group_is_outside(self, plant):
        files = {"memory.max": 8 << 30, "memory.high": 2 << 30}
        root = plant({**V2, **{f"sys/fs/cgroup/system.slice/{name}": value for name, value in files.items()}})
        assert cgroups.memory_limit(root).amount == 2 << 30
        root = plant({**V2, "proc/self/cgroup": "0::/../other", "sys/fs/cgroup/memory.max": 1 << 30})
        assert cgroups.memory_limit(root).amount == 1 << 30

    def test_a_container_sees_its_own_group_at_the_mount(self, plant):
        """Its path in /proc is the host's where it has no cgroup namespace; the mount begins at that group."""
        mounted = "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw"
        root = plant(
            {
                "proc/self/cgroup": "0::/docker/abc/worker",
                "proc/self/mountinfo": mounted,
                "sys/fs/cgroup/cpu.max": "400000 100000",
                "sys/fs/cgroup/worker/cpu.max": "300000 100000",
            }
        )
        assert cgroups.cpu_quota(root).amount == 3.0


class TestVersion1:
    def test_quota_and_memory(self, plant):
        root = plant(
            {
                **V1,
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": 250000,
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": 100000,
                "sys/fs/cgroup/cpu,cpuacct/box/inner/cpu.cfs_quota_us": -1,
                "sys/fs/cgroup/cpu,cpuacct/box/inner/cpu.cfs_period_us": 100000,
                "sys/fs/cgroup/cpu,cpuacct/box/inner/cpu.stat": "nr_throttled 1\nthrottled_time 250000000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": 4 << 30,
                "sys/fs/cgroup/memory/box/inner/memory.limit_in_bytes": 9223372036854771712,
            }
        )
        assert cgroups.cpu_quota(root).amount == 2.5
        assert cgroups.memory_limit(root).amount == 4 << 30
        assert cgroups.throttled_s(root) == pytest.approx(0.25)

    def test_a_limit_above_the_container_is_known_from_its_statistics(self, plant):
        text = f"cache 1\nhierarchical_memory_limit {2 << 30}\ntotal_cache 1"
        root = plant({**V1, "sys/fs/cgroup/memory/memory.stat": text})
        assert cgroups.memory_limit(root).amount == 2 << 30


def test_a_system_without_control_groups_has_no_limits(plant):
    root = plant({"proc/self/cgroup": "", "proc/self/mountinfo": "nonsense"})
    assert (cgroups.cpu_quota(root), cgroups.memory_limit(root), cgroups.throttled_s(root)) == (None, None, 0.0)


def test_a_mount_point_with_a_space_is_found(plant):
    root = plant(
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": "30 24 0:26 / /my\\040groups rw - cgroup2 none rw",
            "my groups/memory.max": 5 << 30,
        }
    )
    assert cgroups.memory_limit(root).amount == 5 << 30
