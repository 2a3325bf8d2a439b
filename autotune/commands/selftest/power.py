"""What a power cut would make of a recorded run: files and names that were announced before they were durable.

SIGKILL leaves the page cache alone, so no kill shows a missing fsync. This reads the order of durable calls instead,
with a small model of the storage that grants only what POSIX does, in the spirit of ALICE (Pillai et al., "All File
Systems Are Not Created Equal", OSDI 2014): what was written is durable once the file was synced, and a name that was
made, moved or removed is durable once its folder was. The rules:

1. A file is renamed only when all that was written to it is durable; a folder, when everything in it is.
2. A published file is never written in place, only appended to.
3. Before a process tells anyone (writes to a pipe, lets go of a lock, ends), what it wrote, made, moved or removed
   is durable, less what may be lost: locks, temporary names, unpublished jobs, built libraries, text for people, and
   who the daemon is.
4. A stage logs no trial after it has published what follows.

Of what goes through `open()` only the opening is seen, and taken for a write; of a linker's library, nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

_PASSING = re.compile(r"(^|/)\.(tmp|incoming)-")
_MAY_BE_LOST = re.compile(r"\.lock$|/locks$|/artifacts(/|$)|/worker-[^/]*\.log$|/\.daemon\.json$|/daemon\.log$")
_STAGE_FILE = re.compile(r"/stages/t\d+-r\d+\.json$")
_TUNING_LOG = re.compile(r"/logs/tuning/.*\.jsonl$")


def violations(trace: Iterable[dict[str, Any]]) -> list[str]:
    """What breaks a rule in the recording of a run, each kind of it once."""
    disk = _Disk()
    for entry in trace:
        role, call, phase, kind = entry["site"].split(" ", 3)
        if call in ("tell", "exit"):
            disk.told(entry["pid"], f"{role} {'ended' if call == 'exit' else 'told another process'}")
        elif phase == "after" or entry.get("unseen"):
            disk.did(role, call, kind, entry)
    return list(dict.fromkeys(disk.found))


@dataclass
class _Disk:
    """Which contents and names are not durable yet, and who is to blame."""

    contents: dict[str, int] = field(default_factory=dict)  # path -> pid
    names: dict[str, dict[str, int]] = field(default_factory=dict)  # folder -> path -> pid
    published: set[str] = field(default_factory=set)
    in_place: set[str] = field(default_factory=set)  # open for writing elsewhere than at the end
    followed: dict[int, str] = field(default_factory=dict)  # pid -> the stage file it published
    found: list[str] = field(default_factory=list)

    def did(self, role: str, call: str, kind: str, entry: dict[str, Any]) -> None:
        path, pid = entry["path"], entry["pid"]
        if call == "open":
            self._opened(role, kind, path, pid, entry)
        elif call in ("write", "truncate", "ftruncate"):
            self._wrote(role, call, kind, path, pid)
        elif call in ("fsync", "fdatasync"):
            self.contents.pop(path, None)
            self.names.pop(path, None)
        elif call in ("rename", "replace"):
            self._renamed(role, kind, entry["source"], path, pid)
        elif call in ("mkdir", "link"):
            self._named(path, pid)
        elif call in ("unlink", "remove", "rmdir"):
            self._removed(path, pid)
        elif call == "flock" and entry.get("unlock"):
            self.told(pid, f"{role} let go of a lock")

    def _opened(self, role: str, kind: str, path: str, pid: int, entry: dict[str, Any]) -> None:
        if entry.get("new"):
            self._named(path, pid)
        (self.in_place.discard if entry.get("append") else self.in_place.add)(path)
        if entry.get("unseen"):  # whoever opens it for writing will write
            self._wrote(role, "write", kind, path, pid)

    def _wrote(self, role: str, call: str, kind: str, path: str, pid: int) -> None:
        self.contents[path] = pid
        if call == "write" and path in self.in_place and _matters(path):
            self.found.append(f"{role} wrote {kind} in place")
        if call == "write" and _TUNING_LOG.search(path) and pid in self.followed:
            self.found.append(f"{role} logged a trial after it had published what follows")

    def _renamed(self, role: str, kind: str, source: str, path: str, pid: int) -> None:
        if _matters(path):
            if any(_within(other, source) for other in self.contents):
                self.found.append(f"{role} published {kind} before its content was durable")
            if any(_within(folder, source) for folder in self.names):
                self.found.append(f"{role} published {kind} before the names in it were durable")
        _move(self.contents, source, path)
        _move(self.names, source, path)
        self.names.get(_folder(source), {}).pop(source, None)
        self._named(path, pid)
        if role == "stage" and _STAGE_FILE.search(path):
            self.followed[pid] = path

    def _named(self, path: str, pid: int) -> None:
        self.names.setdefault(_folder(path), {})[path] = pid

    def _removed(self, path: str, pid: int) -> None:
        self.contents.pop(path, None)
        self.names.pop(path, None)
        self._named(path, pid)

    def told(self, pid: int, how: str) -> None:
        """Whatever this process did, others now count on."""
        for path, writer in list(self.contents.items()):
            if writer == pid and _matters(path):
                self.found.append(f"{how} before the content of {_plain(path)} was durable")
                del self.contents[path]
        for changed in self.names.values():
            for path, changer in list(changed.items()):
                if changer == pid and _matters(path):
                    self.found.append(f"{how} before the name {_plain(path)} was durable")
                    del changed[path]


def _move(known: dict[str, Any], source: str, path: str) -> None:
    for other in [other for other in known if _within(other, source)]:
        known[path + other[len(source) :]] = known.pop(other)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _plain(path: str) -> str:
    """The last two parts, without numbers, so that the same fault is the same line."""
    return re.sub(r"\d+", "#", "/".join(PurePosixPath(path).parts[-2:]))


def _matters(path: str) -> bool:
    return not (_PASSING.search(path) or _MAY_BE_LOST.search(path))
