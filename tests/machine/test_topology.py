"""Which CPUs are used, and which are kept for measurements, on machines of other shapes."""

from __future__ import annotations

import pytest

from autotune.machine.hardware import LogicalCpu, parse_list, preferred, set_aside, shares_core, topology

CPU = "sys/devices/system/cpu"


def smt(cores: int, first_node: int | None = None) -> tuple[LogicalCpu, ...]:
    """CPUs as Linux numbers them on Intel: the first threads of all cores, then the second ones."""
    return tuple(
        LogicalCpu(
            number, (number % cores, number % cores + cores), 0 if first_node is None else number % cores // first_node
        )
        for number in range(2 * cores)
    )


class TestTopology:
    def test_threads_of_a_core_and_nodes_are_read(self, plant):
        files = {f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n % 2},{n % 2 + 2}" for n in range(4)}
        files |= {f"sys/devices/system/node/node{n}/cpulist": f"{n},{n + 2}" for n in (0, 1)}
        assert topology((0, 1, 2, 3), plant(files)) == (
            LogicalCpu(0, (0, 2), 0), LogicalCpu(1, (1, 3), 1), LogicalCpu(2, (0, 2), 0), LogicalCpu(3, (1, 3), 1),
        )  # fmt: skip

    def test_a_system_that_says_nothing_has_equal_cores(self, plant):
        assert topology((3, 5), plant({"proc/stat": ""})) == (LogicalCpu(3, (3,)), LogicalCpu(5, (5,)))

    def test_efficiency_cores_as_intel_names_them(self, plant):
        root = plant({"sys/devices/cpu_atom/cpus": "2-3", "sys/devices/cpu_core/cpus": "0-1"})
        assert [cpu.efficient for cpu in topology((0, 1, 2, 3), root)] == [False, False, True, True]
        assert [cpu.efficient for cpu in topology((2, 3), root)] == [False, False], "all of this process are equal"

    @pytest.mark.parametrize("name", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
    def test_efficiency_cores_by_capacity_or_clock(self, plant, name):
        root = plant({f"{CPU}/cpu{n}/{name}": rate for n, rate in enumerate((400, 1024, 1000, 700))})
        assert [cpu.efficient for cpu in topology((0, 1, 2, 3), root)] == [True, False, False, True]


class TestPreferred:
    def test_cores_before_second_threads_fast_before_slow_and_one_node_before_the_next(self):
        pairs = tuple(LogicalCpu(number, (number // 2 * 2, number // 2 * 2 + 1)) for number in range(8))
        assert preferred(pairs, 4) == (0, 2, 4, 6)
        assert preferred(pairs, 5) == (0, 1, 2, 4, 6)
        assert preferred([LogicalCpu(number, (number,), 0, number < 4) for number in range(6)], 3) == (0, 4, 5)
        assert preferred([LogicalCpu(number, (number,), number % 2) for number in range(8)], 4) == (0, 2, 4, 6)
        # a second thread whose first may not be used counts as a core
        assert preferred([cpu for cpu in smt(2) if cpu.number != 0], 2) == (1, 2)


class TestSetAside:
    def test_the_last_of_equal_cores_are_kept_and_fast_ones_of_one_node(self):
        assert set_aside(smt(2), 0) == ((), ())
        assert set_aside([LogicalCpu(number, (number,)) for number in (2, 3, 5, 7)], 1) == ((7,), ())
        cpus = [LogicalCpu(number, (number,), number // 4, number in (6, 7)) for number in range(8)]
        assert set_aside(cpus, 3) == ((1, 2, 3), ())
        assert set_aside(smt(2), 2) == ((1, 3), ()), "there are not enough: whole cores"

    def test_a_kept_cpu_has_its_core_to_itself(self):
        kept, idle = set_aside(smt(4), 2)
        assert (kept, idle) == ((2, 3), (6, 7))
        shared = [cpu for cpu in smt(4) if cpu.number not in kept + idle]
        assert shares_core(shared, kept) == ()

    def test_a_single_core_is_shared_and_that_can_be_seen(self):
        kept, idle = set_aside(smt(1), 1)
        assert (kept, idle) == ((1,), ())
        assert shares_core(smt(1)[:1], kept) == (0,)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,6\n", (0, 1, 2, 3, 6)), ("5", (5,)), ("", ()), ("x", ()), ("1-", (1,))]
)
def test_lists_of_cpus(text, numbers):
    assert parse_list(text) == numbers
