"""Boards that are measured on over TVM's RPC; a section [devices.NAME] with the kind `rpc` is a kind of device."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autotune.config import Config
from autotune.device_settings import BoardSettings
from autotune.devices.device import Device
from autotune.errors import MachineProblem
from autotune.storage.device_kind import PRIVATE, DeviceKind
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace
from autotune.version import TESTED_TVM

_SESSIONS = 3
_PROBE_S = 60.0


@dataclass(frozen=True)
class Board(Device):
    """Boards that are alike. A name such as `rpc-phone:0` does not always mean the same one of them.

    Attributes:
        section: The NAME of their section in the settings.
        settings: Of the section; None where the settings do not have it any more.
    """

    section: str = ""
    settings: BoardSettings | None = None

    family = "rpc"
    runs_models = False

    @classmethod
    def lent(cls, config: Config) -> tuple[str, ...]:
        boards = config.boards.items()
        return tuple(f"{cls.kind_of(name)}:{index}" for name, board in boards for index in range(board.count))

    @classmethod
    def kind_of(cls, section: str) -> str:
        """Return the kind of device of a section."""
        return f"{cls.family}-{section}"

    @classmethod
    def section_of(cls, kind: str) -> str:
        """Return the section of a kind of device of boards."""
        return kind.removeprefix(f"{cls.family}-")

    @classmethod
    def lock_name(cls, device: str, config: Config, node: str = "") -> str:
        """Return the same name in all workspaces that ask this tracker for its key."""
        kind, _, index = device.partition(":")
        board = config.boards[cls.section_of(kind)]
        return f"{cls.family}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', f'{board.tracker}-{board.key}')}-{index}"

    @classmethod
    def local_kind(cls, kind: str) -> str:
        return kind

    def kind(self) -> str:
        return self.kind_of(self.section)

    def kind_of_nodes(self, workspace: Workspace, spec: JobSpec) -> str:
        return self.kind()

    def log_kind(self) -> DeviceKind:
        """Return the key that boards which are alike share. What they take does not depend on this machine."""
        return DeviceKind(dict(self.target), f"board {self.settings.key if self.settings else ''}", TESTED_TVM)

    def is_here(self, key: str) -> bool:
        """Return true: its boards are asked for wherever it runs, see `check_here`."""
        return True

    def check_here(self, key: str, submitted_on: str = "") -> None:
        """Check that the settings still mean the boards that a job was submitted for.

        Raises:
            MachineProblem: They do not. Times of different boards must not share a log.
        """
        if self.settings is None:
            raise MachineProblem(f"it is for the boards [devices.{self.section}], which autotune.toml does not have")
        if self.log_kind().key != key.partition(PRIVATE)[0]:
            raise MachineProblem(f"it was submitted when [devices.{self.section}] had another key; submit it again")

    def measure_limit_s(self, config: Config, candidates: int) -> float:
        """Return it for candidates that may each wait for three sessions, and for a kernel that is known to be good."""
        waiting_s = _PROBE_S + (self.settings.request_timeout_s if self.settings else 0.0)
        measure = replace(config.measure, timeout_s=_SESSIONS * (config.measure.timeout_s + waiting_s))
        return super().measure_limit_s(replace(config, measure=measure), candidates)
