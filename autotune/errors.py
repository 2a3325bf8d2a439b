"""Every error that autotune raises on purpose, in one tree.

    Exception
    └── AutotuneError             1    anything below; catch this at the edge of the program
        ├── BadInput              2    what the user gave is wrong; nothing was changed
        │   ├── ConfigError            autotune.toml
        │   ├── ModelError             the model file
        │   ├── UnknownJob             no such job in this workspace
        │   ├── BadTarget              a target or device that does not exist here
        │   └── BadState               not possible now, such as releasing a job that is not held
        ├── StorageError          1    a file of the workspace
        │   ├── DamagedFile            not what was once written
        │   ├── NewerFormat            written by a later autotune
        │   ├── DiskProblem            disk full, read-only, no permission
        │   └── Busy                   a lock is held by someone else
        ├── WorkerError           1    a stage did not come back with a result
        │   ├── WorkerCrashed          its process died
        │   ├── StageTimeout           it ran past its time limit and was killed
        │   └── WrongResult            a kernel computes something else than its task
        ├── MachineProblem        1    this machine, as it is set up now, cannot do the work
        ├── VerificationError     1    a compiled model computes something else than the original
        ├── UnsupportedVersion    1    a library of a version that was never tested
        ├── DaemonRunning         75   another daemon serves this workspace (EX_TEMPFAIL: try again later)
        └── TimedOut              124  the wait ended before what was waited for (as timeout(1) exits)

The number is the exit code of a command that ends with the error; a subclass has its parent's
unless it says otherwise. The message of each is one line, written for the user.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "AutotuneError",
    "BadInput",
    "BadState",
    "BadTarget",
    "Busy",
    "ConfigError",
    "DaemonRunning",
    "DamagedFile",
    "DiskProblem",
    "MachineProblem",
    "ModelError",
    "NewerFormat",
    "StageTimeout",
    "StorageError",
    "TimedOut",
    "UnknownJob",
    "UnsupportedVersion",
    "VerificationError",
    "WorkerCrashed",
    "WorkerError",
    "WrongResult",
    "disk_problem",
]


class AutotuneError(Exception):
    """An error with a message for the user and an exit code for the shell."""

    exit_code: int = 1


class BadInput(AutotuneError):
    """What the user gave is wrong. Nothing was changed."""

    exit_code = 2


class ConfigError(BadInput):
    """``autotune.toml`` cannot be used as it stands."""


class ModelError(BadInput):
    """The model file cannot be read, or holds something that cannot be tuned."""


class UnknownJob(BadInput):
    """The workspace has no such job."""


class BadTarget(BadInput):
    """The target or device does not exist, or not on this machine."""


class BadState(BadInput):
    """The request does not fit the job's present state."""


class StorageError(AutotuneError):
    """A file of the workspace, or of the machine's lock folder, cannot be used."""


class DamagedFile(StorageError):
    """A file does not hold what was once written to it, or holds something else."""


class NewerFormat(StorageError):
    """A file was written by a later autotune, in a format this one cannot know."""


class Busy(StorageError):
    """A lock is held by someone else."""


class DiskProblem(StorageError):
    """The operating system refused to read or write. Its ``OSError`` is the ``__cause__``.

    ``passing`` says that it is no fault of the one file: a full or read-only disk, say, which will be mended.
    """

    passing = False


class WorkerError(AutotuneError):
    """A stage did not come back with a result."""


class WorkerCrashed(WorkerError):
    """The worker process died in the middle of a stage."""


class StageTimeout(WorkerError):
    """A stage ran past its time limit, and its process group was killed."""


class WrongResult(WorkerError):
    """The work on a candidate was done, and its result is wrong."""


class MachineProblem(AutotuneError):
    """This machine, as it is set up now, cannot do the work: no stage and no candidate is to blame.

    The message says what helps. The work is tried again later.
    """


class VerificationError(AutotuneError):
    """A compiled model's outputs differ from the original's by more than the tolerance."""


class UnsupportedVersion(AutotuneError):
    """A library is installed in a version that autotune was never tested with."""


class DaemonRunning(AutotuneError):
    """Another daemon serves this workspace already."""

    exit_code = 75


class TimedOut(AutotuneError):
    """The time given for waiting was over before what was waited for happened."""

    exit_code = 124


_ADVICE = {
    errno.ENOSPC: "free some room and try again",
    errno.EDQUOT: "free some room in your quota and try again",
    errno.EFBIG: "raise the file size limit (ulimit -f) and try again",
    errno.EROFS: "remount it for writing, or use a workspace elsewhere",
    errno.EACCES: "check its owner and permissions",
    errno.EPERM: "check its owner and permissions",
    errno.EMFILE: "raise the open file limit (ulimit -n) and try again",
}


# These say nothing about one file. A bad sector (EIO) does when it is read, but who writes meets the whole disk.
_PASSING = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ESTALE,
}  # fmt: skip


def one_line(text: object) -> str:
    """Text as one line of printable characters, for a terminal: file and operator names may hold anything."""
    return _printable(" ".join(str(text).strip().splitlines()))


def printable(text: object) -> str:
    """Text as lines of printable characters: what a terminal would obey, such as an escape sequence, becomes `?`."""
    return "\n".join(_printable(line) for line in str(text).split("\n"))


def _printable(line: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\t" else "?" for sign in line)


def disk_problem(action: str, path: str | os.PathLike[str], error: OSError) -> DiskProblem:
    """A ``DiskProblem`` that says in one line what failed, on which file, why, and what helps.

    ``action`` is a verb, such as ``"write"``. Raise the result ``from error``.
    """
    reason = error.strerror or str(error) or "no reason given"
    advice = _ADVICE.get(error.errno or 0)
    line = f"cannot {action} {os.fspath(path)}: {reason[:1].lower()}{reason[1:]}"
    problem = DiskProblem(f"{line}; {advice}" if advice else line)
    problem.passing = error.errno in _PASSING or (error.errno == errno.EIO and action != "read")
    return problem
