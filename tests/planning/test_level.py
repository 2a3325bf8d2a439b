"""When a model promises to be fast enough."""

from __future__ import annotations

from autotune.planning.level import estimate_ms, promises


def test_the_estimate_is_the_sum_of_the_best_times_by_weight() -> None:
    assert estimate_ms([(2, 1000.0), (1, 500.0)]) == 2.5


def test_there_is_none_while_a_task_has_no_time() -> None:
    assert estimate_ms([(2, 1000.0), (1, None)]) is None
    assert estimate_ms([]) is None


def test_a_promise_is_a_little_better_than_the_level() -> None:
    assert promises(4.9, 1.0, 5.0)
    assert not promises(4.99, 1.0, 5.0)
    assert not promises(None, 1.0, 5.0)


def test_what_the_whole_model_took_beside_its_tasks_corrects_the_estimate() -> None:
    assert not promises(4.5, 1.2, 5.0)
    assert promises(4.1, 1.2, 5.0)
