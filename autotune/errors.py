"""All errors that autotune raises on purpose, as one tree.

    Exception
    └── AutotuneError             1    all of the below; the command line catches it
        ├── BadInput              2    what the user gave is wrong; nothing was changed
        │   ├── ConfigError            autotune.toml
        │   ├── ModelError             the model file
        │   │   ├── OperatorRefused    an operator in it
        │   │   └── OpenShapes         inputs without a fixed shape; it advises some
        │   ├── UnknownJob             no such job in this workspace
        │   ├── BadTarget              a target or device that does not exist here
        │   └── BadState               not possible now, such as releasing a job that is not held
        ├── InvalidData           1    data does not fit its schema; its reader says in which file
        │   ├── MissingKey             a key that has no default is not there
        │   ├── UnknownKey             a key that the schema does not have is there
        │   └── WrongValue             a value is of the wrong type or out of bounds
        ├── StorageError          1    a file of the workspace
        │   ├── DamagedFile            not what was written
        │   ├── NewerFormat            written by a later autotune
        │   ├── DiskProblem            disk full, read-only, no permission
        │   ├── LockFolderProblem      the lock folder of this machine cannot be used
        │   └── Busy                   someone else holds a lock
        ├── WorkerError           1    a stage ended without a result
        │   ├── WorkerCrashed          its process died
        │   ├── StageTimeout           it ran past its time limit and was killed
        │   └── WrongResult            a kernel computes something other than its task
        ├── MachineProblem        1    this machine, as it is set up now, cannot do the work
        │   ├── BoardProblem           a board that is measured on over RPC does not work now
        │   ├── ProcessRefused         the system starts no more processes
        │   └── CommandMissing         a program that a job's commands need is not here
        ├── VerificationError     1    a compiled model computes something other than the original
        ├── UnsupportedVersion    1    a library has a version that was never tested
        ├── DaemonRunning         75   another daemon serves this workspace (EX_TEMPFAIL: try again later)
        └── TimedOut              124  the time limit for waiting was reached (the exit code of timeout(1))

The number is the exit code of a command that ends with the error; a subclass without one has that of its parent. Each
message is one line for the user.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

__all__ = [
    "AutotuneError",
    "BadInput",
    "BadState",
    "BadTarget",
    "BoardProblem",
    "Busy",
    "CommandMissing",
    "ConfigError",
    "DaemonRunning",
    "DamagedFile",
    "DiskProblem",
    "InvalidData",
    "LockFolderProblem",
    "MachineProblem",
    "MissingKey",
    "ModelError",
    "NewerFormat",
    "OpenShapes",
    "OperatorRefused",
    "ProcessRefused",
    "StageTimeout",
    "StorageError",
    "TimedOut",
    "UnknownJob",
    "UnknownKey",
    "UnsupportedVersion",
    "VerificationError",
    "WorkerCrashed",
    "WorkerError",
    "WrongResult",
    "WrongValue",
    "disk_problem",
]


class AutotuneError(Exception):
    """An error with a message for the user and an exit code for the shell."""

    exit_code: int = 1


class BadInput(AutotuneError):
    """The input is wrong. Nothing was changed."""

    exit_code = 2


class ConfigError(BadInput):
    """``autotune.toml`` cannot be used as it stands."""


class ModelError(BadInput):
    """The model file cannot be read, or holds something that cannot be tuned."""


@dataclass(frozen=True)
class Refusal:
    """Why an operator of a model is not supported.

    Attributes:
        operator: Its kind, such as `Loop`.
        node: Its name, or that of its first result.
        reason: What is in the way: the attribute, the shape or the type.
        advice: What the user can do.
        version: The version of the operators that the model is written in; 0 where there is none.
        given: What it is given: the types and shapes of its inputs, where they are known.
    """

    operator: str
    node: str
    reason: str
    advice: str
    version: int = 0
    given: str = ""

    def text(self) -> str:
        """Return the line for the user."""
        about = [f"opset {self.version}"] * (self.version > 0) + [f"inputs: {self.given}"] * bool(self.given)
        brackets = f" ({', '.join(about)})" if about else ""
        return f"operator {self.operator} {self.node!r}{brackets} is not supported: {self.reason}; {self.advice}"


class OperatorRefused(ModelError):
    """The model has an operator that cannot be tuned.

    `refusal` says which and why, in the process that read the model.
    """

    def __init__(self, message: str, refusal: Refusal | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal

    @classmethod
    def of(cls, refusal: Refusal) -> OperatorRefused:
        """Return the error whose message is the line of a refusal."""
        return cls(refusal.text(), refusal)

    def in_file(self, path: str | os.PathLike[str]) -> OperatorRefused:
        """Return the same error with the name of the file in its message."""
        return OperatorRefused(f"cannot import {os.fspath(path)}: {self}", self.refusal)


class OpenShapes(ModelError):
    """Inputs of the model have no fixed shape. `advised` are likely ones, as `submit --input` takes them."""

    def __init__(self, message: str, advised: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.advised = advised


class UnknownJob(BadInput):
    """The workspace has no such job."""


class BadTarget(BadInput):
    """The target or device does not exist, or not on this machine."""


class BadState(BadInput):
    """The request does not fit the job's present state."""


