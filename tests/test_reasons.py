"""Every reason has a sentence, and those to wait have a topic."""

from __future__ import annotations

from datetime import datetime
from typing import get_args

import pytest

from autotune.reasons import EndReason, Reason, ReasonKind, WaitTopic, sentence

OPENS = datetime(2026, 1, 10, 22, 0).timestamp()


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (None, ""),
        (Reason("turn"), "waits for its turn"),
        (Reason("device", device="cpu"), "waits for all CPUs to measure on"),
        (Reason("device", device="cuda"), "waits for a CUDA device to measure on"),
        (Reason("device", device="simulated"), "waits for a simulated device to measure on"),
        (Reason("device-aside", device="rpc-phone", detail="x"), "waits for a board of [devices.phone]: x"),
        (Reason("no-device", device="cuda"), "needs a CUDA device, and this machine has none"),
        (
            Reason("no-device-on-nodes", device="cpu-AMD_EPYC_25_17_1-2"),
            "needs 2 CPUs of the model AMD EPYC 25 17 1, and no node of the cluster has one",
        ),
        (Reason("device", device="cuda-NVIDIA_H100"), "waits for a GPU of the model NVIDIA H100 to measure on"),
        (Reason("window", opens_at=OPENS), "waits for the window at 22:00"),
        (Reason("lease", resources=("cpu-0", "cuda:1")), "cpu-0, cuda:1 in use by others"),
        (Reason("window", opens_at=1e300), "waits for the window at its next opening"),
        (
            Reason("lease", resources=("cpu-0",), holders=("process 7 of ann (vi), which is stopped",)),
            "cpu-0 in use by process 7 of ann (vi), which is stopped",
        ),
        (Reason("unusable-files", detail="x is {damaged}"), "cannot continue: x is {damaged}"),
        (Reason("budget-used"), "budget used"),
        (Reason("budget-used", set_aside=2, detail="train: x"), "budget used; 2 tasks set aside: train: x"),
        (Reason("all-set-aside", detail="build: crashed"), "build: crashed"),
    ],
)
def test_a_reason_is_put_into_words(reason: Reason | None, text: str) -> None:
    assert sentence(reason) == text


def test_every_kind_has_words_of_its_own() -> None:
    told = [sentence(Reason(kind, detail="what happened")) for kind in get_args(ReasonKind)]
    assert all(told) and len(set(told)) == len(told)


def test_every_topic_is_that_of_its_reason_and_an_end_has_none() -> None:
    assert [Reason(topic).topic for topic in get_args(WaitTopic)] == list(get_args(WaitTopic))
    assert {Reason(end).topic for end in get_args(EndReason)} == {None}
