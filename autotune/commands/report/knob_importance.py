"""Which knobs of a task matter, read from the traces of its trials.

A knob is named by what it decides, such as `conv2d_nchw loop 2, tile of 4`, so that sketches that differ elsewhere
share it. Its importance is how much of the variance of the logarithm of the time its values explain: epsilon squared
of a one-way analysis of variance (Kelley, 1935), which unlike eta squared does not grow with the number of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.storage.formats import Trial

# So many knobs of a task are shown, unless they explain less than this.
_MAX_KNOBS = 5
_MIN_IMPORTANCE = 0.01
# With fewer trials than this, chance looks like importance.
_MIN_TRIALS = 16
_SAMPLES = {"SamplePerfectTile", "SampleCategorical", "SampleComputeLocation", "SamplePartitionedTile"}


@dataclass(frozen=True)
class KnobImportance:
    """One knob of a task.

    Attributes:
        name: What it decides.
        importance: The share of the variance of the time's logarithm that it explains, from 0 to 1.
        best: Its value in the best trial; empty if the best trial does not have the knob.
        good: Its values in the fastest tenth of the trials, the most frequent first.
        trials: The number of timed trials that have it.
    """

    name: str
    importance: float
    best: str
    good: tuple[str, ...]
    trials: int


@dataclass(frozen=True)
class KnobValues:
    """A timed trial: its time in microseconds, and its values of some knobs, empty for a knob that it does not have."""

    us: float
    values: tuple[str, ...]


def shown(ranked: Sequence[KnobImportance]) -> tuple[KnobImportance, ...]:
    """Return those of a task's knobs that matter."""
    return tuple(knob for knob in ranked[:_MAX_KNOBS] if knob.importance >= _MIN_IMPORTANCE)


def values(trials: Sequence[Trial], names: Sequence[str]) -> tuple[KnobValues, ...]:
    """Return what the timed trials of a task have for these knobs, the fastest first; none without knobs."""
    if not names:
        return ()
    having = [(us, decisions(trial.trace)) for trial in trials if (us := trial.median_us) is not None and us > 0]
    values_by_trial = [KnobValues(us, tuple(decided.get(name, "") for name in names)) for us, decided in having]
    return tuple(sorted(values_by_trial, key=lambda timed: timed.us))


def fastest(count: int) -> int:
    """Return how many of so many trials are the fastest tenth."""
    return max(1, count // 10)


def importance(trials: Sequence[Trial]) -> tuple[KnobImportance, ...]:
    """Return the knobs of a task, the most important first; none if too few trials have a time."""
    having = [(us, decisions(trial.trace)) for trial in trials if (us := trial.median_us) is not None and us > 0]
    timed = sorted(having, key=lambda pair: pair[0])
    if len(timed) < _MIN_TRIALS:
        return ()
    names = dict.fromkeys(name for _, values in timed for name in values)
    ranked = [_knob(name, timed) for name in names]
    return tuple(sorted((knob for knob in ranked if knob is not None), key=lambda knob: -knob.importance))


def _knob(name: str, timed: Sequence[tuple[float, dict[str, str]]]) -> KnobImportance | None:
    having = [(math.log(us), values[name]) for us, values in timed if name in values]
    if len(having) < _MIN_TRIALS or len({value for _, value in having}) < 2:
        return None
    fast = [values[name] for _, values in timed[: fastest(len(timed))] if name in values]
    good = sorted(dict.fromkeys(fast), key=lambda value: -fast.count(value))
    return KnobImportance(name, _explained(having), timed[0][1].get(name, ""), tuple(good[:3]), len(having))


def _explained(having: Sequence[tuple[float, str]]) -> float:
    """Return epsilon squared: (between - (groups - 1) * within variance) / total, and 0 where it is negative."""
    groups: dict[str, list[float]] = {}
    for value, group in having:
        groups.setdefault(group, []).append(value)
    mean = sum(value for value, _ in having) / len(having)
    total = sum((value - mean) ** 2 for value, _ in having)
    free = len(having) - len(groups)
    if total <= 0 or free <= 0:
        return 0.0
    within = sum((value - sum(group) / len(group)) ** 2 for group in groups.values() for value in group)
    return max(0.0, (total - within - (len(groups) - 1) * within / free) / total)


def decisions(trace: Any) -> dict[str, str]:
    """Return the decisions of a trace by the name of the knob; none if it is no trace.

    Args:
        trace: TVM's JSON form: a list of instructions, each [kind, inputs, attributes, outputs], and a list of
            [instruction, decision]. Or the `values` of a combination of commands, by parameter.
    """
    if isinstance(trace, dict) and isinstance(trace.get("values"), dict):
        return {str(name): str(value) for name, value in trace["values"].items()}
    try:
        instructions, decided = trace
        names = dict(_names(instructions))
        return {names[index]: _value(instructions[index], decision) for index, decision in decided if index in names}
    except (TypeError, ValueError, KeyError, IndexError):
        return {}


def _names(instructions: Sequence[Any]) -> Iterable[tuple[int, str]]:
    blocks: dict[str, str] = {}
    loops: dict[str, str] = {}
    seen: dict[str, int] = {}
    for index, (kind, inputs, attributes, outputs) in enumerate(instructions):
        if kind == "GetSBlock" or kind == "GetBlock":
            blocks[outputs[0]] = str(attributes[0])
        elif kind == "GetLoops":
            loops |= {loop: f"{blocks.get(inputs[0], 'block')} loop {place}" for place, loop in enumerate(outputs)}
        elif kind in _SAMPLES:
            name = _name(kind, inputs, attributes, blocks, loops)
            seen[name] = seen.get(name, 0) + 1
            yield index, name if seen[name] == 1 else f"{name} ({seen[name]})"


def _name(kind: str, inputs: Any, attributes: Any, blocks: dict[str, str], loops: dict[str, str]) -> str:
    if kind == "SampleComputeLocation":
        return f"where to compute {blocks.get(inputs[0], 'a block')}"
    if kind == "SampleCategorical":
        return f"one of {', '.join(map(str, attributes[0]))}"
    return f"{loops.get(inputs[0], 'loop')}, tile of {attributes[0]}"


def _value(instruction: Any, decision: Any) -> str:
    """Return a decision in words. For a category it is the place of the chosen value."""
    if instruction[0] == "SampleCategorical":
        return str(instruction[2][0][decision])
    return "x".join(map(str, decision)) if isinstance(decision, list) else str(decision)
