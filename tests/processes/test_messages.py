"""Every message arrives as it was sent; anything else is refused."""

from __future__ import annotations

import os
import typing

import pytest

from autotune.errors import InvalidData
from autotune.network_plan.plan import Block, Plan
from autotune.options import InputSpec
from autotune.processes import messages
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import (
    ClusterNodes,
    ExportAnswer,
    ExportRequest,
    Fatal,
    ImportAnswer,
    ImportRequest,
    KillStage,
    Message,
    PlanAnswer,
    PlanRequest,
    ProgressStep,
    Ready,
    RunStage,
    StageBegan,
    StageReport,
    WorkFailed,
)
from autotune.storage.daemon_info import ClusterNode
from autotune.storage.formats import Entry, ShapeBinding, TaskSpec

INPUT = InputSpec("x", (1, 3), "float32")
TASK = TaskSpec("conv", "0abc", 2, "1x3", 0.5, True)
ASKED = ShapeBinding("batch=1", (INPUT,), {"batch": 1})
ENTRY = Entry("batch=1", (INPUT,), (2,), ASKED)
SAMPLES: list[Message] = [
    RunStage(7, "0001-net", 1, 0, "measure", (0, 1), 600.0, ("cpu-0", "cpu-1"), 16, "cuda:1", 2),
    KillStage(7),
    StageBegan(7),
    Ready(123),
    Fatal("this TVM was never tested"),
    StageReport(7, "done", 1.5, {"built": 3, "best_us": None}),
    StageReport(8, "crashed", reason="killed by SIGKILL"),
    ClusterNodes((ClusterNode("n1", "serving", "", (10_000,), (), ("cpu:n1",)), ClusterNode("n2", "lost", "gone"))),
    ImportRequest("/net.onnx", "llvm", 2, (0, 1), "/locks", (ASKED,), {"sr": 16000.0}, True, None),
    ImportAnswer({"kind": "llvm"}, "llvm-2", (INPUT,), (TASK,), (2**70,), 10, 11, (ENTRY,)),
    ExportRequest("/work", "0001-net", "/lib", (0,), (1,), 2, "/locks", 1e-3, 5, 5.0, 4, ("/inputs.npz",)),
    ExportAnswer({"latency": {"tuned_ms": 1.0}}),
    PlanRequest("/work", "0001-net", (0,), "/locks", "batch=1"),
    PlanAnswer(Plan(blocks=(Block(operators=("conv2d_1", "relu_1"), algorithm="direct", threads=2),))),
    ProgressStep("loading TVM"),
    WorkFailed("ModelError", "not a model"),
]


def test_there_is_a_sample_of_each() -> None:
    assert {type(sample) for sample in SAMPLES} == set(typing.get_args(Message))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_message_arrives_as_it_was_sent(sample: Message) -> None:
    reader, writer = os.pipe()
    try:
        messages.send(writer, sample)
        assert messages.receive(MessageReader(reader)) == [sample]
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    "data", [{}, {"type": "unknown"}, {"type": "kill"}, {"type": "kill", "id": "7"}, {"type": "report", "id": 7}]
)
def test_anything_else_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, InvalidData)):
        messages.decode(data)
