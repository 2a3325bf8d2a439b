"""Kill this process at a planned step. This code runs inside the processes of a round.

`hook/sitecustomize.py` calls `arm` when Python starts with that folder on PYTHONPATH. It does something only if
AUTOTUNE_CHAOS names a folder with `orders.json`. Production code does not know about it.

A **step** is one phase (`before`, `torn`, `after`) of a call that changes files below the given roots. Its **site** is
`role call phase kind-of-file`, such as `stage rename after jobs/JOB/stages/ROUND.json`.

Python's audit hooks report what is opened, renamed or removed. They do not report what is written, synced or locked,
and nothing after a call. So the functions of `os` and `fcntl` are replaced by callables that report both moments. The
audit hook is only used for `open()`, which does not call these functions.

The steps of all processes are counted together. Each site has a file to which a byte is appended at each step.
Appending is atomic, and the position after it is the count.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

VARIABLE = "AUTOTUNE_CHAOS"
ORDERS = "orders.json"
TRACE = "trace.jsonl"
DEATHS = "deaths.jsonl"

_BY_PATH = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "truncate")
_BY_DESCRIPTOR = ("write", "fsync", "fdatasync", "ftruncate")
_TWO_PATHS = ("rename", "replace", "link")
_KINDS = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\.tmp-[^/]+", "TMP"),
        (r"\.incoming-[^/]+", "INCOMING"),
        (r"(?<=jobs/)\d{4,}-[^/]+", "JOB"),
        (r"t\d{3,}-r\d{4,}", "ROUND"),
        (r"(?<=tasks/)\d+", "TASK"),
        (r"(?<=tuning/)[^/]+", "TARGET"),
        (r"(?<=TARGET/)(?!TMP)[^/.]+", "HASH"),
        (r"(?<=ROUND/)[^/.]+", "LIBRARY"),
        (r"(?<=exported/)(?!JOB)[^/]+", "JOB"),
        (r"\bcpu-\d+", "cpu-N"),
    )
]


def kind_of(path: str, roots: list[str]) -> str:
    """Return the kind of a file: its path below a root without numbers. It is empty for a file outside the roots."""
    for root in roots:
        if path == root or path.startswith(root + "/"):
            kind = path[len(root) :].lstrip("/") or "."
            for pattern, name in _KINDS:
                kind = pattern.sub(name, kind)
            return kind
    return ""


def role_of(words: list[str]) -> str:
    """Return the role of a process, such as `worker`, from its command line."""
    for word in words:
        if word == "autotune.workers.worker":
            return "worker"
        if word == "autotune.workers.oneshot":
            return f"{words[words.index(word) + 1]}er"
        if word == "kills.enqueue":
            return "submit"
    commands = ("daemon", "submit", "export", "hold", "release", "cancel", "retry", "clean", "wait", "status", "check")
    commands += ("import", "merge")
    return next((word for word in words if word in commands), "python")


@dataclass
class _Armed:
    """The orders of this process, and its open files below the roots.

    Attributes:
        folder: The folder with the orders.
        roots: The folders whose files are watched.
        record: Whether to record all steps.
        kills: For each site, by occurrence, who is killed: `one`, or `all` for the daemon too.
        daemon_info: The file that says who the daemon is.
        role: The role of this process.
        files: The paths of open files by descriptor.
        busy: Whether a replaced call is running.
    """

    folder: str
    roots: list[str]
    record: bool
    kills: dict[str, dict[int, str]]
    daemon_info: str
    role: str = ""
    files: dict[int, str] = field(default_factory=dict)
    busy: bool = False

    def step(self, call: str, phase: str, path: str, **details: Any) -> None:
        site = f"{self.role} {call} {phase} {kind_of(path, self.roots)}"
        if self.record:
            self.append(TRACE, {"pid": os.getpid(), "site": site, "path": path, **details})
        wanted = self.kills.get(site)
        if wanted:
            occurrence = self.count(site)
            if occurrence in wanted:
                self.die(site, occurrence, wanted[occurrence])

    def doomed(self, call: str, path: str) -> bool:
        """Return whether a kill in the middle of this call may be planned. Other calls are not split."""
        return self.record or f"{self.role} {call} torn {kind_of(path, self.roots)}" in self.kills

    def count(self, site: str) -> int:
        return self._add("count-" + re.sub(r"[^A-Za-z0-9.]", "_", site), b".")

    def append(self, name: str, record: dict[str, Any]) -> None:
        self._add(name, json.dumps(record).encode() + b"\n")

    def _add(self, name: str, data: bytes) -> int:
        """Append to a file in the folder of the orders, and return the position of its end."""
        descriptor = _REAL["open"](os.path.join(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _REAL["write"](descriptor, data)
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        _REAL["close"](descriptor)
        return end

    def die(self, site: str, occurrence: int, scope: str) -> None:
        self.append(DEATHS, {"site": site, "occurrence": occurrence, "scope": scope, "pid": os.getpid()})
        if scope == "all":
            try:
                with open(self.daemon_info, "rb") as file:
                    os.kill(json.load(file)["identity"]["pid"], signal.SIGKILL)
            except (OSError, ValueError, KeyError):
                pass  # there is no daemon: only this process is killed
        os.kill(os.getpid(), signal.SIGKILL)


_REAL: dict[str, Callable[..., Any]] = {}


def arm() -> None:
    """Watch the steps of this process, as the orders in the folder of AUTOTUNE_CHAOS say. Without it, do nothing."""
    folder = os.environ.get(VARIABLE)
    if not folder or _REAL:
        return
    with open(os.path.join(folder, ORDERS), "rb") as file:
        orders = json.load(file)
    kills: dict[str, dict[int, str]] = {}
    for item in orders["kills"]:
        kills.setdefault(item["site"], {})[item["occurrence"]] = item["scope"]
    armed = _Armed(folder, orders["roots"], orders["record"], kills, orders["daemon_info"])
    armed.role = role_of(sys.orig_argv)
    _wrap(armed)
    sys.addaudithook(lambda event, args: _audit(armed, event, args))
    os.register_at_fork(after_in_child=lambda: _forked(armed))
    if armed.record:
        atexit.register(lambda: armed.append(TRACE, {"pid": os.getpid(), "site": f"{armed.role} exit after ."}))


def _forked(armed: _Armed) -> None:
    children = {"worker": "stage", "stage": "candidate"}
    armed.role = children.get(armed.role, armed.role)


def _wrap(armed: _Armed) -> None:
    import fcntl

    for module, names in ((os, ("open", "close", "_exit", *_BY_PATH, *_BY_DESCRIPTOR)), (fcntl, ("flock",))):
        for name in names:
            real = getattr(module, name)
            _REAL[name] = real
            watched = _Watched(armed, name, real)
            for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if real in supported:
                    supported.add(watched)
            setattr(module, name, watched)


class _Watched:
    """A replaced function that reports its steps.

    It is an object and not a function, because a function that is a class attribute would become a method.
    """

    def __init__(self, armed: _Armed, name: str, real: Callable[..., Any]) -> None:
        self.armed = armed
        self.name = name
        self.real = real
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.armed.busy:
            return self.real(*args, **kwargs)
        self.armed.busy = True  # calls from here are no steps; a step of another thread may be missed meanwhile
        try:
            return _DOES.get(self.name, _by_path)(self, args, kwargs)
        finally:
            self.armed.busy = False

    def between(self, path: str, args: Any, kwargs: Any, **details: Any) -> Any:
        self.armed.step(self.name, "before", path, **details)
        result = self.real(*args, **kwargs)
        self.armed.step(self.name, "after", path, **details)
        return result


def _open(call: _Watched, args: Any, kwargs: Any) -> int:
    flags = kwargs.get("flags", args[1] if len(args) > 1 else 0)
    path = _absolute(call.armed, kwargs.get("path", args[0] if args else ""), kwargs.get("dir_fd"))
    below = bool(kind_of(path, call.armed.roots))
    if below and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        new = not os.path.lexists(path)
        descriptor = call.between(path, args, kwargs, new=new, append=bool(flags & os.O_APPEND))
        call.armed.files[descriptor] = path
        return int(descriptor)
    descriptor = call.real(*args, **kwargs)
    call.armed.files.pop(descriptor, None)
    if below and os.path.isdir(path):  # a file object may close a file unseen, and its number then be that of a pipe
        call.armed.files[descriptor] = path
    return int(descriptor)


def _close(call: _Watched, args: Any, kwargs: Any) -> None:
    call.armed.files.pop(args[0], None)
    call.real(*args, **kwargs)


def _write(call: _Watched, args: Any, kwargs: Any) -> Any:
    armed = call.armed
    path = armed.files.get(args[0])
    if path is None:
        if armed.record and args[0] > 2:
            armed.append(TRACE, {"pid": os.getpid(), "site": f"{armed.role} tell before ."})
        return call.real(*args, **kwargs)
    data = memoryview(args[1])
    if len(data) > 1 and armed.doomed("write", path):
        armed.step("write", "before", path)
        sent = call.real(args[0], data[: len(data) // 2])
        armed.step("write", "torn", path)
        sent += call.real(args[0], data[sent:])
        armed.step("write", "after", path)
        return sent
    return call.between(path, args, kwargs)


def _by_descriptor(call: _Watched, args: Any, kwargs: Any) -> Any:
    path = call.armed.files.get(args[0]) if isinstance(args[0], int) else None
    if path is None and call.name in ("fsync", "fdatasync"):
        path = _opened_unseen(call.armed, args[0])
    return call.real(*args, **kwargs) if path is None else call.between(path, args, kwargs)


def _opened_unseen(armed: _Armed, file: Any) -> str | None:
    """Return the path of a file that `open()` opened; None if it is outside the roots or there is no `/proc`."""
    try:
        path = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
    except OSError:
        return None
    return path if kind_of(path, armed.roots) else None


def _flock(call: _Watched, args: Any, kwargs: Any) -> Any:
    import fcntl

    path = call.armed.files.get(args[0])
    if path is None:
        return call.real(*args, **kwargs)
    return call.between(path, args, kwargs, unlock=bool(args[1] & fcntl.LOCK_UN))


def _by_path(call: _Watched, args: Any, kwargs: Any) -> Any:
    if isinstance(args[0], int):
        return _by_descriptor(call, args, kwargs)
    path = _absolute(call.armed, args[0], kwargs.get("dir_fd", kwargs.get("src_dir_fd")))
    if call.name not in _TWO_PATHS:
        return call.between(path, args, kwargs) if kind_of(path, call.armed.roots) else call.real(*args, **kwargs)
    to = _absolute(call.armed, args[1], kwargs.get("dst_dir_fd"))
    return call.between(to, args, kwargs, source=path) if kind_of(to, call.armed.roots) else call.real(*args, **kwargs)


def _exit(call: _Watched, args: Any, kwargs: Any) -> Any:
    if call.armed.record:
        call.armed.append(TRACE, {"pid": os.getpid(), "site": f"{call.armed.role} exit before ."})
    return call.real(*args, **kwargs)


_DOES: dict[str, Callable[[_Watched, Any, Any], Any]] = {
    "open": _open,
    "close": _close,
    "write": _write,
    "flock": _flock,
    "_exit": _exit,
    **dict.fromkeys(("fsync", "fdatasync", "ftruncate"), _by_descriptor),
}


def _absolute(armed: _Armed, path: Any, folder: int | None) -> str:
    text = os.fsdecode(path)
    if folder is not None and not os.path.isabs(text):
        text = os.path.join(armed.files.get(folder, "/"), text)
    return os.path.normpath(os.path.join(os.getcwd(), text))


def _audit(armed: _Armed, event: str, args: Any) -> None:
    """Report an `open()` for writing, which does not call the replaced functions."""
    if event != "open" or armed.busy or not isinstance(args[1], str) or not set(args[1]) & set("wax+"):
        return
    if isinstance(args[0], (str, bytes, os.PathLike)):
        armed.busy = True
        try:
            path = _absolute(armed, args[0], None)
            if kind_of(path, armed.roots):
                new = not os.path.lexists(path)
                armed.step("open", "before", path, new=new, append="a" in args[1], unseen=True)
        finally:
            armed.busy = False
