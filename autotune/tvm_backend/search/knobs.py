"""The knob view of a MetaSchedule space: every sampling instruction of every sketch as a knob with ordered values.

| instruction | values, in order |
|---|---|
| SamplePerfectTile | every factorisation that TVM can draw, by its innermost factor, then the next one outwards |
| SampleCategorical | the positions of its candidates |
| SampleComputeLocation | -2 (inlined), -1 (at the root), then every loop around the consumer, outermost first |

Which compute locations exist depends on the tiles that were chosen before: a loop of extent 1 is none. The values are
therefore positions in the whole loop nest, and one that does not exist under the other knobs stands for the next one
outwards that does: that is what TVM makes of it when it replays a trace. `Knobs.apply` says which configuration came
out; only that one is found again by `Knobs.find`, and on those the round trip is exact.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import WorkerError
from autotune.strategies.space import Configuration, Knob, Space
from autotune.tvm_backend.search.nest import Sketch
from autotune.tvm_backend.search.space import before_postprocessing, plain_trace, sampled, tune_context

# Replays with decisions drawn anew that look for the deepest loop nest around a consumer. A nest that is tiled on
# many levels has as many loops whatever the tiles are, and takes long to replay.
_PROBES, _TILED_PROBES = 8, 1


@dataclass(frozen=True)
class _Sketch:
    """A trace without decisions; `samples[i]` is decided by the knob `knobs[i]`."""

    instructions: list[Any]
    samples: tuple[Any, ...]
    knobs: tuple[int, ...]
    key: str


@dataclass(frozen=True)
class Applied:
    """A scheduled program after its postprocessors, and the configuration that it came out as."""

    configuration: Configuration
    schedule: Any


@dataclass
class _Merge:
    """Knobs of all sketches: equal ones (kind, values, and how many like it came before) become one."""

    places: dict[Hashable, int] = field(default_factory=dict)
    values: list[tuple[Any, ...]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, found: Sequence[tuple[str, tuple[Any, ...]]]) -> tuple[int, ...]:
        seen: Counter[Hashable] = Counter()
        chosen = []
        for kind, values in found:
            # Loop nests differ by a loop or two between sketches; it is the same decision.
            same: Hashable = kind if kind == "location" else (kind, values)
            place = self.places.setdefault((same, seen[same]), len(self.values))
            seen[same] += 1
            self._fit(place, kind, values)
            chosen.append(place + 1)  # the sketch is knob 0
        return tuple(chosen)

    def _fit(self, place: int, kind: str, values: tuple[Any, ...]) -> None:
        if place == len(self.values):
            self.names.append(f"{kind}{place}")
            self.values.append(values)
        elif len(values) > len(self.values[place]):
            self.values[place] = values


class Knobs:
    """The space of a program and a target.

    Raises:
        WorkerError: the space has a sampling instruction that this view does not know.
    """

    def __init__(self, program: Any, target: Any) -> None:
        self.program = program
        self.target = target
        self.context = tune_context(program, target)
        self._postprocessors = list(self.context.space_generator.postprocs or [])
        traces = [schedule.trace.simplified(True) for schedule in self.context.generate_design_space()]
        merge, sketches = _Merge(), dict[str, _Sketch]()
        for trace in traces:
            plain = plain_trace(trace)
            key = _key(plain)
            if key not in sketches:
                samples = tuple(item for item in trace.insts if str(item.kind.name).startswith("Sample"))
                probes = _PROBES if Sketch.read(before_postprocessing(plain)) is None else _TILED_PROBES
                found = _values(trace, samples, self._probe(trace, probes))
                sketches[key] = _Sketch(list(trace.insts), samples, merge.add(found), key)
        self._sketches = list(sketches.values())
        self._by_key = {sketch.key: index for index, sketch in enumerate(self._sketches)}
        self.space = self._space(merge)
        self._index = [{value: at for at, value in enumerate(knob.values)} for knob in self.space.knobs]

    def _space(self, merge: _Merge) -> Space:
        sketch = Knob("sketch", tuple(range(len(self._sketches))))
        knobs = (sketch, *(Knob(name, values) for name, values in zip(merge.names, merge.values, strict=True)))
        used = [tuple(at in {0, *sketch.knobs} for at in range(len(knobs))) for sketch in self._sketches]
        return Space(knobs, tuple(used))

    def sketches(self) -> list[tuple[list[Any], tuple[int, ...]]]:
        """Of each sketch the instructions in JSON form, and which knobs decide its sampling instructions, in order."""
        return [(json.loads(sketch.key), sketch.knobs) for sketch in self._sketches]

    def _probe(self, trace: Any, probes: int) -> dict[Any, int]:
        """How many loops there are around the consumer of each block whose location is sampled, at most."""
        depths: dict[Any, int] = {}
        if not any(item.kind.name == "SampleComputeLocation" for item in trace.insts):
            return depths

        for seed in range(1, probes + 1):
            schedule = self._schedule(seed)

            def decide(item: Any, inputs: Any, _: Any, decision: Any, schedule: Any = schedule) -> Any:
                if item.kind.name == "SampleComputeLocation":
                    depths[item] = max(depths.get(item, 0), _depth(schedule, inputs[0]))
                return None

            trace.apply_to_schedule(schedule, True, decide)
        return depths

    def _schedule(self, seed: int) -> Any:
        from tvm.s_tir import Schedule

        return Schedule(self.program, seed=seed, debug_mask="none", error_render_level="none")

    def apply(self, configuration: Configuration) -> Applied | None:
        """The scheduled program of a configuration of the space, or None where it is invalid. 1.4 to 13 ms.

        It is invalid when an instruction of the sketch or a postprocessor refuses it, or when TVM replaced a
        decision by one that is no value of its knob.
        """
        from tvm.s_tir.schedule import Trace

        sketch = self._sketches[configuration[0]]
        decisions = {
            item: _decision(self.space.knobs[knob].values[configuration[knob]])
            for item, knob in zip(sketch.samples, sketch.knobs, strict=True)
        }
        schedule = self._schedule(1)
        try:
            Trace(sketch.instructions, decisions).apply_to_schedule(schedule, True)
            schedule.enter_postproc()
            valid = all(item.apply(schedule) for item in self._postprocessors)
        except Exception:  # TVM raises many kinds; each says that the schedule cannot be
            return None
        found = self._settled(configuration[0], schedule.trace) if valid else None
        return None if found is None else Applied(found, schedule)

    def _settled(self, sketch: int, trace: Any) -> Configuration | None:
        decided = [trace.get_decision(item) for item in trace.insts if str(item.kind.name).startswith("Sample")]
        return self._configuration(sketch, decided)

    def _configuration(self, sketch: int, decisions: Sequence[Any]) -> Configuration | None:
        found = [0] * len(self.space.knobs)
        found[0] = sketch
        places = self._sketches[sketch].knobs
        if len(decisions) != len(places):
            return None
        for place, decision in zip(places, decisions, strict=True):
            at = self._index[place].get(_value(decision))
            if at is None:
                return None
            found[place] = at
        return tuple(found)

    def find(self, trace: Any) -> Configuration | None:
        """The configuration of a trace in TVM's JSON form, whoever proposed it; None where the space has it not."""
        try:
            sketch = self._by_key.get(_key(trace))
            decided = sampled(trace)
        except (KeyError, IndexError, TypeError, ValueError):  # not a trace, or of another version
            return None
        return None if sketch is None else self._configuration(sketch, decided)

    def adopt(self, trace: Any) -> Configuration | None:
        """What a trace of a similar program decides, in the sketch that treats its loops the same way, if there is one.

        The programs may differ in what is fused to the operator. None as well where a decision is no value of its knob.
        """
        try:
            form, decided = _form(before_postprocessing(trace)), sampled(trace)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):  # not a trace, or of another version
            return None
        alike = (at for at, sketch in enumerate(self._sketches) if _form(json.loads(sketch.key)) == form)
        return next(filter(None, (self._configuration(at, decided) for at in alike)), None)


