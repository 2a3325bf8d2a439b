"""Every message arrives as it was sent; anything else is refused."""

from __future__ import annotations

import os
import typing

import pytest

from autotune.errors import InvalidData
from autotune.processes import messages
from autotune.processes.channel import MessageReader
from autotune.processes.messages import (
    ClusterNodes,
    ExportAnswer,
    ExportRequest,
    Fatal,
    ImportAnswer,
    ImportRequest,
    KillStage,
    Message,
    ProgressStep,
    Ready,
    RunStage,
    StageReport,
    WorkFailed,
)
from autotune.storage.formats import ClusterNode, Entry, InputSpec, ShapeBinding, TaskSpec

INPUT = InputSpec("x", (1, 3), "float32")
TASK = TaskSpec("conv", "0abc", 2, "1x3", 0.5, True)
ASKED = ShapeBinding("batch=1", (INPUT,), {"batch": 1})
ENTRY = Entry("batch=1", (INPUT,), (2,), ASKED)
SAMPLES: list[Message] = [
    RunStage(7, "0001-net", 1, 0, "measure", (0, 1), 600.0, ("cpu-0", "cpu-1"), 16, "cuda:1", 2),
    KillStage(7),
    Ready(123),
    Fatal("this TVM was never tested"),
    StageReport(7, "done", 1.5, {"built": 3, "best_us": None}),
    StageReport(8, "crashed", reason="killed by SIGKILL"),
