"""Whatever an item does to its process costs that item only."""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.errors import ProcessRefused, WorkerError
from autotune.processes.children import ItemResult, refused
from autotune.processes.isolate import KeptChild, isolated, isolated_at_once

from ..waiting import until

LIMIT_S = 20.0


def segfault() -> None:
    faulthandler.disable()  # pytest's would print a traceback
    os.kill(os.getpid(), signal.SIGSEGV)


def die_of_no_name() -> None:
    os.kill(os.getpid(), 40)


def leave() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(1000)


def fail() -> None:
    raise ValueError("first line\n\n  wrong shape  \n")


def interrupt() -> None:
    raise KeyboardInterrupt


def give_no_json() -> object:
    return object()


def work(items: list[Any], limit_s: float = LIMIT_S) -> list[ItemResult]:
    """The outcomes of items: one that can be called is called, any other is doubled."""
    pairs = list(isolated(items, lambda: lambda item: item() if callable(item) else 2 * item, limit_s=limit_s))
    assert [item for item, _ in pairs] == items
    return [outcome for _, outcome in pairs]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


class TestGoodItems:
    def test_each_comes_back_with_its_value_in_order_from_one_process(self) -> None:
        assert work([]) == []
        assert work([1, 2, 3]) == [ItemResult("ok", 2), ItemResult("ok", 4), ItemResult("ok", 6)]
        pids = [outcome.value for outcome in work([os.getpid, os.getpid])]
        assert pids[0] == pids[1] != os.getpid()

    def test_a_value_may_be_large(self) -> None:
        assert [len(outcome.value) for outcome in work(["x" * 3_000_000, "y"])] == [6_000_000, 2]

    def test_what_is_prepared_is_prepared_once_and_has_a_time_limit_of_its_own(self, tmp_path: Path) -> None:
        def prepare() -> Callable[[int], int]:
            (tmp_path / str(os.getpid())).touch()
            time.sleep(0.4)
            return lambda item: item

        outcomes = [outcome.kind for _, outcome in isolated([1, 2, 3], prepare, limit_s=0.3)]
        assert outcomes == ["ok"] * 3 and len(list(tmp_path.iterdir())) == 1


class TestBadItems:
    @pytest.mark.parametrize(
        ("item", "outcome"),
        [
            (segfault, ItemResult("crash", reason="killed by SIGSEGV")),
            (die_of_no_name, ItemResult("crash", reason="killed by signal 40")),
            (leave, ItemResult("crash", reason="exited with 3")),
            (fail, ItemResult("error", reason="ValueError: wrong shape")),
            (interrupt, ItemResult("error", reason="KeyboardInterrupt: ")),
            (give_no_json, ItemResult("error", reason="TypeError: Object of type object is not JSON serializable")),
        ],
    )
    def test_one_costs_itself_only(self, item: Callable[[], object], outcome: ItemResult) -> None:
        assert work([1, item, 3, item, 5]) == [
            ItemResult("ok", 2),
            outcome,
            ItemResult("ok", 6),
            outcome,
            ItemResult("ok", 10),
        ]

    def test_one_that_hangs_is_killed_at_its_limit(self) -> None:
        assert work([1, hang, 3], limit_s=0.3) == [
            ItemResult("ok", 2),
            ItemResult("timeout", reason="killed after 0.3 s"),
            ItemResult("ok", 6),
        ]

    def test_the_limit_is_for_each_item(self) -> None:
        def pause() -> None:
            time.sleep(0.3)

        assert [outcome.kind for outcome in work([pause] * 4, limit_s=1.0)] == ["ok"] * 4

    def test_one_that_closes_the_connection_and_hangs_is_a_crash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def cut() -> None:
            os.closerange(3, 256)
            hang()

        monkeypatch.setattr("autotune.processes.children._EXIT_WAIT_S", 0.3)
        assert work([cut, 2]) == [ItemResult("crash", reason="closed its connection"), ItemResult("ok", 4)]


class TestWhatItemsLeaveBehind:
    def leave_a_child(self, note: Path) -> None:
        pid = os.fork()
        if not pid:
            hang()
        note.write_text(str(pid))

    def test_a_child_of_a_good_item_is_killed(self, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        assert [outcome.kind for outcome in work([lambda: self.leave_a_child(note), 2])] == ["ok", "ok"]
        until(lambda: not alive(int(note.read_text())), limit_s=10)

    def test_a_child_of_an_item_that_crashed_delays_nothing_and_is_killed(self, tmp_path: Path) -> None:
        note = tmp_path / "pid"

        def crash() -> None:
            self.leave_a_child(note)
            segfault()

        begun = time.monotonic()
        assert [outcome.kind for outcome in work([crash, 2])] == ["crash", "ok"]
        assert time.monotonic() - begun < LIMIT_S / 2
        until(lambda: not alive(int(note.read_text())), limit_s=10)

    def test_a_subprocess_of_an_item_that_hangs_is_killed(self, tmp_path: Path) -> None:
        note = tmp_path / "pid"

        def run() -> None:
            process = subprocess.Popen(["sleep", "1000"])
            note.write_text(str(process.pid))
            process.wait()

        assert [outcome.kind for outcome in work([run, 2], limit_s=0.5)] == ["timeout", "ok"]
        until(lambda: not alive(int(note.read_text())), limit_s=10)

    def test_no_file_and_no_zombie_is_left_here(self) -> None:
        before = open_files(), children()
        work([1, segfault, hang, fail], limit_s=0.2)
        assert (open_files(), children()) == before

    def test_one_who_stops_listening_kills_the_child(self) -> None:
        runs = isolated([os.getpid, hang], lambda: lambda item: item(), limit_s=LIMIT_S)
        pid = next(runs)[1].value
        assert alive(pid)
        runs.close()  # type: ignore[attr-defined]
        assert not alive(pid)


class TestRefusal:
    def test_an_item_that_gets_no_process_is_not_to_blame(self) -> None:
        def refuse() -> None:
            raise refused(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))

        results = isolated([str, refuse], lambda: lambda item: item(), limit_s=LIMIT_S)
        assert next(results)[1].kind == "ok"
        with pytest.raises(ProcessRefused, match="starts no more processes.*ulimit -u"):
            next(results)


