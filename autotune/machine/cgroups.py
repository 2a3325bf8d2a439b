"""Read the limits that control groups set for this process: how much CPU time and memory a container may use.

Control groups have two versions. Both are read, because both may be in use at once for different controllers. A limit
holds for a group and for all groups in it, so the lowest limit on the path of groups counts. A container sees only the
end of that path; groups above it may have lower limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path("/")  # of the file system; tests give functions another one as `root`
_UNLIMITED = 1 << 60  # version 1 writes the largest number of pages for "no limit"
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class CgroupLimit:
    """A limit.

    Attributes:
        amount: In CPUs or in bytes.
        file: The file that sets it.
    """

    amount: float
    file: Path


@dataclass(frozen=True)
class CgroupMount:
    """A mounted hierarchy of control groups.

    Attributes:
        point: Where it is mounted.
        controllers: Its controllers; empty for version 2.
    """

    top: str
    point: Path
    controllers: frozenset[str]


def cpu_quota(root: Path = ROOT) -> CgroupLimit | None:
    """Return the limit on the CPU time of this process's groups, in CPUs, such as 1.5; None if there is none."""
    limits = [limit for folder in _groups(root, "cpu") for limit in (_quota_v2(folder), _quota_v1(folder)) if limit]
    return min(limits, key=lambda limit: limit.amount, default=None)


def memory_limit(root: Path = ROOT) -> CgroupLimit | None:
    """Return the limit on the memory of this process's groups, in bytes; None if there is none.

    `memory.high` counts as a limit: the kernel slows down processes above it until they are useless.
    """
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for folder in _groups(root, "memory") for name in names if (limit := _bytes(folder / name))]
    limits += [limit for folder in _groups(root, "memory") if (limit := _hierarchical(folder / "memory.stat"))]
    return min(limits, key=lambda limit: limit.amount, default=None)


def throttled_s(root: Path = ROOT) -> float:
    """Return for how many seconds processes of these groups were stopped because their CPU time was used up."""
    total = 0.0
    for folder in _groups(root, "cpu"):
        for line in text_of(folder / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            unit = {"throttled_usec": 1e-6, "throttled_time": 1e-9}.get(name)
            total += int(value) * unit if unit is not None and value.isdigit() else 0.0
    return total


def _groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group and of the groups around it, in both versions."""
    own = _own_groups(root)
    folders: list[Path] = []
    for mount in _mounts(root):
        if mount.controllers and controller not in mount.controllers:
            continue
        path = own.get(controller if mount.controllers else "", "/")
        folders += _along(mount, path)
    return folders


def _along(mount: CgroupMount, path: str) -> Iterator[Path]:
    """Yield the folders from the mount point down to the group at `path`, as far as they are visible."""
    inside = path.removeprefix(mount.top.rstrip("/")) if path.startswith(mount.top) else ""
    folder = mount.point
    yield folder
    for name in inside.strip("/").split("/"):
        folder = folder / name
        if not name or name == ".." or not folder.is_dir():
            return
        yield folder


def _own_groups(root: Path) -> dict[str, str]:
    """Return the group of this process by controller. The group of version 2 has the empty name."""
    groups = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


@lru_cache(maxsize=8)
def _mounts(root: Path) -> tuple[CgroupMount, ...]:
    """Return the mounted hierarchies. They are cached: they do not change while a process runs."""
    mounts = []
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        kinds = right.split()
        if len(fields) < 5 or not kinds or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(kinds[-1].split(",")) if kinds[0] == "cgroup" else frozenset[str]()
        mounts.append(CgroupMount(unescaped(fields[3]), root / unescaped(fields[4]).lstrip("/"), controllers))
    return tuple(mounts)


def unescaped(path: str) -> str:
    """Decode a path of `mountinfo`, where spaces and the like are written as octal numbers."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def _quota_v2(folder: Path) -> CgroupLimit | None:
    quota, _, period = text_of(folder / "cpu.max").strip().partition(" ")
    return _ratio(quota, period, folder / "cpu.max")


def _quota_v1(folder: Path) -> CgroupLimit | None:
    file = folder / "cpu.cfs_quota_us"  # -1: no limit
    return _ratio(text_of(file).strip(), text_of(folder / "cpu.cfs_period_us").strip(), file)


def _ratio(quota: str, period: str, file: Path) -> CgroupLimit | None:
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return CgroupLimit(int(quota) / int(period), file)


def _bytes(file: Path) -> CgroupLimit | None:
    text = text_of(file).strip()
    return CgroupLimit(int(text), file) if text.isdigit() and int(text) < _UNLIMITED else None


def _hierarchical(file: Path) -> CgroupLimit | None:
    """Return the limit of the groups that a container does not see. Version 1 reports it."""
    for line in text_of(file).splitlines():
        name, _, value = line.partition(" ")
        if name == "hierarchical_memory_limit" and value.isdigit() and int(value) < _UNLIMITED:
            return CgroupLimit(int(value), file)
    return None


def text_of(file: Path) -> str:
    """Return the text of a file of the kernel; empty where it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
