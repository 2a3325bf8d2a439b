"""The combinations of a space are those that satisfy its restrictions, listed where they are few enough."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

from autotune.command_jobs.combinations import Combinations
from autotune.command_jobs.definition import Definition, Measure
from autotune.errors import InvalidData


def combinations(restrictions: tuple[str, ...] = (), **parameters: Any) -> Combinations:
    definition = Definition(parameters=parameters, restrictions=restrictions, measure=Measure(("true",)))
    definition.check_itself()
    return Combinations(definition)


def test_all_and_only_those_that_the_restrictions_allow_are_listed() -> None:
    space = combinations(("x * y <= 8", "y != 3 or z == 'on'"), x=(1, 2, 4), y=(1, 2, 3), z=("on", "off"))
    listed = {tuple(space.values(row).values()) for row in space.space}
    every = itertools.product((1, 2, 4), (1, 2, 3), ("on", "off"))
    assert listed == {(x, y, z) for x, y, z in every if x * y <= 8 and (y != 3 or z == "on")}
    assert space.space.size == len(listed) and space.described == f"3 parameters, {len(listed)} combinations"


def test_values_and_configurations_are_each_others() -> None:
    space = combinations(("a != 2",), a=(1, 2), b=(True, False), c=("1", "x"))
    for row in space.space:
        assert space.configuration(space.values(row)) == row
    for wrong in (
        None,
        [],
        {"a": 1},
        {"a": 2, "b": True, "c": "x"},
        {"a": 1, "b": True, "c": 1},
        {"a": 1, "b": [], "c": "x"},
    ):
        assert space.configuration(wrong) is None


def test_a_space_of_which_all_or_nearly_all_is_forbidden_is_refused() -> None:
    with pytest.raises(InvalidData, match="no combination"):
        combinations(("a > 1", "a < 1"), a=(0, 1, 2)).check()
    places = range(9)
    restriction = " + ".join(f"p{place}" for place in places) + " == 0"
    with pytest.raises(InvalidData, match="1,000,000,000 combinations"):
        combinations((restriction,), **{f"p{place}": tuple(range(10)) for place in places}).check()


def test_a_billion_combinations_are_drawn_rather_than_listed() -> None:
    space = combinations(("p0 + p1 > 3",), **{f"p{place}": tuple(range(10)) for place in range(9)})
    began = time.process_time()
    space.check()
    drawn = space.space.sample(np.random.default_rng(1), 500)
    assert time.process_time() - began < 5
    assert space.total == 10**9 and space.space.table is None
    assert len(drawn) == 500 and (drawn[:, 1] + drawn[:, 2] > 3).all()


def test_combinations_of_so_many_parameters_that_the_list_would_fill_the_memory_are_drawn() -> None:
    several = {f"p{place}": (0, 1) for place in range(18)}
    single = {f"q{place}": (7,) for place in range(238)}
    space = combinations(**several, **single)
    assert space.space.table is None and len(space.space.sample(np.random.default_rng(1), 10)) == 10


def test_combinations_of_as_many_with_fewer_parameters_are_listed() -> None:
    assert combinations(**{f"p{place}": (0, 1) for place in range(18)}).space.size == 2**18


def test_of_very_many_of_which_hardly_one_is_allowed_it_says_so() -> None:
    space = combinations(
        (" + ".join(f"p{place}" for place in range(9)) + " == 0",), **{f"p{i}": tuple(range(10)) for i in range(9)}
    )
    with pytest.raises(InvalidData, match="1,000,000,000 combinations"):
        space.check()


def test_a_restriction_prunes_before_the_list_is_too_long() -> None:
    chain = tuple(f"p{place} == p{place + 1}" for place in range(11))
    space = combinations(chain, **{f"p{place}": tuple(range(10)) for place in range(12)})
    assert space.space.size == 10 and space.total == 10**12


def test_a_combination_keeps_its_name_for_it_is_logged_under_it() -> None:
    definition = Definition(parameters={"a": (1, 2), "b": ("x",)}, measure=Measure("echo {a}"))
    assert definition.digest == "65645415dc48f3ed"
    assert definition.candidate_hash({"b": "x", "a": 1}) == "a064ae642cc56126"
