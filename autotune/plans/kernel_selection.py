"""Choose the kernels of a network by their times: an integer program, as in Korch (Hu et al., ASPLOS 2024).

Each operator is computed by one kernel. What a kernel reads has to be written, in that form, by another one. Of all
such networks, the one whose kernels take the least time together is chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from autotune.plans.exploration import Alternatives, value_of

# A kernel that is not of the base has to save this part of its time: of many that were tried a few times, the fastest
# one was often lucky.
_MARGIN = 0.02
_TIE = 1e-6  # a part of the shortest time that every kernel costs, so that none is chosen that nothing reads
_ON = 0.5  # the solver's variables are nearly 0 or 1

Row = tuple[dict[int, float], float, float]  # the factor of each variable, the least and the greatest value of the sum


def choose(alternatives: Alternatives, times: Mapping[str, float]) -> tuple[int, ...] | None:
    """Choose the kernels of a network.

    The answer depends on the arguments alone. Times that are nearly equal are decided in favour of the base.

    Args:
        alternatives: The kernels that there are.
        times: The best times of tasks in microseconds, by hash. A kernel whose task has none is not chosen.

    Returns:
        The numbers of the kernels, in ascending order; None if no network can be made.
    """
    return _Program(alternatives, times).solve()


def contenders(
    alternatives: Alternatives, times: Mapping[str, float], chosen: Sequence[int], faster: float
) -> dict[str, int]:
    """Return the tasks that would be in the chosen network if they were faster, and how often it would have them.

    Args:
        alternatives: The kernels that there are.
        times: As for `choose`.
        chosen: What it returned.
        faster: By what part of their times.
    """
    kernels = alternatives.kernels
    used = {kernels[number].task for number in chosen}
    program = _Program(alternatives, times)
    near = dict[str, int]()
    for task in dict.fromkeys(kernel.task for kernel in kernels):
        if task in times and task not in used:
            other = program.solve({task: times[task] * (1 - faster)})
            count = sum(kernels[number].task == task for number in other) if other else 0
            near |= {task: count} if count else {}
    return near


class _Program:
    """The integer program: a variable of 0 or 1 for each kernel that has a time."""

    def __init__(self, alternatives: Alternatives, times: Mapping[str, float]) -> None:
        timed = {
            number: (kernel, time)
            for number, kernel in enumerate(alternatives.kernels)
            if (time := times.get(kernel.task, kernel.assumed_us)) is not None
        }
        self._numbers = list(timed)
        self._kernels = [kernel for kernel, _ in timed.values()]
        self._costs = [time for _, time in timed.values()]
        self._base = set(alternatives.base)
        self._outputs = alternatives.outputs
        self._operators = [name for number in alternatives.base for name in alternatives.kernels[number].named]
        self._computing = defaultdict[str, list[int]](list)  # by operator
        self._writing = defaultdict[str, list[int]](list)  # by tensor
        self._making = defaultdict[str, list[int]](list)  # by value, without kernels that only change its layout
        for place, kernel in enumerate(self._kernels):
            for name in kernel.named:
                self._computing[name].append(place)
            for tensor in kernel.writes:
                self._writing[tensor].append(place)
                self._making[value_of(tensor)] += [place] if kernel.named else []
        self._constraints = self._matrix() if self._kernels else None

    def solve(self, times: Mapping[str, float] | None = None) -> tuple[int, ...] | None:
        """Return the fastest network, if some tasks took other times; None if there is none."""
        if self._constraints is None:
            return None
        costs = list(self._costs)
        for place, kernel in enumerate(self._kernels):
            if times and kernel.task in times:
                costs[place] = times[kernel.task]
        tie = _TIE * min(filter(None, costs), default=1.0)
        margins = [0.0 if number in self._base else _MARGIN for number in self._numbers]
        result = milp(
            [cost * (1 + margin) + tie for cost, margin in zip(costs, margins, strict=True)],
            integrality=np.ones(len(costs)),
            bounds=Bounds(0, 1),
            constraints=self._constraints,
        )
        if result.x is None:
            return None
        return tuple(number for number, on in zip(self._numbers, result.x, strict=True) if on > _ON)

    def _matrix(self) -> LinearConstraint:
        rows = list(self._rows())
        entries = [(row, place, factor) for row, (terms, *_) in enumerate(rows) for place, factor in terms.items()]
        row_of, place_of, factors = zip(*entries, strict=True)
        matrix = coo_array((factors, (row_of, place_of)), shape=(len(rows), len(self._kernels)))
        return LinearConstraint(matrix.tocsr(), [row[1] for row in rows], [row[2] for row in rows])

    def _rows(self) -> Iterator[Row]:
        for name in self._operators:
            yield dict.fromkeys(self._computing[name], 1.0), 1.0, 1.0
        for tensor in self._outputs:
            yield dict.fromkeys(self._writing[tensor], 1.0), 1.0, np.inf
        for place, kernel in enumerate(self._kernels):
            for tensor in kernel.reads:
                yield _needs(place, self._writing[tensor])
                # Kernels that only change layouts could otherwise feed each other.
                if making := self._making[value_of(tensor)]:
                    yield _needs(place, making)


def _needs(reader: int, writers: Collection[int]) -> Row:
    """Return the constraint that a kernel is there only if one of some others is."""
    terms = dict.fromkeys(writers, 1.0)
    terms[reader] = terms.get(reader, 0.0) - 1.0
    return terms, 0.0, np.inf
