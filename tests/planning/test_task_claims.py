"""A tuning log is free for a task unless another task has claimed it, and those who watch it hear of a change."""

from __future__ import annotations

from autotune.planning.task_claims import TaskClaims


def test_a_claimed_log_is_free_for_its_holder_alone() -> None:
    claims = TaskClaims()
    claims.change(1, {}, {"log": {0}})
    assert claims.is_free("log", 1, 0)
    assert not claims.is_free("log", 1, 1)
    assert not claims.is_free("log", 2, 0)
    claims.change(1, {"log": {0}}, {})
    assert claims.is_free("log", 2, 0)


def test_other_jobs_that_watch_a_log_are_named_when_its_claims_change() -> None:
    claims = TaskClaims()
    for job in (3, 2, 1):
        claims.watch(job, set(), {"log"})
    claims.watch(4, set(), {"another"})
    assert claims.change(1, {}, {"log": {0}}) == [2, 3]
    claims.watch(2, {"log"}, set())
    assert claims.change(1, {"log": {0}}, {}) == [3]


def test_nothing_is_kept_of_what_is_neither_claimed_nor_watched() -> None:
    claims = TaskClaims()
    claims.change(1, {}, {"log": {0}})
    claims.watch(2, set(), {"log"})
    claims.change(1, {"log": {0}}, {})
    claims.watch(2, {"log"}, set())
    assert (claims._holders, claims._watchers) == ({}, {})
