"""A process that was given a share of the memory is refused more."""

from __future__ import annotations

import subprocess
import sys

from autotune.processes.memory import limit_process, memory_bytes

_TAKE = """
import sys
for line in sys.stdin:
    try:
        data = bytearray(int(line))
        print("taken", flush=True)
    except MemoryError:
        print("refused", flush=True)
"""


def test_another_process_is_held_to_its_share() -> None:
    with subprocess.Popen([sys.executable, "-c", _TAKE], stdin=-1, stdout=-1, text=True) as taker:
        assert taker.stdin and taker.stdout

        def take(size: int) -> str:
            taker.stdin.write(f"{size}\n")  # type: ignore[union-attr]
            taker.stdin.flush()  # type: ignore[union-attr]
            return taker.stdout.readline().strip()  # type: ignore[union-attr]

        size = 1 << 28
        assert take(size) == "taken"
        limit = limit_process(taker.pid, (size // 2) / memory_bytes())
        assert limit <= size // 2
        assert take(size) == "refused"
        assert limit_process(taker.pid, 1.0) == limit, "it cannot be raised again"
        taker.stdin.close()


def test_one_that_has_ended_is_let_alone() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    limit_process(gone.pid, 0.5)
