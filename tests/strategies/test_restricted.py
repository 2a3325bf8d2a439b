"""In a space with restrictions strategies draw and walk among what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from autotune import strategies
from autotune.strategies import samplers
from autotune.strategies.restricted import RestrictedSpace, Table
from autotune.strategies.space import Indices, Knob, Measured, ValidConfiguration, View

SIZE = 30


def allows(rows: Indices) -> np.ndarray:
    return np.asarray((rows[:, 1] + rows[:, 2]) % 7 == 0)


def space(listed: bool) -> RestrictedSpace:
    knobs = (Knob("sketch", (0,)), Knob("x", tuple(range(SIZE))), Knob("y", tuple(range(SIZE))))
    rows = np.array([(0, x, y) for x in range(SIZE) for y in range(SIZE) if (x + y) % 7 == 0])
    return RestrictedSpace(knobs, ((True,) * 3,), Table(rows) if listed else allows, rows if listed else None)


@pytest.mark.parametrize("listed", [True, False])
def test_what_is_drawn_is_allowed(listed: bool) -> None:
    ground = space(listed)
    drawn = ground.sample(np.random.default_rng(0), 200)
    assert len(drawn) == 200 and allows(drawn).all()
    assert len(set(map(tuple, drawn.tolist()))) > 60


@pytest.mark.parametrize(("listed", "share"), [(True, 1.0), (False, 0.6)])
def test_nearly_all_steps_lead_to_what_is_allowed(listed: bool, share: float) -> None:
    ground = space(listed)
    rng = np.random.default_rng(0)
    starts = ground.sample(rng, 400)
    moved = ground.walk(rng, starts)
    assert allows(moved).mean() >= share, "one step in seven is allowed by itself"
    assert set((moved != starts).sum(axis=1)) <= {0, 1}


def test_steps_in_a_list_reach_every_value_that_is_allowed_and_no_other() -> None:
    ground = space(listed=True)
    reached = ground.walk(np.random.default_rng(0), np.repeat([[0, 3, 4]], 500, axis=0))
    x = {(0, x, 4) for x in range(SIZE) if (x + 4) % 7 == 0}
    y = {(0, 3, y) for y in range(SIZE) if (y + 3) % 7 == 0}
    assert set(map(tuple, reached.tolist())) == (x | y) - {(0, 3, 4)}


def test_the_nearest_are_the_next_ones_that_are_allowed() -> None:
    nearest = space(listed=True).nearest(np.array([0, 3, 4]))
    assert sorted(map(tuple, nearest.tolist())) == [(0, 3, 11), (0, 10, 4)]
    assert not len(space(listed=False).nearest(np.array([0, 3, 4]))), "none is allowed one value away"


@pytest.mark.parametrize("far", [9, 10**7])
def test_a_table_knows_the_places_of_its_rows_and_of_no_others(far: int) -> None:
    rows = np.array([(0, 1, 2), (0, 5, far)])
    others = np.array([(0, 5, far), (0, far, 5), (0, 1, 2), (0, 0, 0), (0, -1, 2), (1, 1, 2)])
    assert Table(rows).places(others).tolist() == [1, -1, 0, -1, -1, -1]
    assert Table(rows)(others).tolist() == [True, False, True, False, False, False]
    assert Table(rows[:0])(rows).tolist() == [False, False]


def test_no_more_is_proposed_than_there_is() -> None:
    ground = space(listed=True)

    def validate(configurations: object) -> list[ValidConfiguration | None]:
        rows = list(configurations)  # type: ignore[call-overload]
        return [
            ValidConfiguration(row, None) if fits else None
            for row, fits in zip(rows, ground.allows(np.array(rows)), strict=True)
        ]

    trials: list[Measured] = []
    search = strategies.get("random")
    while batch := search(View(ground, tuple(trials), None, validate), len(trials)).propose(
        32, samplers.make("greedy", 0.0, True)
    ):
        trials += [Measured(row, 1.0) for row in batch]
    assert {trial.configuration for trial in trials} == set(ground) and len(trials) == ground.size
