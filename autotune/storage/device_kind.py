"""Kinds of device: which machines share tuning logs.

A time that was measured on one machine is worth the same on another one of its kind: one with the same target, the
same processor and the same versions of TVM. The folder of tuning logs is named after a digest of these three. A file in
the folder spells them out, so that another workspace can tell what was measured there.

What another workspace has measured is a claim until it is timed here, even on the same kind of device. So imported
trials have folders of their own, and what counts for a job was measured in its workspace.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.errors import StorageError
from autotune.storage import formats
from autotune.storage.atomic import make_folders
from autotune.storage.formats import SIMULATED
from autotune.storage.paths import Workspace

# Between a kind of device and the name of a set of jobs that share trials with nobody else, such as a sweep's point.
PRIVATE = "+"
# Behind a kind of device: what other workspaces claim to have measured on it.
_CLAIMED = ".claimed"


Held = Literal["L2", "L3", "memory"]


@dataclass(frozen=True)
class DeviceKind:
    """What measured times depend on besides the tensor program.

    Attributes:
        target: The target, as TVM takes it.
        device: The model of the CPU or GPU; empty for a simulated device.
        versions: The versions of TVM's packages, by package; none for a simulated device.
        held: Where kernels find the constants of a model: the nearest memory that holds all of them. Empty where
            kernels are timed in a loop, so that they find them in the nearest cache.
        machine: What else is known of the machine, and is in no digest: its `cpus`, and the bytes that its caches `L2`
            and `L3` hold. Virtual machines with the same CPU may have other shares of it.
    """

    FORMAT = ("autotune-device-kind", 1)

    target: dict[str, Any]
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    held: Literal[Held, ""] = ""
    machine: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of the folder of its tuning logs."""
        if self.target["kind"] == SIMULATED:
            return f"{SIMULATED}-{_digest(self.target)}"
        name = str(self.target.get("mcpu") or self.target.get("arch") or "any")
        digest = _digest([self.target, self.device, self.versions, *([self.held] if self.held else [])])
        return f"{self.target['kind']}-{re.sub(r'[^A-Za-z0-9_]+', '_', name)}-{digest}"


def _digest(whole: Any) -> str:
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:10]


def is_private(key: str) -> bool:
    """Return whether the tuning logs of a key are for certain jobs only."""
    return PRIVATE in key


def claimed(key: str) -> str:
    """Return the name of the folder of what other workspaces claim to have measured on a kind of device."""
    return key + _CLAIMED


def is_claimed(key: str) -> bool:
    """Return whether other workspaces have measured what is in a folder of tuning logs."""
    return key.endswith(_CLAIMED)


def measured_on(key: str) -> str:
    """Return the key of the kind of device of a folder of tuning logs, measured here or claimed."""
    return key.removesuffix(_CLAIMED)


def note(workspace: Workspace, kind: DeviceKind, key: str = "") -> None:
    """Write down what the folder of a kind of device stands for, unless that is known.

    Args:
        key: The name of the folder if it is not that of the kind.

    Raises:
        DiskProblem: The file could not be written.
    """
    path = workspace.device_kind(key or kind.key)
    if not path.exists():
        make_folders(path.parent)
        formats.write(path, kind)


def read(workspace: Workspace, key: str) -> DeviceKind | None:
    """Return what a folder of tuning logs stands for.

    Returns:
        None where nobody has written it down, or what is written there is damaged or stands for another folder.
    """
    with suppress(FileNotFoundError, StorageError, KeyError, TypeError):
        kind = formats.read(DeviceKind, workspace.device_kind(key))
        return kind if kind.key == measured_on(key) else None
    return None


def target_keys(workspace: Workspace) -> list[str]:
    """Return the names of all folders of tuning logs."""
    return sorted(path.name for path in (workspace.logs / "tuning").glob("*") if path.is_dir())
