"""Check that a disk keeps what is written to it while the writer is killed, for `doctor`.

A process publishes a file, appends to a log and says so, again and again, until it is killed. All that it said must
then be there, and its lock must be free. That shows file systems on which renaming, appending or locking does not work
as on a local disk. What a power failure would lose is not shown by a kill.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from autotune.errors import AutotuneError, DiskProblem
from autotune.storage import locks
from autotune.storage.atomic import publish_bytes
from autotune.storage.record_log import RecordLog
from autotune.storage.scratch import scratch_folder

_WRITING_S = 0.3
_START_LIMIT_S = 20.0
_ROW = b"%9d\n"
_ROWS = 4096


def check_disk(folder: Path) -> str:
    """Kill a process that writes below a folder, and look at what is left. It takes about a second.

    Returns:
        A line that says what was found.

    Raises:
        DiskProblem: Something that was written is lost, or locks do not work.
    """
    try:
        with scratch_folder("doctor", folder) as scratch:
            said = _write_until_killed(Path(scratch))
            _judge(Path(scratch), said)
    except OSError as error:
        raise DiskProblem(f"the disk of {folder} cannot be written to: {error.strerror or error}") from error
    return f"the disk keeps what is written: nothing lost after {said} synced writes and a kill"


def _write_until_killed(folder: Path) -> int:
    """Return how many writes the process said were done."""
    command = [sys.executable, "-m", "autotune.commands.disk", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            said = writer.stdout.readline()
            if said and locks.try_lock(folder / "lock") is not None:
                raise DiskProblem(f"two processes held one lock in {folder.parent}: its file system cannot lock")
            time.sleep(_WRITING_S if said else 0.0)
        finally:
            writer.kill()
        rest, errors = writer.communicate(timeout=_START_LIMIT_S)
    lines = (said + rest).splitlines()
    if not lines:
        raise DiskProblem(f"cannot write below {folder.parent}: {errors.strip() or 'the process ended'}")
    return int(lines[-1])


def _judge(folder: Path, said: int) -> None:
    logged = [record["number"] for record in _log(folder).read()]
    if logged[:said] != list(range(1, said + 1)):
        raise DiskProblem(
            f"the disk of {folder.parent} lost lines of a log: {said} were synced, {len(logged)} are there"
        )
    rows = set((folder / "published").read_bytes().splitlines(keepends=True))
    if len(rows) != 1 or int(next(iter(rows))) < said:
        raise DiskProblem(f"the disk of {folder.parent} tore a file that was renamed into its place")
    lease = locks.try_lock(folder / "lock")
    if lease is None:
        raise DiskProblem(f"the lock of a process that was killed is still held in {folder.parent}")
    lease.release()


def _log(folder: Path) -> RecordLog:
    return RecordLog(folder / "log.jsonl", "disk-check", 1)


def main() -> None:
    """Write below the folder that the command line names, until somebody kills this process."""
    folder = Path(sys.argv[1])
    number = 0
    try:
        with locks.exclusive(folder / "lock"):
            while True:
                number += 1
                publish_bytes(folder / "published", _ROW % number * _ROWS)
                _log(folder).append([{"number": number}])
                sys.stdout.write(f"{number}\n")
                sys.stdout.flush()
    except AutotuneError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
