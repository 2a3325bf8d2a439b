"""All trials of a job are results in T4, by the schema of its authors and as Kernel Tuner writes them."""

from __future__ import annotations

from autotune.command_jobs.t4 import results
from autotune.metric import Metric
from autotune.storage.formats import Failure, Trial


def trial(times_us: tuple[float, ...] = (), failure: Failure | None = None) -> Trial:
    return Trial(
        "0" * 16, {"values": {"x": 1, "y": "a"}}, [], times_us, failure, "job", 0, 1e9, build_s=2.0, measure_s=0.5
    )


def test_a_trial_has_its_values_what_they_cost_and_its_times_in_the_unit_of_the_metric() -> None:
    (result,) = results([trial((1000.0, 3000.0, 2000.0))], Metric(unit="s"))["results"]
    assert result["configuration"] == {"x": 1, "y": "a"} and result["invalidity"] == "correct"
    assert result["measurements"] == [{"name": "time", "value": 2.0, "unit": "ms"}] and result["objectives"] == ["time"]
    assert result["times"]["runtimes"] == [1.0, 3.0, 2.0]
    cost = [sum(part) if isinstance(part, list) else part for part in result["times"].values()]
    assert sum(cost) == 2500.0
    metric = Metric("speed", "GB/s", "larger")
    (result,) = results([trial((metric.to_us(8.0),))], metric)["results"]
    assert result["measurements"][0] == {"name": "speed", "value": 8.0, "unit": "GB/s"}


def test_a_failure_says_of_which_kind_it_is() -> None:
    failures = {
        "compile": Failure("build", "error", ""),
        "runtime": Failure("measure", "crash", ""),
        "timeout": Failure("measure", "timeout", ""),
        "correctness": Failure("measure", "wrong", ""),
    }
    document = results([trial(failure=failure) for failure in failures.values()], Metric())
    assert [result["invalidity"] for result in document["results"]] == list(failures)
    assert all(isinstance(result["measurements"][0]["value"], str) for result in document["results"])
