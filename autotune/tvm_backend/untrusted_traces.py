"""Check schedule traces before TVM reads them, because its reader makes any object that a file names, code included.

A schedule trace is a list of instructions, and some take whole objects: the index map of a `TransformLayout` is an
expression, which may call any function of the process, and an annotation may be a pragma whose text the code generator
compiles. So `check_trace` knows a closed grammar: the instructions that rules and postprocessors of MetaSchedule and
our own rules make, with the operands that they give them and as many outputs as they have. Each output has a name of
its own. What is not in the grammar is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from autotune.tvm_backend.index_map import is_index_map
from autotune.tvm_backend.types import Decision, PlainTrace

Check = Callable[[Any], bool]

_MAX_INSTRUCTIONS = 20_000  # a trace of MetaSchedule has some hundred
_MAX_ITEMS = 1024  # of any other list
_MAX_TILES = 64  # of a loop
_MAX_LOOPS = 256  # of a nest; what TVM does with one takes as many calls inside each other
_LARGEST = 2**62
_TILES = ("SamplePartitionedTile", "SamplePerfectTile")  # the instructions that decide for a list of factors


def _matches(pattern: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < _LARGEST  # `True` is one too: TVM writes either


def _is_positive(value: Any) -> bool:
    return _is_integer(value) and value > 0


def _is_few(value: Any) -> bool:
    return _is_positive(value) and value <= _MAX_TILES


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_none(value: Any) -> bool:
    return value is None


def _any(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _many(check: Check, most: int = _MAX_ITEMS) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(check, value))


def _items(*checks: Check, rest: Check | None = None) -> Check:
    """A list with an item for each check, and any number of items after them if there is a check for the rest."""

    def holds(value: Any) -> bool:
        if not isinstance(value, list) or len(value) > _MAX_ITEMS or len(value) < len(checks):
            return False
        first = all(check(item) for check, item in zip(checks, value, strict=False))
        return first and all(rest is not None and rest(item) for item in value[len(checks) :])

    return holds


_BLOCK = _matches(r"b[0-9]{1,9}")
_LOOP = _matches(r"l[0-9]{1,9}")
_VARIABLE = _matches(r"v[0-9]{1,9}")
_PLACE = _any(_BLOCK, _LOOP)
_SIZE = _any(_is_integer, _VARIABLE, _matches("None"))
_NAME = _matches(r"[\w.]{1,400}")
_BLOCK_NAME = _matches(r"[\w.:]{1,4000}")  # a colon is in the names of operators that a pass made of another one
_SCOPE = _matches(
    r"global|local|warp|shared(\.dyn)?|wmma\.(matrix_a|matrix_b|accumulator)|m16n8k8\.matrix[ABC]|local\.\w+"
)
_THREAD = _matches(r"(blockIdx|threadIdx)\.[xyz]|vthread(\.[xyz])?")
_COUNT = _any(_is_integer, _VARIABLE)
_QUOTED = _matches(r'"[\w.]*"')  # a string among operands is JSON

WHOLE_VECTORS = "pragma_loop_partition_hint"  # the annotation of a loop that TVM cuts where a condition begins to hold

_PIPELINE = ("rows", "pieces", "vector", "threads", "steps", "stages", "results")  # of `cuda/pipeline_tiles.py`

# What rules annotate, and with which values.
_ANNOTATIONS: dict[str, Check] = {
    "meta_schedule.auto_tensorize": _QUOTED,
    "meta_schedule.auto_tensorize_init": _QUOTED,
    "meta_schedule.cache_type": _COUNT,
    "meta_schedule.cooperative_fetch": _COUNT,
    "meta_schedule.inline_rule": _QUOTED,
    "meta_schedule.layout_rewrite_preproc": _any(_COUNT, _QUOTED),
    "meta_schedule.parallel": _COUNT,
    "meta_schedule.random_compute_producer": _COUNT,
    "meta_schedule.tensor_core_enabled": _any(_COUNT, _QUOTED),
    "meta_schedule.thread_extent_high_inclusive": _COUNT,
    "meta_schedule.thread_extent_low_inclusive": _COUNT,
    "meta_schedule.tiling_structure": _QUOTED,
    "meta_schedule.unroll_explicit": _COUNT,
    "meta_schedule.unroll_implicit": _COUNT,
    "meta_schedule.vectorize": _COUNT,
    **{f"autotune.pipeline_{name}": _COUNT for name in _PIPELINE},
    "double_buffer_scope": _COUNT,
    "local_stage": _COUNT,
    "permuted_layout": _any(_COUNT, _QUOTED),
    "pragma_auto_unroll_max_step": _COUNT,
    WHOLE_VECTORS: _COUNT,
    "pragma_unroll_explicit": _COUNT,
    "software_pipeline_async_stages": _many(_is_integer),
    "software_pipeline_order": _many(_is_integer),
    "software_pipeline_stage": _many(_is_integer),
    "tirx.manifest_shared_memory_local_stage": _COUNT,
    "vector_bytes": _COUNT,
    "warp_execution": _COUNT,
}


def _is_split(value: Any) -> bool:
    return _items(_LOOP, rest=_SIZE)(value) and len(value) <= 1 + _MAX_TILES


_NOTHING = _items()
_OF_BLOCK = _items(_BLOCK)
_OF_LOOP = _items(_LOOP)
_OF_PLACE = _items(_PLACE)
_CACHED = (_items(_BLOCK, _many(_BLOCK)), _items(_is_integer, _SCOPE))
_COPIED_AT = (_items(_LOOP, _BLOCK), _items(_is_integer, _SCOPE))
_MOVED = (_items(_BLOCK, _LOOP), _items(_is_integer, _is_integer))

# Each instruction with its inputs and its attributes.
_INSTRUCTIONS: dict[str, tuple[Check, Check]] = {
    "AddUnitLoop": (_OF_PLACE, _NOTHING),
    "Bind": (_OF_LOOP, _items(_THREAD)),
    "Blockize": (_any(_OF_LOOP, _items(_many(_BLOCK))), _items(_is_integer)),
    "CacheRead": _CACHED,
    "CacheWrite": _CACHED,
    "ComputeAt": _MOVED,
    "ComputeInline": (_OF_BLOCK, _NOTHING),
    "DecomposeReduction": (_items(_BLOCK, _LOOP), _NOTHING),
    "EnterPostproc": (_NOTHING, _NOTHING),
    "Fuse": (_many(_LOOP), _items(_is_integer)),
    "GetChildBlocks": (_OF_PLACE, _NOTHING),
    "GetConsumers": (_OF_BLOCK, _NOTHING),
    "GetLoops": (_OF_BLOCK, _NOTHING),
    "GetProducers": (_OF_BLOCK, _NOTHING),
    "GetSBlock": (_NOTHING, _items(_BLOCK_NAME, _NAME)),
    "PadEinsum": (_OF_BLOCK, _items(_many(_is_integer))),
    "Parallel": (_OF_LOOP, _NOTHING),
    "RFactor": (_OF_LOOP, _items(_is_integer)),
    "ReadAt": _COPIED_AT,
    "ReIndex": (_OF_BLOCK, _items(_is_integer, _is_integer)),
    "Reorder": (_many(_LOOP), _NOTHING),
    "ReverseComputeAt": _MOVED,
    "ReverseComputeInline": (_OF_BLOCK, _NOTHING),
    "SampleCategorical": (_NOTHING, _items(_many(_is_integer), _many(_is_number))),
    "SampleComputeLocation": (_OF_BLOCK, _NOTHING),
    "SamplePartitionedTile": (_OF_LOOP, _items(_is_few, _is_few, _is_few)),
    "SamplePerfectTile": (_OF_LOOP, _items(_is_few, _is_integer)),
    "SetScope": (_OF_BLOCK, _items(_is_integer, _SCOPE)),
    "Split": (_is_split, _items(_is_integer, _is_integer)),
    "StorageAlign": (_OF_BLOCK, _items(*[_is_integer] * 4)),
    "Tensorize": (_OF_PLACE, _items(_NAME, _is_integer)),
    "TransformBlockLayout": (_OF_BLOCK, _items(is_index_map)),
    "TransformLayout": (_items(_BLOCK, is_index_map), _items(_is_integer, _is_integer, _is_none, _is_integer)),
    "Unannotate": (_OF_PLACE, _items(_NAME)),
    "Unroll": (_OF_LOOP, _NOTHING),
    "Vectorize": (_OF_LOOP, _NOTHING),
    "WriteAt": _COPIED_AT,
}
# What the outputs of an instruction are called; all others have none.
_OUTPUTS: dict[str, Check] = {
    **dict.fromkeys(("AddUnitLoop", "Fuse", "GetLoops", "SampleComputeLocation", "Split"), _LOOP),
    **dict.fromkeys(("SampleCategorical", *_TILES), _VARIABLE),
    **dict.fromkeys(("Blockize", "CacheRead", "CacheWrite", "DecomposeReduction", "GetChildBlocks"), _BLOCK),
    **dict.fromkeys(("GetConsumers", "GetProducers", "GetSBlock", "RFactor", "ReIndex"), _BLOCK),
    **dict.fromkeys(("ReadAt", "WriteAt"), _BLOCK),
}
# Those that have as many outputs as the program has such loops or blocks.
_FINDING = ("GetChildBlocks", "GetConsumers", "GetLoops", "GetProducers")
_MOVING = ("ComputeAt", "ReverseComputeAt")
_SAMPLING = ("SampleCategorical", "SampleComputeLocation", *_TILES)
_DECISION = _items(_is_integer, _any(_is_integer, _many(_is_positive, _MAX_TILES)))
_OUTERMOST = -2  # of the locations that SampleComputeLocation decides for; -1 is inlined


def check_trace(trace: PlainTrace) -> None:
    """Make sure that a trace, as in a tuning record, makes nothing but a schedule.

    Raises:
        ValueError: It is not a trace, or has an instruction or an operand that no rule makes.
    """
    instruction = _items(*[lambda _: True] * 4)
    if not _items(_many(instruction, _MAX_INSTRUCTIONS), _many(_DECISION, _MAX_INSTRUCTIONS))(trace):
        raise ValueError("it is no trace")
    names = _Names()
    for kind, inputs, attributes, outputs in trace[0]:
        _check_instruction(kind, inputs, attributes)
        _check_outputs(kind, inputs, attributes, outputs)
        names.take(kind, inputs)
        names.make(kind, inputs, outputs)
    for position, decision in trace[1]:
        _check_decision(trace[0], position, decision)
    decided = [position for position, _ in trace[1]]
    if len(set(decided)) < len(decided):
        raise ValueError("it decides twice for one instruction")
    undecided = {index for index, item in enumerate(trace[0]) if item[0] in _SAMPLING}.difference(decided)
    if undecided:
        raise ValueError(f"nothing decides for the instruction {min(undecided)}")


class _Names:
    """The blocks, loops and variables that the instructions of a trace have made so far."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._locations: set[str] = set()
        self._nests: dict[str, list[int]] = {}  # of each loop: how many loops its nest has

    def take(self, kind: str, inputs: Any) -> None:
        """Check that an instruction takes what was made before it."""
        used = set(_used(inputs))
        if missing := sorted(used - self._made):
            raise ValueError(f"{kind} takes {missing[0]}, which nothing before it has made")
        if kind not in _MOVING and (misused := sorted(used & self._locations)):
            raise ValueError(f"{kind} takes {misused[0]}, which is a location and may be no loop")

    def make(self, kind: str, inputs: Any, outputs: list[str]) -> None:
        """Take note of what an instruction makes."""
        for name in outputs:
            if name in self._made:
                raise ValueError(f"{kind} makes {name}, which is there already")
            self._made.add(name)
        if kind == "SampleComputeLocation":
            self._locations.update(outputs)
        elif _OUTPUTS.get(kind) is _LOOP:
            self._grow(kind, inputs, outputs)

    def _grow(self, kind: str, inputs: Any, outputs: list[str]) -> None:
        nest = next((self._nests[name] for name in _used(inputs) if name in self._nests), [0])
        nest[0] += len(outputs)
        if nest[0] > _MAX_LOOPS:
            raise ValueError(f"{kind} makes a nest of more than {_MAX_LOOPS} loops")
        self._nests.update(dict.fromkeys(outputs, nest))