_MAX_LINE_LENGTH = 700  # characters; a path, a cause and what to do fit, and more is cut out of the middle
_MAX_FAULT_LENGTH = 400  # of what is said of data, which may repeat a part of it
_MAX_CAUSE_LENGTH = 300  # of what a library says


class InvalidData(AutotuneError, ValueError):
    """Data does not fit its schema.

    A reader catches it and raises an error that names the file. `keys` are the keys of tables and the indices of lists
    that lead to the fault from the top of the data.
    """

    def __init__(self, message: str, keys: tuple[str | int, ...] = ()) -> None:
        super().__init__(clipped(message))
        self.keys = keys


class MissingKey(InvalidData):
    """A key without a default is missing. `keys` lead to the table that lacks it."""

    def __init__(self, keys: tuple[str | int, ...], missing: str) -> None:
        super().__init__(f"{_place((*keys, missing))!r} is missing", keys)


class UnknownKey(InvalidData):
    """A table has a key, with this `value`, that is not one of the `known` keys."""

    def __init__(self, keys: tuple[str | int, ...], value: object, known: tuple[str, ...]) -> None:
        super().__init__(f"unknown key {keys[-1]!r}", keys)
        self.value = value
        self.known = known


class WrongValue(InvalidData):
    """A value is of the wrong type or out of bounds.

    `expected` says what it must be. `found` says what it is: its type where that is wrong, otherwise the value.
    """

    def __init__(self, keys: tuple[str | int, ...], expected: str, value: object, found: str) -> None:
        super().__init__(
            f"{_place(keys)!r} must be {expected}, not {found}" if keys else f"{found} is not {expected}", keys
        )
        self.expected = expected
        self.value = value
        self.found = found


