"""A keeper runs commands within their limits, and leaves nothing of them behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.errors import WorkerCrashed
from autotune.processes.keeper import CommandLimits, Finished, Keeper

from ..waiting import until

LIMITS = CommandLimits(timeout_s=20.0, file_bytes=1 << 16, output_bytes=1000)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


def run(keeper: Keeper, text: str, folder: Path, **limits: object) -> Finished:
    return keeper.run(["sh", "-c", text], str(folder), dict(os.environ), CommandLimits(**{**vars(LIMITS), **limits}))  # type: ignore[arg-type]


def lives(marker: str) -> bool:
    return any(marker in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))


def test_a_keeper_says_how_a_command_ended_and_what_it_printed(keeper: Keeper, tmp_path: Path) -> None:
    assert (run(keeper, "pwd", tmp_path).output, run(keeper, "true", tmp_path).fault) == (f"{tmp_path}\n", "")
    failed = run(keeper, "echo no >&2; exit 3", tmp_path)
    assert (failed.succeeded, failed.status, failed.fault) == (False, 3, "exited with 3: no")
    assert run(keeper, "kill -SEGV $$", tmp_path).fault == "was killed by SIGSEGV"
    missing = keeper.run(["no-such-program"], str(tmp_path), dict(os.environ), LIMITS)
    assert (missing.how, missing.fault) == ("missing", "cannot be run: No such file or directory")


def test_a_command_is_timed_and_killed_when_it_takes_too_long(keeper: Keeper, tmp_path: Path) -> None:
    assert 0.1 <= run(keeper, "sleep 0.1", tmp_path).seconds < 5
    finished = run(keeper, "sleep 60", tmp_path, timeout_s=0.2)
    assert finished.how == "timeout" and "was killed after 0.2" in finished.fault


def test_the_end_of_a_long_output_is_kept_and_a_file_that_is_too_large_ends_the_command(
    keeper: Keeper, tmp_path: Path
) -> None:
    printed = run(keeper, "seq 100000", tmp_path)
    assert printed.output.endswith("99999\n100000\n") and len(printed.output) == 1000 and printed.truncated
    assert not run(keeper, "head -c 100000 /dev/zero > big", tmp_path).succeeded
    assert (tmp_path / "big").stat().st_size == 1 << 16


def test_what_a_command_leaves_behind_is_killed_even_in_a_session_of_its_own(keeper: Keeper, tmp_path: Path) -> None:
    assert run(keeper, "setsid sleep 98761 & sleep 98762 & echo", tmp_path).succeeded
    assert not lives("sleep 9876")


def test_nothing_runs_on_when_its_maker_is_killed(tmp_path: Path) -> None:
    maker = os.fork()
    if not maker:
        run(Keeper(), "setsid sleep 98763 & sleep 98764", tmp_path)
        os._exit(0)
    until(lambda: lives("sleep 98763") and lives("sleep 98764"))
    os.kill(maker, signal.SIGKILL)
    os.waitpid(maker, 0)
    until(lambda: not lives("sleep 9876"))


def test_a_keeper_that_is_killed_is_no_result_of_a_command(keeper: Keeper, tmp_path: Path) -> None:
    with pytest.raises(WorkerCrashed):
        run(keeper, "kill -9 $PPID; sleep 60", tmp_path)


def test_a_command_runs_on_the_cpus_that_it_is_given(keeper: Keeper, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    told = run(keeper, "grep Cpus_allowed_list /proc/self/status", tmp_path, cpus=(cpu,))
    assert told.output.split() == ["Cpus_allowed_list:", str(cpu)]
