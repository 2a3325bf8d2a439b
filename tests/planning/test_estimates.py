"""Estimates: right after a few stages, not fooled by one, and the same after being written down."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.planning.estimates import Estimates, RunningMean


def learnt(*seconds: float, count: int = 16) -> Estimates:
    estimates = Estimates()
    for value in seconds:
        estimates.add("build", "cuda", ("1", "1/a"), count, value)
    return estimates


class TestMean:
    def test_it_is_the_mean_of_few(self) -> None:
        mean = RunningMean()
        for value in (10.0, 12.0, 11.0):
            mean.add(value)
        assert mean.value == pytest.approx(11.0)

    def test_one_wild_value_moves_it_little(self) -> None:
        mean = RunningMean()
        for value in [10.0, 11.0] * 10 + [1000.0]:
            mean.add(value)
        assert mean.value < 12

    def test_a_lasting_change_is_believed(self) -> None:
        mean = RunningMean()
        for value in [10.0] * 20 + [40.0] * 60:
            mean.add(value)
        assert 38 < mean.value < 42

    @given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
    def test_it_stays_among_what_was_seen(self, values: list[float]) -> None:
        mean = RunningMean()
        for value in values:
            mean.add(value)
        assert min(values) - 1e-6 <= mean.value <= max(values) + 1e-6


class TestEstimates:
    def test_there_is_a_prior(self) -> None:
        assert Estimates().seconds("build", "cuda", (), 16) > Estimates().seconds("build", "cuda", (), 1) > 0

    def test_builds_and_measurements_go_by_candidate(self) -> None:
        assert learnt(32.0).seconds("build", "cuda", ("1", "1/a"), 4) == pytest.approx(8.0)

    def test_searches_take_as_long_whatever_the_batch(self) -> None:
        estimates = Estimates()
        estimates.add("search", "cpu", ("1",), 16, 5.0)
        assert estimates.seconds("search", "cpu", ("1",), 1) == 5.0

    def test_a_new_task_is_like_the_others_of_its_device(self) -> None:
        estimates = learnt(32.0)
        assert estimates.seconds("build", "cuda", ("2", "2/b"), 16) == pytest.approx(32.0)
        assert estimates.seconds("build", "cpu", ("2", "2/b"), 16) == Estimates().seconds("build", "cpu", (), 16)

    def test_a_task_that_is_known_goes_its_own_way(self) -> None:
        estimates = learnt(*[32.0] * 9)
        for _ in range(9):
            estimates.add("build", "cuda", ("1", "1/slow"), 16, 320.0)
        assert estimates.seconds("build", "cuda", ("1", "1/slow"), 16) > 250
        assert estimates.seconds("build", "cuda", ("1", "1/a"), 16) < 80

    def test_a_job_is_forgotten_and_its_tasks_are_not(self) -> None:
        estimates = learnt(32.0)
        estimates.forget("1")
        assert [set(estimate.subjects) for estimate in estimates.known.values()] == [{"1/a"}]

    def test_of_very_many_tasks_those_used_last_are_kept(self) -> None:
        estimates = Estimates()
        for task in range(5000):
            estimates.add("build", "cuda", ("1", f"1/{task}"), 16, 1.0)
        (estimate,) = estimates.known.values()
        assert len(estimate.subjects) == 4000
        assert {"1", "1/4999"} <= set(estimate.subjects)
        assert "1/0" not in estimate.subjects

    def test_it_can_be_written_down(self) -> None:
        estimates = learnt(3.0, 4.0, 9.0)
        again = Estimates.from_json(json.loads(json.dumps(estimates.to_json())))
        assert again == estimates

    @pytest.mark.parametrize("data", [{}, {"means": [[1]]}, {"means": [["build", "cpu", "", "x", 0, 0]]}])
    def test_what_is_not_its_form_is_refused(self, data: dict[str, object]) -> None:
        with pytest.raises((KeyError, TypeError, ValueError)):
            Estimates.from_json(data)
