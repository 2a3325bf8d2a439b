"""A board that does not work is set aside, for longer each time, and its jobs say so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autotune.config import Config
from autotune.daemon.clock import DaemonClock
from autotune.daemon.running import DevicesAside
from autotune.device_settings import BoardSettings
from autotune.planning.view import MachineResources
from autotune.reasons import Reason

MACHINE = MachineResources((0,), ("cpu", "rpc-phone:0", "rpc-phone:1"))
WAITS = {1: Reason("no-device", device="rpc-phone"), 2: Reason("no-device", device="cuda"), 3: Reason("turn")}
ON_NODES = {1: Reason("no-device-on-nodes", device="rpc-phone")}


@dataclass
class StillClock(DaemonClock):
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def aside(clock: StillClock) -> DevicesAside:
    return DevicesAside(Config(boards={"phone": BoardSettings(retry_s=30.0)}), clock)


def test_a_board_is_missing_until_it_is_tried_again(aside: DevicesAside, clock: StillClock) -> None:
    assert aside.without(MACHINE) is MACHINE
    aside.set_aside("rpc-phone:0", "it hangs")
    assert aside.without(MACHINE).devices == ("cpu", "rpc-phone:1")
    assert [(shown.device, shown.reason, shown.until) for shown in aside.shown] == [
        ("rpc-phone:0", "it hangs", 1e9 + 30)
    ]
    clock.now = 29.0
    assert not aside.retry()
    assert aside.shown
    clock.now = 30.0
    assert aside.retry()
    assert aside.without(MACHINE) is MACHINE and not aside.shown


def test_a_board_of_a_node_is_missing_there(aside: DevicesAside) -> None:
    near = MachineResources((10_000,), ("cpu-x:n1", "rpc-phone:n1/0"))
    far = MachineResources((20_000,), ("cpu-x:n2", "rpc-phone:n2/0"))
    aside.set_aside("rpc-phone:n1/0", "it hangs")
    left = aside.without(MachineResources.of_nodes([near, far]))
    assert left.devices == ("cpu-x:n1", "cpu-x:n2", "rpc-phone:n2/0")
    assert [node.devices for node in left.nodes] == [("cpu-x:n1",), ("cpu-x:n2", "rpc-phone:n2/0")]


def test_each_failure_in_a_row_doubles_the_time_up_to_ten_minutes(aside: DevicesAside, clock: StillClock) -> None:
    pauses = []
    for _ in range(7):
        aside.set_aside("rpc-phone:0", "it hangs")
        pauses.append(aside.shown[0].until - clock.time())
        clock.now += pauses[-1]
        aside.retry()
    assert pauses == [30, 60, 120, 240, 480, 600, 600]
    aside.works("rpc-phone:0")
    aside.set_aside("rpc-phone:0", "it hangs")
    assert aside.shown[0].until - clock.time() == 30


def test_jobs_without_a_board_say_why(aside: DevicesAside) -> None:
    assert aside.explained(WAITS) is WAITS
    aside.set_aside("rpc-phone:0", "it hangs")
    waits = aside.explained(WAITS)
    assert waits[1] == Reason("device-aside", device="rpc-phone", detail="it hangs")
    assert aside.explained(ON_NODES) == {1: waits[1]}
    assert {2: waits[2], 3: waits[3]} == {2: WAITS[2], 3: WAITS[3]}


def test_there_is_hope_until_all_boards_have_failed_three_times(aside: DevicesAside, clock: StillClock) -> None:
    waits = [Reason("device-aside", device="rpc-phone")]
    assert not aside.hoped_for(waits)
    for failures in (1, 2, 3):
        for device in ("rpc-phone:0", "rpc-phone:1"):
            aside.set_aside(device, "it hangs")
        assert aside.hoped_for(waits) is (failures < 3)
        assert not aside.hoped_for([Reason("device-aside", device="rpc-tablet")])
        clock.now += 600
        aside.retry()
    assert not aside.hoped_for([Reason("no-device", device="cuda")])
