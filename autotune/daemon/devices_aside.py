"""The boards that are set aside because they do not work now, and when each of them is tried again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autotune.config import Config
from autotune.daemon.clock import DaemonClock
from autotune.devices import Board
from autotune.planning.view import MachineResources, device_kind
from autotune.reasons import Reason
from autotune.storage.daemon_info import DeviceAside

_LOG = logging.getLogger("autotune.daemon")
_LONGEST_S = 600.0
# A daemon that drains the queue waits for boards that have failed less often than this in a row.
_TRIES = 3


@dataclass(frozen=True)
class _Board:
    """A board that has failed `tries` times in a row. It is `aside` until a point in monotonic seconds."""

    reason: str
    until: float
    tries: int
    aside: bool = True


@dataclass
class DevicesAside:
    """Which boards the planner does without."""

    config: Config
    clock: DaemonClock
    shown: tuple[DeviceAside, ...] = ()
    _boards: dict[str, _Board] = field(default_factory=dict)

    def set_aside(self, device: str, reason: str) -> None:
        """Do without a board for a while: longer each time that it fails, up to ten minutes."""
        before = self._boards.get(device)
        tries = 1 if before is None else before.tries + 1
        pause_s = min(self.config.boards[Board.section_of(device_kind(device))].retry_s * 2 ** (tries - 1), _LONGEST_S)
        self._boards[device] = _Board(reason, self.clock.monotonic() + pause_s, tries)
        self._show()
        _LOG.warning("%s is set aside for %.0f s: %s", device, pause_s, reason)

    def works(self, device: str) -> None:
        """Forget that a board has failed."""
        if self._boards.pop(device, None):
            _LOG.info("%s works again", device)

    def retry(self) -> bool:
        """Let the boards be tried again whose time has come, and return whether there are any."""
        before = self.shown
        for device, board in self._boards.items():
            if board.aside and self.clock.monotonic() >= board.until:
                self._boards[device] = replace(board, aside=False)
                self._show()
        return self.shown != before

    def without(self, machine: MachineResources) -> MachineResources:
        """Return a machine without the boards that are set aside; the same object if there are none."""
        aside = self._aside
        if not aside:
            return machine
        devices = tuple(device for device in machine.devices if device not in aside)
        return replace(machine, devices=devices, nodes=tuple(map(self.without, machine.nodes)))

    def explained(self, waits: dict[int, Reason]) -> dict[int, Reason]:
        """Return why jobs wait, where those without a device are told why their boards are set aside."""
        reasons = {device_kind(aside.device): aside.reason for aside in self.shown}
        explained = {
            job: replace(wait, kind="device-aside", detail=reasons[wait.device])
            for job, wait in (waits.items() if reasons else ())
            if wait.kind in ("no-device", "no-device-on-nodes") and wait.device in reasons
        }
        return {**waits, **explained} if explained else waits

    def hoped_for(self, waits: Iterable[Reason]) -> bool:
        """Return whether a job waits for boards of which one has not failed several times in a row."""
        kinds = {wait.device for wait in waits if wait.kind == "device-aside"}
        return any(board.tries < _TRIES for device, board in self._boards.items() if device_kind(device) in kinds)

    @property
    def _aside(self) -> dict[str, _Board]:
        return {device: board for device, board in self._boards.items() if board.aside}

    def _show(self) -> None:
        now = self.clock.time()
        clock = self.clock.monotonic()
        aside = sorted(self._aside.items())
        self.shown = tuple(DeviceAside(name, board.reason, round(now + board.until - clock)) for name, board in aside)
