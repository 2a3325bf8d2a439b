"""A process that was given a share of the memory is refused more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autotune.processes.memory import limit_process, memory_bytes

_TAKE = """
import sys
from pathlib import Path
for line in sys.stdin:
    try:
        data = bytearray(int(line))
        print("taken", flush=True)
    except MemoryError:
        print("refused", flush=True)
"""


def test_a_process_with_a_limit_is_held_to_its_share() -> None:
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


def test_a_process_that_has_ended_is_let_alone() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert limit_process(gone.pid, 0.5) == int(memory_bytes() * 0.5)


def test_the_memory_is_what_the_tightest_group_around_allows(tmp_path: Path) -> None:
    mounted = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    for name, text in {
        "proc/self/cgroup": "0::/outer/inner",
        "proc/self/mountinfo": mounted,
        "sys/fs/cgroup/outer/memory.max": 1 << 28,
        "sys/fs/cgroup/outer/inner/memory.max": "max",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert memory_bytes(tmp_path) == 1 << 28
