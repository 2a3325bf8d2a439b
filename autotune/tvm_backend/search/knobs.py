"""The knob view of a MetaSchedule space: every sampling instruction of every sketch as a knob with ordered values.

| instruction | values, in order |
|---|---|
| SamplePerfectTile | every factorisation that TVM can draw, by its innermost factor, then the next one outwards |
| SamplePartitionedTile | the same, of which the product of the innermost factors is fixed |
| SampleCategorical | the positions of its candidates |
| SampleComputeLocation | -2 (inlined), -1 (at the root), then every loop around the consumer, outermost first |

Which compute locations exist depends on the tiles, because a loop of extent 1 is no location. The values are therefore
positions in the whole loop nest. When TVM replays a trace, it replaces a position that does not exist by the next one
outwards. `Knobs.apply` returns the configuration that results. `Knobs.find` finds that one again from the trace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from autotune.errors import WorkerError
from autotune.strategies.space import Configuration, Knob, Space
from autotune.tvm_backend.search.design_space import (
    PARTITIONED,
    before_postprocessing,
    plain_trace,
    sampled,
    tiles,
    tune_context,
)
from autotune.tvm_backend.search.shared_memory import postprocessors
from autotune.tvm_backend.search.tiled_block import TiledSketch
from autotune.tvm_backend.types import BlockRV, Decision, Instruction, IRModule, PlainInstruction, PlainTrace, Target

# How often a sketch is replayed with new random decisions to find the deepest loop nest around a consumer. A nest that
# is tiled on many levels has the same number of loops whatever the tiles are, and takes long to replay.
_PROBES = 8
_TILED_PROBES = 1


@dataclass(frozen=True)
class _Sketch:
    """A trace without decisions."""

    instructions: list[Instruction]
    samples: tuple[Instruction, ...]  # its sampling instructions; the knob `knobs[i]` decides `samples[i]`
    knobs: tuple[int, ...]
    key: str  # the instructions in JSON


@dataclass(frozen=True)
class Applied:
    """A program scheduled and postprocessed, and the configuration that resulted."""

    configuration: Configuration
    schedule: Schedule


@dataclass
class _MergedKnobs:
    """The knobs of all sketches. The n-th knob of the same kind and values is the same knob in every sketch."""

    places: dict[Hashable, int] = field(default_factory=dict)
    values: list[tuple[Any, ...]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, kinds_and_values: Sequence[tuple[str, tuple[Any, ...]]]) -> tuple[int, ...]:
        """Add the knobs of a sketch, each kind and values; return their places in the space."""
        seen: Counter[Hashable] = Counter()
        chosen = []
        for kind, values in kinds_and_values:
            # Loop nests differ by a loop or two between sketches, but the decision is the same.
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
    """The knobs of a program on a target.

    Raises:
        WorkerError: The space has a sampling instruction that this view does not cover.
    """

    def __init__(self, program: IRModule, target: Target) -> None:
        self.program = program
        self.target = target
        self.context = tune_context(program, target)
        self._postprocessors = postprocessors(program, target)
        traces = [schedule.trace.simplified(True) for schedule in self.context.generate_design_space()]
        merge = _MergedKnobs()
        sketches = dict[str, _Sketch]()
        for trace in traces:
            plain = plain_trace(trace)
            key = _key(plain)
            if key not in sketches:
                samples = tuple(item for item in trace.insts if str(item.kind.name).startswith("Sample"))
                probes = _PROBES if TiledSketch.read(before_postprocessing(plain)) is None else _TILED_PROBES
                kinds_and_values = _values(trace, samples, self._depths(trace, probes))
                sketches[key] = _Sketch(list(trace.insts), samples, merge.add(kinds_and_values), key)
        self._sketches = list(sketches.values())
        self._by_key = {sketch.key: index for index, sketch in enumerate(self._sketches)}
        self.space = self._space(merge)
        self._index = [{value: position for position, value in enumerate(knob.values)} for knob in self.space.knobs]

    def _space(self, merge: _MergedKnobs) -> Space:
        sketch = Knob("sketch", tuple(range(len(self._sketches))))
        knobs = (sketch, *(Knob(name, values) for name, values in zip(merge.names, merge.values, strict=True)))
        used = [tuple(place in {0, *sketch.knobs} for place in range(len(knobs))) for sketch in self._sketches]
        return Space(knobs, tuple(used))

    def sketches(self) -> list[tuple[list[PlainInstruction], tuple[int, ...]]]:
        """Return the instructions of each sketch in JSON form, and the knobs that decide its sampling instructions."""
        return [(json.loads(sketch.key), sketch.knobs) for sketch in self._sketches]

    def _depths(self, trace: Trace, probes: int) -> dict[Instruction, int]:
        """Return for each SampleComputeLocation how many loops there are around the block's consumer, at most."""
        depths: dict[Instruction, int] = {}
        if not any(item.kind.name == "SampleComputeLocation" for item in trace.insts):
            return depths

        for seed in range(1, probes + 1):
            schedule = self._schedule(seed)

            def decide(
                item: Instruction, inputs: Any, _: Any, decision: Decision, schedule: Schedule = schedule
            ) -> Decision:
                if item.kind.name == "SampleComputeLocation":
                    depths[item] = max(depths.get(item, 0), _depth(schedule, inputs[0]))
                return None

            trace.apply_to_schedule(schedule, True, decide)
        return depths

    def _schedule(self, seed: int) -> Schedule:
        return Schedule(self.program, seed=seed, debug_mask="none", error_render_level="none")

    def apply(self, configuration: Configuration) -> Applied | None:
        """Schedule the program as a configuration says; None where it is invalid. It takes 1.4 to 13 ms.

        A configuration is invalid when an instruction of the sketch or a postprocessor rejects it, or when TVM
        replaces a decision by one that is not a value of its knob.
        """
        sketch = self._sketches[configuration[0]]
        decisions = {
            item: _decision(self.space.knobs[knob].values[configuration[knob]])
            for item, knob in zip(sketch.samples, sketch.knobs, strict=True)
        }
        schedule = self._schedule(1)
        try:
            Trace(sketch.instructions, decisions).apply_to_schedule(schedule, True)
            schedule.enter_postproc()
            if not all(accepts(schedule) for accepts in self._postprocessors):
                return None
        except Exception:  # TVM raises many types; each means that the schedule is invalid
            return None
        made = schedule.trace
        decided = [made.get_decision(item) for item in made.insts if str(item.kind.name).startswith("Sample")]
        resulting = self._configuration(configuration[0], decided)
        return None if resulting is None else Applied(resulting, schedule)

    def _configuration(self, sketch: int, decisions: Sequence[Decision]) -> Configuration | None:
        configuration = [0] * len(self.space.knobs)
        configuration[0] = sketch
        places = self._sketches[sketch].knobs
        if len(decisions) != len(places):
            return None
        for place, decision in zip(places, decisions, strict=True):
            position = self._index[place].get(_value(decision))
            if position is None:
                return None
            configuration[place] = position
        return tuple(configuration)

    def find(self, trace: PlainTrace) -> Configuration | None:
        """Return the configuration of a trace in TVM's JSON form; None where the space does not have it."""
        try:
            sketch = self._by_key.get(_key(trace))
            decided = sampled(trace)
        except (KeyError, IndexError, TypeError, ValueError):  # not a trace, or one of another version
            return None
        return None if sketch is None else self._configuration(sketch, decided)

    def transfer(self, trace: PlainTrace) -> Configuration | None:
        """Return the configuration with the same decisions as a trace of a similar program.

        The programs may differ in what is fused to the operator. None where no sketch treats its loops in the same
        way, or where a decision is not a value of its knob.
        """
        try:
            form = _form(before_postprocessing(trace))
            decided = sampled(trace)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):  # not a trace, or one of another version
            return None
        alike = (index for index, sketch in enumerate(self._sketches) if _form(json.loads(sketch.key)) == form)
        return next(filter(None, (self._configuration(index, decided) for index in alike)), None)