def _used(inputs: Any) -> Iterator[str]:
    """Yield the blocks, loops and variables among operands."""
    for item in inputs:
        if isinstance(item, list):
            yield from _used(item)
        elif _BLOCK(item) or _LOOP(item) or _VARIABLE(item):
            yield item


def _check_decision(instructions: list[Any], position: int, decision: Decision) -> None:
    """Check that a decision is one of a sampling instruction: TVM reads what lies at its position, whatever it is."""
    kind, _, attributes, _ = instructions[position] if 0 <= position < len(instructions) else ("nothing", [], [], [])
    sound = {
        **dict.fromkeys(_TILES, lambda: isinstance(decision, list) and len(decision) == attributes[0]),
        "SampleCategorical": lambda: _is_integer(decision) and 0 <= decision < len(attributes[0]),
        "SampleComputeLocation": lambda: _is_integer(decision) and _OUTERMOST <= decision < _MAX_ITEMS,
    }
    if kind not in sound or not sound[kind]():
        raise ValueError(f"{kind} at {position} does not decide for {_shown(decision)}")


def _check_instruction(kind: Any, inputs: Any, attributes: Any) -> None:
    if kind == "Annotate":
        _check_annotation(inputs, attributes)
    elif not isinstance(kind, str) or kind not in _INSTRUCTIONS:
        raise ValueError(f"no rule makes the instruction {_shown(kind)}")
    else:
        of_inputs, of_attributes = _INSTRUCTIONS[kind]
        if not of_inputs(inputs) or not of_attributes(attributes):
            raise ValueError(f"no rule gives {kind} such operands: {_shown([inputs, attributes])}")


def _check_outputs(kind: str, inputs: list[Any], attributes: list[Any], outputs: Any) -> None:
    if not _many(_OUTPUTS.get(kind, lambda _: False))(outputs):
        raise ValueError(f"the outputs of {kind} are no names: {_shown(outputs)}")
    count = {
        **dict.fromkeys(_OUTPUTS, 1),
        **dict.fromkeys(_FINDING, len(outputs)),
        **dict.fromkeys(_TILES, attributes[0] if kind in _TILES else 0),
        "Split": len(inputs) - 1,
    }.get(kind, 0)
    if len(outputs) != count:
        raise ValueError(f"{kind} makes {count} and not {len(outputs)}: {_shown(outputs)}")


def _check_annotation(inputs: Any, attributes: Any) -> None:
    if not _items(_NAME)(attributes) or attributes[0] not in _ANNOTATIONS:
        raise ValueError(f"no rule annotates {_shown(attributes)}")
    if not _items(_PLACE, _ANNOTATIONS[attributes[0]])(inputs):
        raise ValueError(f"no rule annotates {attributes[0]} with {_shown(inputs)}")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (RecursionError, TypeError, ValueError):
        return "what is no data"
    return text if len(text) < 80 else f"{text[:77]}..."