def _form(instructions: Sequence[Any]) -> list[Any]:
    """The instructions that sample, or have to do with loops, whatever the blocks are; loops are numbered."""
    loops: dict[str, int] = {}
    found = []
    for kind, inputs, attributes, outputs in instructions:
        taken = [loops[name] for name in inputs if isinstance(name, str) and name in loops]
        made = [name for name in outputs if name.startswith("l")]
        loops.update({name: len(loops) + at for at, name in enumerate(made)})
        if taken or made or kind.startswith("Sample"):
            found.append([kind, taken, attributes, len(made)])
    return found


def _key(trace: Any) -> str:
    """The instructions of a trace in JSON, without postprocessing and decisions."""
    return json.dumps(before_postprocessing(trace))


def _depth(schedule: Any, block: Any) -> int:
    consumers = schedule.get_consumers(block)
    return len(schedule.get_loops(consumers[0])) if len(consumers) else 0


def _values(trace: Any, samples: Sequence[Any], depths: dict[Any, int]) -> list[tuple[str, tuple[Any, ...]]]:
    """Kind and values of every sampling instruction."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    for item in samples:
        kind = str(item.kind.name)
        if kind == "SampleCategorical":
            found.append(("category", tuple(range(len(item.attrs[0])))))
        elif kind == "SampleComputeLocation":
            found.append(("location", tuple(range(-2, depths.get(item, 0)))))
        elif kind == "SamplePerfectTile":
            found.append(("tile", _tiles(trace, item)))
        else:
            raise WorkerError(f"{kind} is no knob that strategies know; use --strategy evolutionary for this task")
    return found


def _tiles(trace: Any, item: Any) -> tuple[tuple[int, ...], ...]:
    decision = _value(trace.get_decision(item))
    extent = 1
    for factor in decision:
        extent *= factor
    parts, innermost = int(item.attrs[0]), int(item.attrs[1])
    if extent < 1:
        return (decision,)  # an extent that is not known is not tiled
    return tuple(sorted(factorisations(extent, parts, innermost), key=lambda tile: tile[::-1]))


def factorisations(extent: int, parts: int, innermost: int) -> list[tuple[int, ...]]:
    """Ordered ways to write `extent` as a product of `parts` factors, the last at most `innermost` (-1: any)."""
    if parts == 1:
        return [(extent,)] if innermost < 0 or extent <= innermost else []
    found = []
    for last in range(1, extent + 1 if innermost < 0 else min(extent, innermost) + 1):
        if extent % last == 0:
            found += [(*rest, last) for rest in factorisations(extent // last, parts - 1, -1)]
    return found


def _value(decision: Any) -> Any:
    return int(decision) if isinstance(decision, int) else tuple(int(factor) for factor in decision)


def _decision(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
