"""The order of steps has the least peak that any order has, and where that is not known, a bound."""

from __future__ import annotations

import itertools
import random

import pytest

from autotune.network_plan.order import Step, Steps, best_order, stable_order


def network(*steps: tuple[set[int], set[int]], sizes: list[int], kept: set[int] | None = None) -> Steps:
    """A network of steps that read and write buffers. Buffer 0 is the input."""
    writer = {buffer: at for at, (_, writes) in enumerate(steps) for buffer in writes}
    made = tuple(
        Step(frozenset(writer[item] for item in reads - {0}), frozenset(reads | writes) - {0})
        for reads, writes in steps
    )
    return Steps(made, tuple(sizes), frozenset(kept or ()), always=sizes[0])


def random_network(seed: int, count: int) -> Steps:
    """Each step writes a buffer of its own and reads some of the ones before; buffer 0 is the input."""
    draw = random.Random(seed)
    steps = [(set(draw.sample(range(at + 1), min(at + 1, draw.randint(1, 2)))), {at + 1}) for at in range(count)]
    return network(*steps, sizes=[draw.randint(1, 9) for _ in range(count + 1)], kept={count})


def randomly_wired(seed: int, count: int, near: int = 4, rewired: float = 0.75) -> Steps:
    """A graph of Watts and Strogatz, directed from lower numbers to higher: Xie et al., "Exploring Randomly Wired
    Neural Networks for Image Recognition" (2019), section 3."""
    draw = random.Random(seed)
    edges = {(at, (at + hop) % count) for hop in range(1, near // 2 + 1) for at in range(count)}
    for hop, at in itertools.product(range(1, near // 2 + 1), range(count)):
        free = [other for other in range(count) if other != at and not {(at, other), (other, at)} & edges]
        if draw.random() < rewired and free and (at, (at + hop) % count) in edges:
            edges = edges - {(at, (at + hop) % count)} | {(at, draw.choice(free))}
    before = [{min(edge) for edge in edges if max(edge) == at} for at in range(count)]
    sinks = set(range(count)).difference(*before)
    steps = [({other + 1 for other in before[at]} or {0}, {at + 1}) for at in range(count)]
    return network(*steps, ({at + 1 for at in sinks}, {count + 1}), sizes=[8] * (count + 2), kept={count + 1})


def peak(steps: Steps, order: tuple[int, ...]) -> int | None:
    """The peak of an order, step by step; None if it is no order in which they can run."""
    most = steps.always
    for at, number in enumerate(order):
        if not steps.steps[number].after <= set(order[:at]):
            return None
        begun = {buffer for other in order[: at + 1] for buffer in steps.steps[other].uses}
        needed = {buffer for other in order[at:] for buffer in steps.steps[other].uses} | steps.kept
        most = max(most, steps.always + sum(steps.sizes[buffer] for buffer in begun & needed))
    return most


@pytest.mark.parametrize("seed", range(6))
def test_no_order_has_a_lower_peak(seed: int) -> None:
    steps = random_network(seed, 7)
    peaks = [peak(steps, order) for order in itertools.permutations(range(7))]
    best = best_order(steps)
    assert best.peak == best.bound == peak(steps, best.order)
    assert best.peak == min(item for item in peaks if item is not None)


def test_the_parts_of_a_buffer_keep_all_of_it() -> None:
    whole = (
        Step(frozenset(), frozenset({0})),
        Step(frozenset(), frozenset({0, 1})),
        Step(frozenset({0, 1}), frozenset({0})),
    )
    steps = Steps(whole, sizes=(100, 7))
    assert steps.peak() == steps.peak((1, 0, 2)) == 107


def test_steps_stay_in_their_order_where_none_is_better() -> None:
    equal = network(({0}, {1}), ({0}, {2}), ({1, 2}, {3}), sizes=[1, 5, 5, 1])
    assert best_order(equal).order == (0, 1, 2)
    chain = network(*(({at}, {at + 1}) for at in range(500)), sizes=[4] * 501, kept={500})
    assert best_order(chain).order == tuple(range(500))
    assert best_order(chain).peak == 12  # the input, and two buffers
    columns = [({0}, {number + 1}) for number in range(400)]
    wide = network(*columns, ({*range(1, 401)}, {401}), sizes=[4] * 402, kept={401})
    assert best_order(wide, max_runs=10_000).order == tuple(range(401))


def test_a_stable_order_moves_only_what_has_to_move() -> None:
    assert stable_order([[], [3], [], [0], [1]]) == [0, 2, 3, 1, 4]
    assert stable_order([[1], [0], []]) == [2]


def test_a_branch_that_shrinks_runs_first() -> None:
    wide = ({0}, {1})
    narrow = ({0}, {3})
    steps = network(narrow, wide, ({1}, {2}), ({2, 3}, {4}), sizes=[1, 100, 1, 50, 1], kept={4})
    assert best_order(steps).order == (1, 2, 0, 3)
    assert best_order(steps).peak == 102


@pytest.mark.parametrize("seed", range(3))
def test_randomly_wired_networks_are_solved(seed: int) -> None:
    steps = randomly_wired(seed, 20)
    best = best_order(steps)
    given = peak(steps, tuple(range(21)))
    assert best.peak == best.bound == peak(steps, best.order)
    assert given is not None
    assert best.peak <= given


def test_a_search_that_is_given_up_has_a_bound() -> None:
    steps = randomly_wired(1, 20)
    exact = best_order(steps)
    quick = best_order(steps, max_runs=50)
    assert quick.bound <= exact.peak <= quick.peak == peak(steps, quick.order)
