"""A seed makes the same plan again, and every place has its turn."""

from __future__ import annotations

from collections import Counter

from kills.plan import KILLS_A_ROUND, coverage, plan

SITES = Counter({f"stage write before file{number}": 1 + number % 7 for number in range(100)})


def test_a_seed_makes_the_same_plan_again() -> None:
    assert plan(SITES, 3, seed=5) == plan(SITES, 3, seed=5)
    assert plan(SITES, 3, seed=5) != plan(SITES, 3, seed=6)


def test_zero_rounds_are_as_many_as_all_steps_take_each_once() -> None:
    kills = [(kill.site, kill.occurrence) for some in plan(SITES, 0, seed=1) for kill in some]
    assert len(kills) == len(set(kills)) == sum(SITES.values())


def test_every_place_has_its_turn_before_one_has_a_second() -> None:
    rounds = -(-len(SITES) // KILLS_A_ROUND)
    kills = [kill for some in plan(SITES, rounds, seed=1) for kill in some]
    assert len(kills) == rounds * KILLS_A_ROUND <= sum(SITES.values())
    assert {kill.site for kill in kills} == set(SITES)


def test_one_step_more_changes_no_other_kill_of_a_plan_of_all_steps() -> None:
    before = {kill for some in plan(SITES, 0, seed=1) for kill in some}
    after = {kill for some in plan(SITES + Counter(["daemon fsync after x"]), 0, seed=1) for kill in some}
    assert before < after


def test_some_die_alone_and_some_with_the_daemon() -> None:
    assert {kill.scope for some in plan(SITES, 0, seed=1) for kill in some} == {"one", "all"}


def test_coverage_counts_places_not_deaths() -> None:
    assert coverage(["a", "b", "c"], ["a", "a", "b", "a worker, at a random time"]) == (2, 3)
