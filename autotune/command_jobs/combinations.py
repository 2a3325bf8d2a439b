"""The combinations of a space's parameters that satisfy its restrictions, as a design space for strategies.

They are listed by adding one parameter after the other, and dropping what a restriction forbids as soon as all of its
parameters are there. Where the list becomes too long, combinations are drawn and checked instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.command_jobs.command_template import Value
from autotune.command_jobs.definition import Definition, Values
from autotune.command_jobs.parameter_expressions import Expression
from autotune.errors import InvalidData
from autotune.strategies.restricted import RestrictedSpace, Table
from autotune.strategies.space import Configuration, Indices, Knob

# Combinations that are listed at most, rows of a partial list, and numbers in either.
_MAX_LISTED = 1 << 20
_MAX_PARTIAL = 1 << 22
_MAX_NUMBERS = 1 << 26  # 512 MiB


@dataclass(frozen=True)
class Combinations:
    """The combinations of a space. A configuration is 0, for the only sketch, and an index for each parameter."""

    definition: Definition

    def check(self) -> None:
        """Check that there is one, and that the restrictions can be evaluated.

        Raises:
            InvalidData: They cannot, or none satisfies them.
        """
        if self.space.table is not None:
            if not len(self.space.table):
                raise InvalidData("no combination of values satisfies all restrictions", ("restrictions",))
        elif not len(self.space.sample(np.random.default_rng(0), 1)):
            raise InvalidData(
                f"there are {self.total:,} combinations, and of those that were drawn none satisfies the restrictions;"
                " give fewer values",
                ("restrictions",),
            )

    @property
    def total(self) -> int:
        """How many combinations there are without the restrictions."""
        return math.prod(len(values) for values in self.definition.parameters.values())

    @property
    def described(self) -> str:
        """How many parameters and combinations there are, in words."""
        table = self.space.table
        parameters = len(self.definition.parameters)
        counted = f"up to {self.total:,}" if table is None else f"{len(table):,}"
        return f"{parameters} parameter{'s' if parameters > 1 else ''}, {counted} combinations"

    @cached_property
    def space(self) -> RestrictedSpace:
        """The design space.

        Raises:
            InvalidData: A restriction cannot be evaluated.
        """
        knobs = [Knob("sketch", (0,)), *(Knob(*item) for item in self._features().items())]
        used = ((True,) * len(knobs),)
        table = self._listed()
        return RestrictedSpace(tuple(knobs), used, self._allows if table is None else Table(table), table)

    def _features(self) -> dict[str, tuple[float, ...]]:
        """Return what the cost model sees of each value: the number itself, or the place of a text."""
        return {
            name: tuple(place if isinstance(value, str) else float(value) for place, value in enumerate(values))
            for name, values in self.definition.parameters.items()
        }

    @cached_property
    def _expressions(self) -> tuple[Expression, ...]:
        return tuple(Expression.of(text, self.definition.parameters) for text in self.definition.restrictions)

    @cached_property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """The values of each parameter as an array: whole numbers, numbers, or objects where one is a text."""
        return {name: _column(values) for name, values in self.definition.parameters.items()}

    def _allows(self, rows: Indices) -> npt.NDArray[np.bool_]:
        columns = {name: self._columns[name][rows[:, place]] for place, name in enumerate(self._columns, start=1)}
        allowed = np.ones(len(rows), dtype=bool)
        for expression in self._expressions:
            allowed &= expression.holds(columns)
        return allowed

    def _listed(self) -> Indices | None:
        """Return all combinations, [n, knobs]; None where they are too many."""
        names = list(self.definition.parameters)
        waiting = list(self._expressions)
        if not waiting and self.total > min(_MAX_LISTED, _MAX_NUMBERS // (len(names) + 1)):
            return None  # as the loop would find in the end
        rows = np.zeros((1, 1), dtype=np.int64)
        for count, name in enumerate(names, start=1):
            size = len(self.definition.parameters[name])
            if len(rows) * size > _MAX_PARTIAL or len(rows) * size * (count + 1) > _MAX_NUMBERS:
                return None
            rows = np.concatenate([np.repeat(rows, size, axis=0), np.tile(np.arange(size), len(rows))[:, None]], axis=1)
            bound = set(names[:count])
            ready = [expression for expression in waiting if expression.names <= bound]
            waiting = [expression for expression in waiting if expression not in ready]
            for expression in ready:
                columns = {name: self._columns[name][rows[:, 1 + names.index(name)]] for name in expression.names}
                rows = rows[expression.holds(columns)] if len(rows) else rows
        return rows if len(rows) <= _MAX_LISTED else None

    def values(self, configuration: Configuration) -> Values:
        """Return the value of each parameter in a configuration."""
        pairs = zip(self.definition.parameters.items(), configuration[1:], strict=True)
        return {name: values[index] for (name, values), index in pairs}

    def configuration(self, values: object) -> Configuration | None:
        """Return the configuration of values; None if they are not a combination of this space.

        Args:
            values: What stands in a file for the values by parameter.
        """
        if not isinstance(values, Mapping) or values.keys() != self._indices.keys():
            return None
        indices = [self._indices[name].get(_key(value)) for name, value in values.items()]
        by_name = dict(zip(values, indices, strict=True))
        if None in indices:
            return None
        configuration = (0, *(by_name[name] or 0 for name in self._indices))
        return configuration if self.space.allows(np.array([configuration]))[0] else None

    @cached_property
    def _indices(self) -> dict[str, dict[tuple[bool, Any], int]]:
        parameters = self.definition.parameters
        return {name: {_key(value): place for place, value in enumerate(values)} for name, values in parameters.items()}


def _key(value: object) -> tuple[bool, Any]:
    """Return a value so that it can be looked up, and text is never a number."""
    return (isinstance(value, str), value if isinstance(value, str | int | float) else str(value))


def _column(values: tuple[Value, ...]) -> npt.NDArray[Any]:
    if any(isinstance(value, str) for value in values):
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    real = any(isinstance(value, float) for value in values)
    return np.array(values, dtype=np.float64 if real else np.int64)