def _form(instructions: Sequence[PlainInstruction]) -> list[Any]:
    """Return the instructions that sample or concern loops, without the names of blocks; loops are numbered."""
    loops: dict[str, int] = {}
    form = []
    for kind, inputs, attributes, outputs in instructions:
        taken = [loops[name] for name in inputs if isinstance(name, str) and name in loops]
        made = [name for name in outputs if name.startswith("l")]
        loops.update({name: len(loops) + number for number, name in enumerate(made)})
        if taken or made or kind.startswith("Sample"):
            form.append([kind, taken, attributes, len(made)])
    return form


def _key(trace: PlainTrace) -> str:
    """Return the instructions of a trace in JSON, without postprocessing and decisions."""
    return json.dumps(before_postprocessing(trace))


def _depth(schedule: Schedule, block: BlockRV) -> int:
    consumers = schedule.get_consumers(block)
    return len(schedule.get_loops(consumers[0])) if len(consumers) else 0


def _values(
    trace: Trace, samples: Sequence[Instruction], depths: dict[Instruction, int]
) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the kind and the values of every sampling instruction.

    Args:
        depths: For each SampleComputeLocation, the loops around the consumer.
    """
    kinds_and_values: list[tuple[str, tuple[Any, ...]]] = []
    for item in samples:
        kind = str(item.kind.name)
        if kind == "SampleCategorical":
            kinds_and_values.append(("category", tuple(range(len(item.attrs[0])))))
        elif kind == "SampleComputeLocation":
            kinds_and_values.append(("location", tuple(range(-2, depths.get(item, 0)))))
        elif kind in ("SamplePerfectTile", PARTITIONED):
            kinds_and_values.append(("tile", tiles(trace, item)))
        else:
            raise WorkerError(f"knobs do not cover the instruction {kind}; submit with --strategy evolutionary instead")
    return kinds_and_values


def _value(decision: Decision) -> Any:
    return int(decision) if isinstance(decision, int) else tuple(int(factor) for factor in decision)


def _decision(value: Any) -> Decision:
    return list(value) if isinstance(value, tuple) else value
