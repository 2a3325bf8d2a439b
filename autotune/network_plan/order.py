"""The order of steps in which a network needs the least memory; `tvm_backend/graph/run_order.py` puts kernels in it.

What is alive depends only on which steps have run, not on their order. So the orders of a network are paths through
the sets of steps that can have run, and a best-first search finds one whose peak is least, exactly. A set at which the
network is cut in two is on all paths, so that the search goes through one part after the other: Ahn et al., "Ordering
Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices" (MLSys 2020), section 3.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_MAX_RUNS = 500_000  # some seconds, for each of the two searches
_BEAM = 64


@dataclass(frozen=True)
class Step:
    """A step of a network.

    Attributes:
        after: The numbers of the steps that run before it, because it needs their results.
        uses: The numbers of the buffers that it reads or writes. A buffer is alive from the first step that uses it to
            the last one.
    """

    after: frozenset[int]
    uses: frozenset[int]


@dataclass(frozen=True)
class Steps:
    """What is to be put in order.

    Attributes:
        steps: The steps, in one order in which they can run.
        sizes: The size of each buffer, in bytes.
        kept: The numbers of the buffers that live to the end: outputs.
        always: The bytes that are there all the time: inputs.
    """

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    kept: frozenset[int] = frozenset()
    always: int = 0

    def peak(self, order: Iterable[int] | None = None) -> int:
        """Return the most bytes that are alive at once in an order, by default in that of the steps."""
        memory = _Memory(self)
        done = 0
        alive = peak = self.always
        for step in range(len(self.steps)) if order is None else order:
            during, alive = memory.run(step, done, alive)
            peak = max(peak, during)
            done |= 1 << step
        return peak


@dataclass(frozen=True)
class Order:
    """An order of steps.

    Attributes:
        order: The numbers of the steps.
        peak: The most bytes that are alive at once.
        bound: What every order needs at least, in bytes: the same if this is known to be the best order.
    """

    order: tuple[int, ...]
    peak: int
    bound: int


def best_order(steps: Steps, max_runs: int = _MAX_RUNS) -> Order:
    """Return an order with the least peak, or a good one with a bound if the search would take too long.

    The steps stay in their order if no other is known to be better.

    Args:
        max_runs: After how many tries to run a step the exact search is given up, and how many a quick one may need.
    """
    memory = _Memory(steps)
    exact = _search(memory, max_runs)
    bound = exact.peak if isinstance(exact, Order) else exact
    other = exact.order if isinstance(exact, Order) else _beam(memory, max_runs)
    peak, order = min((steps.peak(order), order) for order in (tuple(range(memory.count)), other))
    return Order(order, peak, min(bound, peak))


def stable_order(after: Sequence[Iterable[int]]) -> list[int]:
    """Return the steps so that each comes after those that it has to, and else in the order of their numbers.

    Args:
        after: For each step the numbers of those that come before it.

    Returns:
        The numbers of the steps; fewer than there are if some wait for each other.
    """
    left = [len(set(before)) for before in after]
    followers: list[list[int]] = [[] for _ in after]
    for step, before in enumerate(after):
        for other in set(before):
            followers[other].append(step)
    ready = [step for step, count in enumerate(left) if count == 0]
    order = list[int]()
    while ready:
        order.append(heapq.heappop(ready))
        for step in followers[order[-1]]:
            left[step] -= 1
            if left[step] == 0:
                heapq.heappush(ready, step)
    return order


class _Memory:
    """Says what is alive. A set of steps is the bits of a number."""

    def __init__(self, steps: Steps) -> None:
        self.runs = 0
        self.count = len(steps.steps)
        self.everything = (1 << self.count) - 1
        self.always = steps.always
        self._sizes = steps.sizes
        self._kept = steps.kept
        self._uses = [step.uses for step in steps.steps]
        self._needed = [_bits(step.after) for step in steps.steps]
        self._followers = [list[int]() for _ in steps.steps]
        for number, step in enumerate(steps.steps):
            for other in set(step.after):
                self._followers[other].append(number)
        self.first = _bits(number for number, needed in enumerate(self._needed) if not needed)
        self._users = [0] * len(steps.sizes)
        for number, step in enumerate(steps.steps):
            for buffer in step.uses:
                self._users[buffer] |= 1 << number

    def ready(self, step: int, done: int, ready: int) -> int:
        """Return the steps that can run once a step has: those that could before, and those that waited for it."""
        more = (1 << other for other in self._followers[step] if self._needed[other] & ~done == 0)
        return sum(more, ready & ~(1 << step))

    def run(self, step: int, done: int, alive: int) -> tuple[int, int]:
        """Return how much is alive while a step runs and after it, given what was alive before."""
        self.runs += 1
        after = done | 1 << step
        begins = [buffer for buffer in self._uses[step] if self._users[buffer] & done == 0]
        ends = [buffer for buffer in self._uses[step] - self._kept if self._users[buffer] & ~after == 0]
        during = alive + sum(self._sizes[buffer] for buffer in begins)
        return during, during - sum(self._sizes[buffer] for buffer in ends)

    def run_free(self, state: _State, peak: int) -> tuple[_State, list[int]]:
        """Run all steps that leave no more alive than before and exceed no peak.

        No order is worse for it: a step allocates the less and frees the more, the more steps have run before.

        Returns:
            What is reached, and the steps.
        """
        steps = list[int]()
        while (free := self._free(state, peak)) is not None:
            step, state = free
            steps.append(step)
        return state, steps

    def _free(self, state: _State, peak: int) -> tuple[int, _State] | None:
        for step in _numbers(state.ready):
            during, after = self.run(step, state.done, state.alive)
            if during <= peak and after <= state.alive:
                return step, self.reached(step, state, after)
        return None

    def reached(self, step: int, state: _State, alive: int) -> _State:
        """Return what is reached when a step runs, after which so much is alive."""
        done = state.done | 1 << step
        return _State(done, self.ready(step, done, state.ready), alive)


@dataclass(frozen=True, slots=True)
class _State:
    """A set of steps that have run, those that can run now, and how much is alive."""

    done: int
    ready: int
    alive: int


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        bits ^= lowest
        yield lowest.bit_length() - 1


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in set(numbers))


def _search(memory: _Memory, max_runs: int) -> Order | int:
    """Return the best order; after so many tries to run a step, only what every order needs at least."""
    start, steps = memory.run_free(_State(0, memory.first, memory.always), memory.always)
    came_from = {start.done: (0, steps)}
    best = {start.done: memory.always}
    queue = [(memory.always, -start.done.bit_count(), start.done)]
    states = {start.done: start}
    closed = set[int]()
    peak = memory.always
    while queue:
        peak, _, done = heapq.heappop(queue)
        if done == memory.everything:
            return Order(_path(came_from, done), peak, peak)
        if memory.runs > max_runs:
            break
        if done in closed:
            continue
        closed.add(done)
        for step in _numbers(states[done].ready):
            during, after = memory.run(step, done, states[done].alive)
            worst = max(peak, during)
            reached, more = memory.run_free(memory.reached(step, states[done], after), worst)
            if worst < best.get(reached.done, worst + 1):
                best[reached.done] = worst
                came_from[reached.done] = (done, [step, *more])
                states[reached.done] = reached
                heapq.heappush(queue, (worst, -reached.done.bit_count(), reached.done))
    return peak


def _path(came_from: dict[int, tuple[int, list[int]]], done: int) -> tuple[int, ...]:
    chunks = list[list[int]]()
    while True:
        before, steps = came_from[done]
        chunks.append(steps)
        if before == 0:
            return tuple(step for chunk in reversed(chunks) for step in chunk)
        done = before


_Path = tuple[int, int, int, int, tuple[int, ...]]  # the peak, what is alive, has run and can run, and in which order


def _beam(memory: _Memory, max_runs: int) -> tuple[int, ...]:
    """Return a good order: of all sets of so many steps, a few of those with the lowest peaks go on.

    The more steps can run at a time, the fewer sets go on. Where none could, the steps stay in their order.
    """
    paths: list[_Path] = [(memory.always, memory.always, 0, memory.first, ())]
    for _ in range(memory.count):
        following: dict[int, _Path] = {}
        for peak, alive, done, ready, order in paths:
            for step in _numbers(ready):
                during, after = memory.run(step, done, alive)
                more = done | 1 << step
                path = (max(peak, during), after, more, memory.ready(step, more, ready), (*order, step))
                following[more] = min(following.get(more, path), path)
        widest = max((path[3].bit_count() for path in following.values()), default=1)
        width = max_runs // (memory.count * max(widest, 1))
        if width == 0:
            return tuple(range(memory.count))
        paths = heapq.nsmallest(min(_BEAM, width), following.values())
    return min(paths)[4]
