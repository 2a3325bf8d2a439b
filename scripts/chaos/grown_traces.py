"""Changes of a schedule trace that follow its grammar, of kinds that chance does not come upon.

Outputs that are bound again, missing or too many; index maps whose nodes are shared, so that they double with each
level; divisors that are chains of products; digits of other scripts; nests of very many loops; annotations that rules
write, with other values; lists of very many items, and lists in lists.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from autotune.tvm_backend.types import PlainTrace

_DIGITS = (
    "\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669",
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19",
)


def grow(trace: PlainTrace, draw: random.Random) -> None:
    """Change a trace, that of a seed or of one that was changed already."""
    try:
        draw.choice(_KINDS)(trace, draw)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # another change has taken the place away
        return


def _rebound(trace: PlainTrace, draw: random.Random) -> None:
    """Bind a name again, in the same instruction or in another one."""
    one, other = draw.choices([item for item in trace[0] if item[3]], k=2)
    one[3][draw.randrange(len(one[3]))] = draw.choice(other[3])


def _repeated(trace: PlainTrace, draw: random.Random) -> None:
    instruction = draw.choice([item for item in trace[0] if item[3]])
    instruction[3] *= draw.choice((0, 2, 3, 5000))


def _more_outputs(trace: PlainTrace, draw: random.Random) -> None:
    instruction = draw.choice(trace[0])
    letter = draw.choice("blv")
    count = draw.choice((1, 2, 64, 1000, 30_000))
    instruction[3] = [*instruction[3], *(f"{letter}{10**6 + number}" for number in range(count))]


def _other_digits(trace: PlainTrace, draw: random.Random) -> None:
    instruction = draw.choice(trace[0])
    names = draw.choice([part for part in (instruction[1], instruction[3]) if part])
    place = draw.randrange(len(names))
    names[place] = names[place].translate(str.maketrans("0123456789", draw.choice(_DIGITS)))


def _doubled_map(trace: PlainTrace, draw: random.Random) -> None:
    """Transform a layout by an expression in which each level has the one before it twice."""
    name = draw.choice(("prim.Add", "prim.Sub", "prim.Mul"))
    text = _doubled(
        name, draw.choice((1, 3, 8, 24, 64, 900, 5000)), draw.choice(("prim.FloorDiv", "prim.FloorMod", ""))
    )
    place = draw.randrange(len(trace[0]) + 1)
    blocks = [name for item in trace[0][:place] for name in item[3] if name.startswith("b")]
    trace[0].insert(place, ["TransformLayout", [draw.choice(blocks), text], [0, 1, None, True], []])
    trace[1] = [[at + (at >= place), decision] for at, decision in trace[1]]


def _doubled(name: str, depth: int, division: str) -> str:
    plain = {"span": 0, "ty": 1}
    nodes: list[Any] = [
        {"type": "None"},
        {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int32"}},
        {"type": "ffi.String", "data": "i"},
        {"type": "ir.Var", "data": {**plain, "name": 2}},
        {"type": "ffi.Array", "data": [3]},
        {"type": "int", "data": 2},
        {"type": "ir.IntImm", "data": {**plain, "value": 5}},
    ]
    first = 6 if division else 3
    nodes += [{"type": name, "data": {**plain, "a": at, "b": at}} for at in [first, *range(7, 6 + depth)]]
    if division:
        nodes.append({"type": division, "data": {**plain, "a": 3, "b": len(nodes) - 1}})
    nodes.append({"type": "ffi.Array", "data": [len(nodes) - 1] * 2})
    indices = {"initial_indices": 4, "final_indices": len(nodes) - 1, "inverse_index_map": 0}
    nodes.append({"type": "tirx.IndexMap", "data": indices})
    return json.dumps({"root_index": len(nodes) - 1, "nodes": nodes, "metadata": {}})


def _many_loops(trace: PlainTrace, draw: random.Random) -> None:
    loops = [name for item in trace[0] if item[0] == "GetLoops" for name in item[3]]
    last = draw.choice(loops)
    for number in range(draw.choice((2, 20, 300, 3000))):
        made = [f"l{10**7 + 2 * number}", f"l{10**7 + 2 * number + 1}"]
        trace[0].append(["Split", [last, "None", 1], [True, False], made])
        last = made[0]


def _annotated(trace: PlainTrace, draw: random.Random) -> None:
    instruction = draw.choice([item for item in trace[0] if item[0] == "Annotate"])
    structure = "".join(draw.choices("SRQ", k=draw.randint(0, 9)))
    instruction[1][1] = draw.choice((f'"{structure}"', [], [-(2**61)], [2**61] * 3000, 2**61, -1, "v0"))
    if draw.random() < 0.3:
        instruction[2][0] = "software_pipeline_stage"


def _decided(trace: PlainTrace, draw: random.Random) -> None:
    decision = draw.choice(trace[1])
    if isinstance(decision[1], list):
        decision[1] = [draw.choice((1, 3, 2**31, 2**61)) for _ in decision[1] * draw.choice((1, 1, 2))]
    else:
        decision[1] = draw.choice((-2, -1, 0, 5, 19_999, 2**61))


def _named(trace: PlainTrace, draw: random.Random) -> None:
    instruction = draw.choice([item for item in trace[0] if item[0] == "GetSBlock"])
    instruction[2][0] = draw.choice(("root", "unheard", "T_matmul_NN_rf", "a" * 100_000, *instruction[2]))


def _nested(trace: PlainTrace, draw: random.Random) -> None:
    deep: Any = "b0"
    for _ in range(draw.choice((2, 50, 900))):
        deep = [deep]
    draw.choice(trace[0])[draw.randrange(1, 4)] = deep


def _long(trace: PlainTrace, draw: random.Random) -> None:
    item = draw.choice(trace[0])
    part = draw.choice([part for part in item[1:] if part])
    part *= draw.choice((2, 64, 1025, 20_000))


_KINDS: tuple[Callable[[PlainTrace, random.Random], None], ...] = (
    *(_rebound, _repeated, _more_outputs, _other_digits, _doubled_map, _doubled_map, _many_loops),
    *(_annotated, _decided, _named, _nested, _long),
)
