"""Of a short log everything is learnt from, of a long one the best and an even sample."""

from __future__ import annotations

from pathlib import Path

from autotune.storage.formats import Failure, Trial
from autotune.storage.tuning_log import TuningLog, trials_to_learn_from


def trial(number: int) -> Trial:
    """Slower with its number; every tenth has failed."""
    failed = number % 10 == 0
    failure = Failure("build", "error", "no") if failed else None
    return Trial(f"{number:016x}", [number], [], () if failed else (100.0 + number,), failure, "0001-net", 0, 0.0)


def numbers(trials: list[Trial]) -> list[int]:
    return [int(trial.hash, 16) for trial in trials]


def test_all_of_a_short_log(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    log.add(map(trial, range(64)))
    assert trials_to_learn_from(log, 64) == log.trials()


def test_the_best_and_an_even_sample_of_a_long_one(tmp_path: Path) -> None:
    log = TuningLog(tmp_path / "log.jsonl")
    log.add(map(trial, reversed(range(1000))))
    examples = trials_to_learn_from(log, 100)
    chosen = numbers(examples)
    assert len(chosen) == len(set(chosen)) == 100
    assert chosen == sorted(chosen, reverse=True)  # in the order of the log
    best = [number for number in range(56) if number % 10][:50]
    assert set(best) <= set(chosen)
    rest = [number for number in chosen if number not in best]
    assert all(sum(low <= number < low + 100 for number in rest) in range(2, 8) for low in range(0, 1000, 100))
    assert 2 <= sum(number % 10 == 0 for number in rest) <= 20  # failures are learnt from, too
    assert examples == [trial(number) for number in chosen]
    assert chosen == numbers(trials_to_learn_from(TuningLog(log.path), 100))
