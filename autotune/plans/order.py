"""The order of steps in which a network needs the least memory.

What is alive depends only on which steps have run, not on their order. So the orders of a network are paths through
the sets of steps that can have run, and a best-first search finds one whose peak is least, exactly. A set at which the
network is cut in two is on all paths, so that the search goes through one part after the other: Ahn et al., "Ordering
Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices" (MLSys 2020), section 3.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_MOST_STATES = 20_000
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


def best_order(steps: Steps, most_states: int = _MOST_STATES) -> Order:
    """Return an order with the least peak, or a good one with a bound if the search would take too long.

    The steps stay in their order if no other is known to be better.

    Args:
        steps: The steps.
        most_states: After how many sets of steps the exact search is given up.
    """
    memory = _Memory(steps)
    exact = _search(memory, most_states)
    bound = exact.peak if isinstance(exact, Order) else exact
    other = exact.order if isinstance(exact, Order) else _beam(memory)
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
        self.count = len(steps.steps)
        self.everything = (1 << self.count) - 1
        self.always = steps.always
        self._sizes = steps.sizes
        self._kept = steps.kept
        self._uses = [step.uses for step in steps.steps]
        self._needed = [_bits(step.after) for step in steps.steps]
        self._users = [0] * len(steps.sizes)
        for number, step in enumerate(steps.steps):
            for buffer in step.uses:
                self._users[buffer] |= 1 << number

    def ready(self, done: int) -> Iterator[int]:
        """Yield the steps that can run when others have run."""
        left = self.everything & ~done
        while left:
            lowest = left & -left
            left ^= lowest
            step = lowest.bit_length() - 1
            if self._needed[step] & ~done == 0:
                yield step

    def run(self, step: int, done: int, alive: int) -> tuple[int, int]:
        """Return how much is alive while a step runs and after it, given what was alive before."""
        after = done | 1 << step
        begins = [buffer for buffer in self._uses[step] if self._users[buffer] & done == 0]
        ends = [buffer for buffer in self._uses[step] - self._kept if self._users[buffer] & ~after == 0]
        during = alive + sum(self._sizes[buffer] for buffer in begins)
        return during, during - sum(self._sizes[buffer] for buffer in ends)

    def run_free(self, done: int, alive: int, peak: int) -> tuple[int, int, list[int]]:
        """Run all steps that leave no more alive than before and exceed no peak.

        No order is worse for it: a step allocates the less and frees the more, the more steps have run before.

        Returns:
            What has run then, what is alive, and the steps.
        """
        steps = list[int]()
        while (free := self._free(done, alive, peak)) is not None:
            step, alive = free
            done |= 1 << step
            steps.append(step)
        return done, alive, steps

    def _free(self, done: int, alive: int, peak: int) -> tuple[int, int] | None:
        for step in self.ready(done):
            during, after = self.run(step, done, alive)
            if during <= peak and after <= alive:
                return step, after
        return None


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in set(numbers))


def _search(memory: _Memory, most_states: int) -> Order | int:
    """Return the best order; after so many sets of steps, only what every order needs at least."""
    done, alive, steps = memory.run_free(0, memory.always, memory.always)
    came_from = {done: (0, steps)}
    best = {done: memory.always}
    queue = [(memory.always, -done.bit_count(), done, alive)]
    closed = set[int]()
    peak = memory.always
    while queue:
        peak, _, done, alive = heapq.heappop(queue)
        if done == memory.everything:
            return Order(_path(came_from, done), peak, peak)
        if len(closed) > most_states:
            break
        if done in closed:
            continue
        closed.add(done)
        for step in memory.ready(done):
            during, after = memory.run(step, done, alive)
            worst = max(peak, during)
            reached, left, more = memory.run_free(done | 1 << step, after, worst)
            if worst < best.get(reached, worst + 1):
                best[reached] = worst
                came_from[reached] = (done, [step, *more])
                heapq.heappush(queue, (worst, -reached.bit_count(), reached, left))
    return peak


def _path(came_from: dict[int, tuple[int, list[int]]], done: int) -> tuple[int, ...]:
    chunks = list[list[int]]()
    while True:
        before, steps = came_from[done]
        chunks.append(steps)
        if before == 0:
            return tuple(step for chunk in reversed(chunks) for step in chunk)
        done = before


_State = tuple[int, int, int, tuple[int, ...]]  # the peak, what is alive, what has run, and in which order


def _beam(memory: _Memory) -> tuple[int, ...]:
    """Return a good order: of all sets of so many steps, a few of those with the lowest peaks go on."""
    states: list[_State] = [(memory.always, memory.always, 0, ())]
    for _ in range(memory.count):
        following: dict[int, _State] = {}
        for peak, alive, done, order in states:
            for step in memory.ready(done):
                during, after = memory.run(step, done, alive)
                state = (max(peak, during), after, done | 1 << step, (*order, step))
                following[state[2]] = min(following.get(state[2], state), state)
        states = heapq.nsmallest(_BEAM, following.values())
    return min(states)[3]