def _place(keys: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


class StorageError(AutotuneError):
    """A file of the workspace or of the machine's lock folder cannot be used."""


class DamagedFile(StorageError):
    """A file does not hold what was written to it."""


class NewerFormat(StorageError):
    """A newer autotune wrote a file, in a format that this one does not know."""


class Busy(StorageError):
    """Someone else holds a lock."""


class DiskProblem(StorageError):
    """The operating system refused to read or write. Its `OSError` is the `__cause__`.

    `passing` means that the cause is not this one file but, for example, a full or read-only disk. The same operation
    succeeds once that is solved. `perhaps_local` means that it may be this one file after all: a bad sector, or a file
    that a server no longer has.
    """

    passing = False
    perhaps_local = False


class LockFolderProblem(StorageError):
    """The lock folder of this machine is unsafe or cannot be used. No stage runs until that is repaired."""


class WorkerError(AutotuneError):
    """A stage ended without a result."""


class WorkerCrashed(WorkerError):
    """The worker process died during a stage."""


class StageTimeout(WorkerError):
    """A stage exceeded its time limit, and its process group was killed."""


class WrongResult(WorkerError):
    """A candidate's result is wrong."""


class MachineProblem(AutotuneError):
    """This machine, as it is set up now, cannot do the work, which is tried again later. The message says what helps.

    No stage and no candidate is to blame.
    """


class BoardProblem(MachineProblem):
    """A board, or its tracker, does not work now. It is set aside; no stage and no candidate is to blame."""


class ProcessRefused(MachineProblem):
    """The system starts no more processes."""


class CommandMissing(MachineProblem):
    """A program that the commands of a job need is not on this machine."""


class VerificationError(AutotuneError):
    """A compiled model's outputs differ from the original's by more than the tolerance."""


class UnsupportedVersion(AutotuneError):
    """A library has a version that autotune was never tested with."""


class DaemonRunning(AutotuneError):
    """Another daemon serves this workspace already."""

    exit_code = 75


class TimedOut(AutotuneError):
    """The time limit for waiting was reached."""

    exit_code = 124


_ADVICE = {
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space in your quota and try again",
    errno.EFBIG: "raise the file size limit (ulimit -f) and try again",
    errno.EROFS: "remount it for writing, or use a workspace elsewhere",
    errno.EACCES: "check its owner and permissions",
    errno.EPERM: "check its owner and permissions",
    errno.EMFILE: "raise the open file limit (ulimit -n) and try again",
    errno.ELOOP: "it is a symbolic link, which may lead to somebody else's file: remove it",
    errno.ESTALE: "mount its file system again",
}


# Not the fault of one file. EIO (a bad sector) is when reading; when writing it concerns the whole disk.
_PASSING = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ESTALE,
}  # fmt: skip


def clipped(text: str, most: int = _MAX_FAULT_LENGTH) -> str:
    """Return a text of at most so many characters and an ellipsis: what is too much is cut out of its middle."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def one_line(text: object) -> str:
    """Return text as one line of printable characters, for a terminal. File and operator names may hold anything."""
    return _printable(clipped(" ".join(str(text).strip().splitlines()), _MAX_LINE_LENGTH))


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an exception, cut short; the name of its type if it has no message."""
    lines = (line.strip() for line in str(error).splitlines())
    line = next(filter(None, lines), type(error).__name__)
    return clipped(line, _MAX_CAUSE_LENGTH)


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception says that there was no more memory, or one that it was raised in answer to.

    Those of libraries in C++ have no type of their own in Python.
    """
    while error is not None:
        if isinstance(error, MemoryError) or (not isinstance(error, AutotuneError) and "std::bad_alloc" in str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def printable(text: object) -> str:
    """Return text as lines of printable characters: what a terminal would obey, such as an escape sequence, is `?`."""
    return "\n".join(_printable(line) for line in str(text).split("\n"))


def _printable(line: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\t" else "?" for sign in line)


def disk_problem(action: str, path: str | os.PathLike[str], error: OSError) -> DiskProblem:
    """Describe a failed operation in one line: what failed, on which file, why, and what to do.

    Args:
        action: A verb, such as `write`.
        path: The file or folder.
        error: What the operating system said.

    Returns:
        The error, to be raised `from error`.
    """
    reason = error.strerror or str(error) or "no reason given"
    advice = _ADVICE.get(error.errno or 0)
    line = f"cannot {action} {os.fspath(path)}: {reason[:1].lower()}{reason[1:]}"
    problem = DiskProblem(f"{line}; {advice}" if advice else line)
    problem.passing = error.errno in _PASSING or (error.errno == errno.EIO and action != "read")
    problem.perhaps_local = error.errno in (errno.EIO, errno.ESTALE)
    return problem
