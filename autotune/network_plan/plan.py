"""The plan of a network: its kernels in order, each with the operators that it computes and how it computes them.

A plan is a TOML file. Part of it decides and may be edited: the order of blocks, and `operators`, `algorithm`,
`layout`, `threads` and `beside` of each. The rest are facts that follow, and that nobody reads back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from autotune.errors import BadInput, InvalidData
from autotune.schema import text as described
from autotune.schema import whole_number
from autotune.toml_file import read_tables

FORMAT = 2
# direct: sums over a window of the image.  rows: the same over rows of pixels that are padded to a good tile.
# winograd: of Lavin and Gray, with tiles of the output of so many pixels.  packed: a product that reads its constant
# matrix in blocks of columns.  plain: one that reads it as it is.
Algorithm = Literal["direct", "rows", "winograd-2x2", "winograd-4x4", "packed", "plain"]
# Of an image, with channels in blocks of so many: 1 to 32.
Layout = Annotated[
    str, described("", r"^NCHW([1-9]|[12][0-9]|3[0-2])c$", "a layout such as NCHW16c, with a block of 1 to 32")
]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
_MAX_THREADS = 1024
_MAX_BLOCKS = 20_000  # no network comes near to it
_HEAD = """\
# The plan of {model}: its kernels in the order in which they run.
# To change it, edit `operators`, `algorithm`, `layout`, `threads` or `beside`, or move blocks, and give the file to:
#     autotune submit MODEL --plan FILE
# What is left out, blocks too, is decided as without a plan. Facts follow from the rest: nobody reads them back.
"""


@dataclass(frozen=True)
class TensorFacts:
    """A tensor that a kernel reads or writes.

    Attributes:
        name: Of its buffer, input, view or weight.
        type: Of its elements.
        shape: Empty for a scalar.
        layout: What its dimensions are, such as `NCHW16c`; empty where nothing has to say it.
        bytes: Its size.
        offset: Where it lies, in bytes from the start of the memory of activations, or from that of the weights.
    """

    name: str
    type: str
    shape: tuple[int, ...] = ()
    layout: str = ""
    bytes: int = 0
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class BlockFacts:
    """What follows of a block.

    Attributes:
        kernel: The name of its tensor program.
        task: The name of the task that tunes it; empty where there is nothing to tune.
        best_us: The best time of that task so far, in microseconds.
        reads: The activations that it reads.
        weights: The constants that it reads.
        writes: What it writes.
    """

    kernel: str = ""
    task: str = ""
    best_us: float | None = None
    reads: tuple[TensorFacts, ...] = ()
    weights: tuple[TensorFacts, ...] = ()
    writes: tuple[TensorFacts, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """Operators that one kernel computes.

    Attributes:
        operators: Their names, in order.
        algorithm: How a convolution or a product among them is computed; None for what the rules choose.
        layout: That of the result of this convolution; None for what the rules choose.
        threads: On how many threads it runs at most; None for all.
        beside: Whether it runs at the same time as the block before it, on other threads.
        facts: What follows from the rest.
    """

    operators: tuple[str, ...]
    algorithm: Algorithm | None = None
    layout: Layout | None = None
    threads: Annotated[int, whole_number(1, most=_MAX_THREADS)] | None = None
    beside: bool = False
    facts: BlockFacts | None = None


@dataclass(frozen=True)
class Memory:
    """The memory of activations, in bytes.

    Attributes:
        arena: What they need at their offsets, where `export --source` puts them.
        library: What the inputs take and `model.so` allocates, where outputs have storages of their own on CPUs.
        sum: What they would need if none shared memory with another.
        least: What every order of the kernels needs at least.
    """

    arena: int
    library: int
    sum: int
    least: int


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What follows of a plan as a whole.

    Attributes:
        model: The model that it is for, as users know it.
        threads: How many threads the model runs on.
        memory: The memory of its activations.
    """

    model: str = ""
    threads: int = 0
    memory: Memory | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan, whole or in part.

    Attributes:
        format: The version of the format.
        facts: What follows from the rest.
        blocks: Its kernels.
    """

    format: int = FORMAT
    facts: PlanFacts | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def memory(self) -> Memory | None:
        """The memory of activations, where the plan says it."""
        return self.facts.memory if self.facts is not None else None

    def block_of(self) -> dict[str, int]:
        """Return the number of the block of each operator, counted from 0."""
        return {name: number for number, block in enumerate(self.blocks) for name in block.operators}

    def decisions(self) -> Plan:
        """Return the plan without its facts."""
        blocks = (replace(block, facts=None) for block in self.blocks)
        return replace(self, facts=None, blocks=tuple(blocks))

    def refusal(self, operator: str, reason: str) -> BadInput:
        """Return the error for a block that cannot be as the plan wants it."""
        number = self.block_of()[operator]
        return BadInput(f"the plan cannot be followed: block {number + 1} ({title(self.blocks[number])}): {reason}")

    def layouts(self) -> dict[str, Layout]:
        """Return the layout that the plan chooses for operators, by name: for all operators of a block."""
        return {name: block.layout for name, block in self._by_operator() if block.layout}

    def algorithms(self) -> dict[str, Algorithm]:
        """Return the algorithm that the plan chooses for operators, by name: for all operators of a block."""
        return {name: block.algorithm for name, block in self._by_operator() if block.algorithm}

    def threads_limits(self) -> dict[str, int]:
        """Return on how many threads the plan runs operators at most, by name: for all operators of a block."""
        return {name: block.threads for name, block in self._by_operator() if block.threads is not None}

    def _by_operator(self) -> Iterator[tuple[str, Block]]:
        return ((name, block) for block in self.blocks for name in block.operators)


NOTHING: Final = Plan()  # leaves all to the rules


def read(path: Path) -> Plan:
    """Read a plan that a user may have edited.

    Raises:
        ConfigError: It is not a plan. The message names the file, the line and what is wrong.
        DiskProblem: It cannot be read.
    """
    with read_tables(Plan, path, "the plan", _upgraded) as (plan, _):
        _check(plan)
    return plan


def _upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """Put the facts of a plan of format 1, which stood at the top, under `facts`."""
    if document.get("format") != 1:
        return document
    facts = {item.name: document[item.name] for item in fields(PlanFacts) if item.name in document}
    rest = {key: value for key, value in document.items() if key not in facts}
    return rest | {"format": FORMAT} | ({"facts": facts} if facts else {})


def _check(plan: Plan) -> None:
    """Check what needs no model.

    Raises:
        InvalidData: Its format is another one, a block has no operators, an operator is in two places, or the first
            block runs beside none.
    """
    if plan.format != FORMAT:
        raise InvalidData(f"the plan has format {plan.format}; this autotune reads format {FORMAT}", ("format",))
    if len(plan.blocks) > _MAX_BLOCKS:
        raise InvalidData(f"the plan has {len(plan.blocks)} blocks; a network has at most {_MAX_BLOCKS}", ("blocks",))
    if plan.blocks and plan.blocks[0].beside:
        raise InvalidData("block 1 has `beside`, but no block is before it", ("blocks", 0, "beside"))
    counts = Counter(name for block in plan.blocks for name in block.operators)
    for number, block in enumerate(plan.blocks):
        if not block.operators:
            raise InvalidData(f"block {number + 1} has no operators; leave it out", ("blocks", number, "operators"))
        twice = [name for name in block.operators if counts[name] > 1]
        if twice:
            raise InvalidData(
                f"block {number + 1} ({title(block)}): {twice[0]} is in {counts[twice[0]]} places; leave one",
                ("blocks", number, "operators"),
            )


def differences(one: Plan, other: Plan) -> Iterator[str]:
    """Yield a line for each difference of two plans, and none if they are equal.

    Args:
        one: The plan whose values come first.
        other: The plan that it is compared with.
    """
    for item in fields(Memory) if one.memory and other.memory else ():
        before, after = (getattr(plan.memory, item.name) for plan in (one, other))
        yield from [f"memory: {item.name}: {before} -> {after}"] if before != after else []
    ones, others = ({block.operators: block for block in plan.blocks} for plan in (one, other))
    yield from (f"only in the first: {title(ones[key])}" for key in ones if key not in others)
    yield from (f"only in the second: {title(others[key])}" for key in others if key not in ones)
    for key in [key for key in ones if key in others]:
        yield from _changed(ones[key], others[key])
    both = [[key for key in blocks if key in ones and key in others] for blocks in (ones, others)]
    moved = next((pair for pair in zip(*both, strict=True) if pair[0] != pair[1]), None)
    if moved is not None:
        yield f"order: the first runs {' + '.join(moved[0])} where the second runs {' + '.join(moved[1])}"


def _changed(one: Block, other: Block) -> Iterator[str]:
    before = _compared(one)
    for name, now in _compared(other).items():
        if before[name] != now:
            yield f"{title(one)}: {name}: {before[name]} -> {now}"


def _compared(block: Block) -> dict[str, str]:
    """Return what is compared of a block. Where its tensors lie follows from the others, and says nothing of it."""
    facts = block.facts or BlockFacts()
    return {
        "algorithm": block.algorithm or "-",
        "layout": block.layout or "-",
        "threads": str(block.threads or "-"),
        "beside": json.dumps(block.beside),
        "task": facts.task or "-",
        "best_us": f"{facts.best_us:g}" if facts.best_us is not None else "-",
        "bytes of weights": str(sum(item.bytes for item in facts.weights)),
        "bytes written": str(sum(item.bytes for item in facts.writes)),
    }


def title(block: Block) -> str:
    """Return what messages call a block: its operators, or the first and the last of many."""
    names = block.operators
    return " + ".join(names if len(names) < 4 else (names[0], "...", names[-1]))


def text(plan: Plan) -> str:
    """Return a plan as the TOML that `read` reads."""
    facts = plan.facts or PlanFacts()
    lines = [_HEAD.format(model=facts.model or "a network").rstrip(), f"format = {plan.format}"]
    if plan.facts is not None:
        lines += ["", "[facts]", *_pairs(facts, without=("memory",))]
    if facts.memory is not None:
        lines += ["", "[facts.memory]  # of activations, in bytes", *_pairs(facts.memory)]
    for block in plan.blocks:
        lines += ["", *_block(block)]
    return "\n".join(lines) + "\n"


def _block(block: Block) -> Iterator[str]:
    yield "[[blocks]]"
    yield from _pairs(block, without=("facts",))
    if block.facts is not None:
        yield "[blocks.facts]"
        yield from _pairs(block.facts)


def _pairs(table: Any, without: Sequence[str] = ()) -> Iterator[str]:
    """Yield the keys and values of a table, without those that say nothing."""
    for item in fields(table):
        value = getattr(table, item.name)
        if item.name not in without and value not in (None, (), "") and value is not False:
            yield f"{item.name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], TensorFacts):
        return "[\n" + "".join(f"    {{ {', '.join(_pairs(item))} }},\n" for item in value) + "]"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML forbids and JSON does not