class TestPreparing:
    @pytest.mark.parametrize(
        ("prepare", "reason"),
        [(fail, "ValueError: wrong shape"), (segfault, "killed by SIGSEGV"), (hang, "killed after 0.2 s")],
    )
    def test_a_failure_to_prepare_is_no_items_fault(self, prepare: Callable[[], Any], reason: str) -> None:
        with pytest.raises(WorkerError, match=f"cannot start work: {reason}"):
            list(isolated([1, 2], prepare, limit_s=LIMIT_S, prepare_limit_s=0.2 if prepare is hang else LIMIT_S))


PARENT = """
import os, sys, time
from autotune.processes.isolate import isolated
def work(item):
    print(os.getpid(), flush=True)
    time.sleep(1000)

list(isolated([1], lambda: work, limit_s=1000))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_the_child_of_a_killed_process_dies() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = json.loads(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    until(lambda: not alive(child), limit_s=10)


@pytest.mark.parametrize(("mode", "reason"), [(None, "no such file"), (0o644, "permission denied")])
def test_an_interpreter_that_is_gone_or_forbidden_is_not_told_as_a_limit(
    tmp_path: Path, mode: int | None, reason: str
) -> None:
    program = tmp_path / "python"
    if mode is not None:
        program.write_text("#!/bin/sh")
        program.chmod(mode)
    with pytest.raises(OSError, match=str(program)) as caught:
        subprocess.Popen([str(program)])
    assert str(refused(caught.value)).startswith(f"{program} cannot be started ({reason}")


def test_children_work_at_the_same_time_and_one_that_dies_costs_its_item_only(tmp_path: Path) -> None:
    """The first items of both children wait for each other."""

    def work(number: int) -> int:
        (tmp_path / f"{number}").touch()
        while number < 2 and not (tmp_path / f"{1 - number}").exists():
            time.sleep(0.01)
        if number == 2:
            segfault()
        return 10 * number

    results = dict(isolated_at_once(range(5), lambda: work, 2, limit_s=LIMIT_S))
    assert {number: result.value for number, result in results.items()} == {0: 0, 1: 10, 2: None, 3: 30, 4: 40}
    assert [number for number, result in results.items() if result.kind == "crash"] == [2]


def test_no_child_is_left_when_nobody_wants_more_results() -> None:
    results = isolated_at_once(range(4), lambda: lambda number: os.getpid() if number < 2 else hang(), 2, limit_s=60.0)
    pid = next(results)[1].value
    results.close()
    assert not psutil.pid_exists(pid)


def doubling_where() -> Callable[[Any], list[int]]:
    return lambda item: item() if callable(item) else [os.getpid(), 2 * item]


class TestKeptChild:
    """One child works for several calls, until an item ends it."""

    @pytest.fixture
    def kept(self) -> Iterator[KeptChild]:
        kept = KeptChild()
        yield kept
        kept.end()

    def work(self, kept: KeptChild, items: list[Any], **given: Any) -> list[ItemResult]:
        pairs = list(isolated(items, doubling_where, limit_s=LIMIT_S, kept=kept, **given))
        assert [item for item, _ in pairs] == items
        return [outcome for _, outcome in pairs]

    def test_it_works_for_the_next_call_as_well(self, kept: KeptChild) -> None:
        before = open_files()
        (first, _), (second,) = self.work(kept, [1, 2]), self.work(kept, [3])
        assert first.value[0] == second.value[0] in children()
        assert second.value[1] == 6
        kept.end()
        assert not alive(second.value[0])
        assert open_files() <= before + 1  # its pipe, until the next one is made

    @pytest.mark.parametrize("deed", [segfault, leave])
    def test_an_item_that_ends_it_costs_itself_only(self, kept: KeptChild, deed: Callable[[], None]) -> None:
        (first,) = self.work(kept, [1])
        crash, after = self.work(kept, [deed, 4])
        assert crash.kind == "crash" and after.value[1] == 8
        assert after.value[0] != first.value[0]
        assert self.work(kept, [5])[0].value[0] == after.value[0]

    def test_items_of_an_earlier_call_are_not_blamed_on_a_later_one(self, kept: KeptChild, tmp_path: Path) -> None:
        """What fails in a child that has worked before is tried again in a new one, even the first item of a call."""
        self.work(kept, [1])
        fails_once = partial(leave_unless, tmp_path / "was_here")
        assert [outcome.kind for outcome in self.work(kept, [fails_once], retried=("crash",))] == ["ok"]

    def test_one_that_died_meanwhile_is_replaced(self, kept: KeptChild) -> None:
        (first,) = self.work(kept, [1])
        os.kill(first.value[0], signal.SIGKILL)
        until(lambda: not alive(first.value[0]))
        (second,) = self.work(kept, [2], retried=("crash",))
        assert second.kind == "ok" and second.value[0] != first.value[0]

    def test_it_ends_where_its_caller_gives_up(self, kept: KeptChild) -> None:
        runs = isolated([1, hang], doubling_where, limit_s=LIMIT_S, kept=kept)
        pid = next(runs)[1].value[0]
        runs.close()
        assert not alive(pid)


def leave_unless(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        leave()
