from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.storage.record_log import RecordLog

from .logs import OLD, log_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(path: Path) -> RecordLog:
    log = log_at(path)
    log.append(OLD)
    return log


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was reported since the last call."""

    def told() -> list[str]:
        records = [r for r in caplog.records if r.name == "autotune.storage"]
        assert all(r.levelno == logging.WARNING for r in records)
        messages = [r.getMessage() for r in records]
        caplog.clear()
        return messages

    return told


@pytest.fixture(autouse=True)
def no_file_left_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before
