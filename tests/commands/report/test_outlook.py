"""What more trials would bring a job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.commands.report import history
from autotune.commands.report.history import Outlook, outlook
from autotune.commands.wall_time import reports
from autotune.metric import Metric
from autotune.planning.latency import Forecast
from autotune.storage.paths import JobPaths, Workspace

NOW = 1_700_000_300.0


def found(workspace: Workspace, paths: JobPaths, ended: bool) -> Outlook | None:
    seen = history.of(workspace, paths)
    (times,) = reports(workspace, [paths], NOW)
    return outlook(seen.spec, seen.tasks(), [False, False], times, ended)


def test_the_hour_is_at_the_pace_of_the_stages(workspace: Workspace, tuned: JobPaths) -> None:
    there = found(workspace, tuned, ended=True)
    # 48 trials in 19 seconds of stages
    assert there is not None and there.hour is not None and there.hour.trials == pytest.approx(48 * 3600 / 19, abs=1)
    assert there.latency_ms == 1.0
    assert there.rest is None


def test_a_job_that_goes_on_has_the_rest_of_its_budget_and_one_without_times_nothing(
    workspace: Workspace, make_job: Callable[..., JobPaths], tuned: JobPaths
) -> None:
    paths = make_job(2, trials=148)  # shares the logs of job 1
    there = found(workspace, paths, ended=False)
    assert there is not None and there.rest is not None and there.rest.trials == 100
    assert there.hour is None, "no stage of it has ended"
    assert "after the 100 trials that are left" in there.says
    assert found(workspace, make_job(3, "new", target_key="llvm-other"), ended=False) is None


@pytest.mark.parametrize(("median", "said"), [(9.99, True), (9.5, False)])
def test_an_outlook_says_when_an_hour_hardly_pays(median: float, said: bool) -> None:
    there = Outlook(10.0, None, Forecast(100, median, 9.0, 10.0))
    assert ("hardly pays" in there.says) == ("hardly pays" in there.verdict) == said
    assert there.saving == pytest.approx(1 - median / 10)


def test_the_verdict_says_how_much_an_hour_should_save_and_the_forecast_has_the_unit_of_the_metric() -> None:
    there = Outlook(10.0, None, Forecast(100, 9.5, 9.0, 9.9))
    assert there.verdict == "One more hour of tuning should save 5.0% of the latency (80% between 1.0% and 10.0%)."
    hour = "about 100 trials, 9.5 ms (80% between 9 and 9.9)"
    assert there.says == f"forecast of the tasks' sum: after one more hour with a larger budget, {hour}"
    assert Outlook(10.0, Forecast(100, 9.5, 9.0, 9.9), there.hour).says.endswith(f"; after one more hour, {hour}")
    assert Outlook(10.0, None, None).verdict == ""
    rate = Metric("speed", "GFLOP/s", "larger")
    now, middle, low, high = (rate.to_us(value) / 1e3 for value in (5.0, 8.0, 6.0, 9.0))
    assert Outlook(now, None, Forecast(100, middle, high, low), metric=rate).says.endswith(
        "8 GFLOP/s (80% between 6 and 9)"
    )
