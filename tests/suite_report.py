"""What a run of the tests says at its end: its slowest tests, the CPU seconds of the rooms, what it did not reach."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

STARTED = "TESTS_OF_AUTOTUNE_STARTED"  # the processes of a run share it
SLOWEST = 10


def cpu_s() -> float:
    """The CPU seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


_made_s = Counter[str]()  # what this process has spent since its last report on what several tests share


@contextmanager
def making(name: str) -> Iterator[None]:
    """Counts the seconds of its block, less those of others inside, for what is made rather than for the test."""
    began_s = time.monotonic()
    before_s = _made_s.total()
    yield
    _made_s[name] += time.monotonic() - began_s - (_made_s.total() - before_s)


def room_of(nodeid: str) -> str:
    """The folder of a test below `tests`, and that below `tests/tvm_backend` for one of these."""
    folders = nodeid.split("::")[0].split("/")[1:-1]
    return "/".join(folders[: 2 if folders[:1] == ["tvm_backend"] else 1]) or "tests"


def add_options(parser: pytest.Parser) -> None:
    """Adds `--minutes`."""
    parser.addoption("--minutes", type=float, help="skip what has not begun after so many minutes, and name it")


class SuiteReport:
    """A plugin that counts what each test costs. Seconds of CPU are those of the process and of ended children."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes
        self.wall_s = Counter[str]()
        self.made_s = Counter[str]()
        self.cpu_s = Counter[str]()
        self.unreached = Counter[str]()
        self._before_s = cpu_s()
        os.environ.setdefault(STARTED, str(time.time()))

    def pytest_collection_finish(self) -> None:
        """Let no test pay for what collecting took."""
        self._before_s = cpu_s()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test that begins too late."""
        if self.minutes is not None and time.time() - float(os.environ[STARTED]) > 60 * self.minutes:
            item.user_properties.append(("unreached", True))
            pytest.skip(f"not begun within {self.minutes:g} minutes")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[Any]:
        """Write into each report what CPU its phase took; the processes of pytest-xdist send it along."""
        report = yield
        now_s = cpu_s()
        report.cpu_s = now_s - self._before_s
        self._before_s = now_s
        report.made_s = dict(_made_s)
        _made_s.clear()
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up the phases of the tests."""
        self.wall_s[report.nodeid] += report.duration - sum(report.made_s.values())
        for name, seconds in report.made_s.items():
            self.made_s[name] = max(self.made_s[name], seconds)  # others have only waited for it
        self.cpu_s[room_of(report.nodeid)] += report.cpu_s
        if report.when == "setup" and ("unreached", True) in report.user_properties:
            self.unreached[report.nodeid.split("::")[0]] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what was counted."""
        total_s = sum(self.cpu_s.values()) or 1.0
        terminalreporter.section("what the tests cost")
        for name, seconds in self.wall_s.most_common(SLOWEST):
            terminalreporter.line(f"{seconds:6.1f} s  {name}")
        made = [f"{name} {seconds:.1f} s" for name, seconds in self.made_s.most_common(SLOWEST)]
        terminalreporter.line(f"made once, for all tests: {', '.join(made)}")
        shares = [f"{room} {seconds:.0f} s ({seconds / total_s:.0%})" for room, seconds in self.cpu_s.most_common()]
        terminalreporter.line(f"{total_s:.0f} CPU seconds: {', '.join(shares)}")
        seed = terminalreporter.config.getoption("randomly_seed", None)
        if seed is not None:
            terminalreporter.line(f"in random order: -p randomly --randomly-seed={seed}")
        for file, count in sorted(self.unreached.items()):
            terminalreporter.line(f"NOT REACHED within {self.minutes:g} minutes: {count} tests of {file}")
