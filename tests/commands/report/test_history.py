"""What the trials of a job say."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.commands.report.history import (
    BestPoint,
    History,
    LatencyPoint,
    TaskTrials,
    failures,
    latency_curve,
    split,
)
from autotune.storage.formats import Failure, JobSpec, TaskSpec, Trial
from autotune.storage.tuning_log import TuningLog

BEGIN = 100.0


def trial(us: float | None, at: float, kind: Any = "crash") -> Trial:
    times = () if us is None else (us,)
    return Trial(f"{at}", None, None, times, Failure("build", kind, f"at {at:.0f}") if us is None else None, "j", 0, at)


def spec(weights: tuple[int, ...], fresh: bool = False, measured: tuple[int, ...] = ()) -> JobSpec:
    tasks = tuple(TaskSpec(f"t{n}", f"{n:016x}", weight, "1", 1.0, True) for n, weight in enumerate(weights))
    measured = measured or (0,) * len(weights)
    return JobSpec(
        id=1,
        name="n",
        model="m",
        target={"kind": "llvm"},
        target_key="k",
        inputs=(),
        tasks=tasks,
        trials=8,
        trials_per_round=8,
        strategy="beam",
        sampler="greedy",
        fresh=fresh,
        known_at_submit=measured,
        submitted_at=BEGIN,
    )


def test_the_curve_goes_from_where_every_task_has_a_time_to_the_last_trial() -> None:
    tasks = [TaskTrials((trial(3000.0, 110), trial(2000.0, 140))), TaskTrials((trial(None, 120), trial(500.0, 130)))]
    assert latency_curve(spec((1, 2)), tasks) == (LatencyPoint(30, 3, 4.0), LatencyPoint(40, 4, 3.0))
    tasks = [TaskTrials((trial(3000.0, 110), trial(3500.0, 140)))]
    assert latency_curve(spec((1,)), tasks) == (LatencyPoint(10, 1, 3.0), LatencyPoint(40, 2, 3.0))
    tasks = [TaskTrials((trial(3000.0, 110),)), TaskTrials((trial(None, 105),))]
    assert latency_curve(spec((1, 1)), tasks) == (LatencyPoint(10, 2, 3.0),)


def test_what_was_known_stands_at_the_start_and_counts_unless_the_job_is_fresh() -> None:
    task = split(spec((1,), fresh=True, measured=(1,)), 0, [trial(3000.0, 50), trial(2000.0, 110)])
    assert latency_curve(spec((1,)), [task]) == (LatencyPoint(0, 0, 3.0), LatencyPoint(10, 1, 2.0))
    assert task.curve() == (BestPoint(1, 3000.0), BestPoint(2, 2000.0))
    task = split(spec((1,), measured=(1,)), 0, [trial(3000.0, 50), trial(2000.0, 110)])
    assert len(task.counted) == 2


def test_the_index_of_a_log_gives_the_curve_of_its_trials(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    trials = trial(3000.0, 110), trial(None, 120), trial(2000.0, 140)
    log.add([replace(made, hash=f"{number:016x}") for number, made in enumerate(trials)])
    assert History(spec((1,)), (log,)).latency() == (LatencyPoint(10, 1, 3.0), LatencyPoint(40, 3, 2.0))


def test_failures_are_counted_by_stage_and_kind() -> None:
    tasks = [TaskTrials((trial(None, 1), trial(None, 2, "timeout"), trial(None, 3), trial(5.0, 4)))]
    assert [(item.kind, item.count, item.example) for item in failures(tasks)] == [
        ("crash", 2, "at 3"),
        ("timeout", 1, "at 2"),
    ]
    assert tasks[0].failed == 3


TIMES = st.lists(st.lists(st.none() | st.floats(1, 1e6), max_size=12), min_size=1, max_size=4)


@given(TIMES, st.randoms())
def test_the_curve_falls_and_ends_at_the_sum_of_the_best(times: list[list[float | None]], rng: random.Random) -> None:
    tasks = [TaskTrials(tuple(trial(us, BEGIN + rng.random() * 50) for us in of_task)) for of_task in times]
    curve = latency_curve(spec((1,) * len(tasks)), tasks)
    values = [point.latency_ms for point in curve]
    assert values == sorted(values, reverse=True)
    assert [point.trials for point in curve] == sorted(point.trials for point in curve)
    best = [task.best_us for task in tasks if task.best_us is not None]
    assert bool(curve) == bool(best)
    if best:
        assert values[-1] == pytest.approx(sum(best) / 1e3)
        assert curve[-1].trials == sum(map(len, times))
