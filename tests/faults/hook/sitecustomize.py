"""Python runs this as it starts, where it is on the path: while a file FAULTS is there, what it names goes wrong.

It stands for what a test cannot have: a quota that is used up, a disk that breaks, a folder of another user, a machine
that starts no more processes, a clock that is set back. Each line of the file is a fault:

    EIO write,open /path        these calls fail for paths that begin so
    EAGAIN fork,spawn           no process can be started
    clock -3600                 the wall clock is so many seconds ahead
    later 10                    so many seconds have passed: what is tried again after a while is tried now

The calls are write, open, read (an open to read only), mkdir, rename, scandir, stat, fork and spawn.
"""

import errno
import os
import sys
import time

FAULTS = os.environ.get("FAULTS", "")
_open = os.open
_read = os.read
_write = os.write
_stat = os.stat
_close = os.close
_time = time.time
_monotonic = time.monotonic
_EVENTS = {
    "os.mkdir": "mkdir",
    "os.rename": "rename",
    "os.scandir": "scandir",
    "os.listdir": "scandir",
    "os.fork": "fork",
    "subprocess.Popen": "spawn",
}
_busy = False
_text = ""


def _faults():
    """The lines of the file. The test makes it and removes it at any moment: in between, it is empty."""
    global _busy, _text
    _busy = True
    try:
        descriptor = _open(FAULTS, os.O_RDONLY)
        _text = _read(descriptor, 4096).decode()
        _close(descriptor)
    except FileNotFoundError:
        _text = ""
    except OSError:  # this process may open no more files: what was said last holds
        pass
    finally:
        _busy = False
    return [line.split() for line in _text.splitlines() if line.strip()]


def _refuse(call, path=""):
    if _busy or path == FAULTS:
        return
    for name, calls, *prefix in _faults():
        if call in calls.split(",") and str(path).startswith(prefix[0] if prefix else ""):
            number = getattr(errno, name)
            raise OSError(number, os.strerror(number), *([path] if path else []))


def _audit(event, args):
    if event == "open":
        path, mode, flags = args
        if isinstance(path, (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(path))
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if flags is not None else "r" not in (mode or "r")
            _refuse("open", path)
            if not writes:
                _refuse("read", path)
    elif event in ("os.fork", "subprocess.Popen"):
        _refuse(_EVENTS[event])
    elif event in _EVENTS and isinstance(args[0], (str, bytes, os.PathLike)):
        _refuse(_EVENTS[event], os.path.abspath(os.fsdecode(args[0])))


def _refusing_write(descriptor, data):
    _refuse("write", os.readlink(f"/proc/self/fd/{descriptor}"))
    return _write(descriptor, data)


def _refusing_stat(path, *args, **kwargs):
    if isinstance(path, (str, bytes, os.PathLike)):
        _refuse("stat", os.path.abspath(os.fsdecode(path)))
    return _stat(path, *args, **kwargs)


def _shift(clock):
    return sum(float(fault[1]) for fault in _faults() if fault[0] == clock)


def _shifted_time():
    return _time() + _shift("clock")


def _shifted_monotonic():
    return _monotonic() + _shift("later")


if FAULTS:
    sys.addaudithook(_audit)
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if _stat in supported:
            supported.add(_refusing_stat)
    os.write = _refusing_write
    os.stat = _refusing_stat
    time.time = _shifted_time
    time.monotonic = _shifted_monotonic
