"""A library that is slower than the model as submitted says which kernels hold it back."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.tvm_backend.export.writing.report_json import slower


def kernel(name: str, us: float, least_us: float | None = 10.0, task: str | None = "tuned") -> dict[str, Any]:
    return {"name": name, "us": us, "least_us": least_us, "task": task}


def latencies(share: float, tuned_ms: float = 1.0) -> dict[str, Any]:
    return {"latency": {"tuned_ms": tuned_ms}, "share_of_onnxruntime": [share, share, share]}


@pytest.mark.parametrize(
    "given", [latencies(0.9), latencies(1.01), {"latency": {}}], ids=["faster", "alike", "not timed"]
)
def test_a_library_that_is_not_slower_has_nothing_to_explain(given: dict[str, Any]) -> None:
    assert slower("onnxruntime", given, [kernel("a", 900.0)], {"tuned"}) is None


def test_the_kernels_furthest_from_the_limit_of_the_machine_are_named_first() -> None:
    kernels = [kernel("near", 400.0, 390.0), kernel("far", 300.0, 30.0), kernel("b", 60.0), kernel("c", 50.0)]
    comparison = slower("onnxruntime", latencies(1.25), kernels, {"tuned"})
    assert comparison is not None
    assert (comparison["than"], comparison["ratio"]) == ("onnxruntime", 1.25)
    assert [item["name"] for item in comparison["kernels"]] == ["far", "b", "c"]
    assert comparison["kernels"][0] == {"name": "far", "share": pytest.approx(0.3), "of_limit": pytest.approx(0.1)}
    assert comparison["between"] == pytest.approx(0.19)


@pytest.mark.parametrize(
    ("us", "task", "helps"),
    [(900.0, "tuned", True), (900.0, None, False), (100.0, "tuned", False)],
    ids=["a task far from the limit", "a kernel in no task", "the time passes between kernels"],
)
def test_more_trials_may_help_where_tasks_could_take_off_the_gap(us: float, task: str | None, helps: bool) -> None:
    comparison = slower("onnxruntime", latencies(1.25), [kernel("a", us, task=task)], {"tuned"})
    assert comparison is not None and comparison["more_trials"] is helps


def test_where_the_limits_are_unknown_no_part_of_them_is_told() -> None:
    comparison = slower(
        "torch", {"latency": {"tuned_ms": 1.0}, "share_of_torch": [2.0, 2.0, 2.0]}, [kernel("a", 9.0, None)], ()
    )
    assert comparison is not None and comparison["kernels"][0]["of_limit"] is None
