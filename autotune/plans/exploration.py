"""What a plan is chosen from: kernels that a network may have, the tensors that they read and write, and a choice.

A tensor is named by the value that it holds and by its shape, such as `relu_3@1x4x28x28x16`. A value may have several
forms: the shape says in which layout it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from autotune.plans.plan import NOTHING, Algorithm, Block, Layout, Plan
from autotune.schema import whole_number


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel that a network may have.

    Attributes:
        operators: What it computes, in order.
        reads: The tensors that it reads, without constants and inputs of the network.
        writes: The tensors that it writes.
        task: The hash of its task; empty where its schedule is fixed.
        assumed_us: How long it is assumed to take, in microseconds, where nothing is tuned; None where its task is.
        algorithm: How its convolution or product is computed.
        layout: That of its convolution's result.
        threads: On how many threads it runs at most; None for all.
    """

    operators: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    task: str = ""
    assumed_us: float | None = None
    algorithm: Algorithm | None = None
    layout: Layout | None = None
    threads: int | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """The operators of the network that it computes, without those that passes have added."""
        return tuple(name for name in self.operators if not added(name))


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """The kernels that a network may have.

    Attributes:
        kernels: All of them.
        base: The numbers of those that the network has if none is chosen, in the order in which they run.
        outputs: The tensors that the network returns.
        given: What was decided from the start.
    """

    FORMAT = ("autotune-alternatives", 1)

    kernels: tuple[Kernel, ...]
    base: tuple[Annotated[int, whole_number(0)], ...]
    outputs: tuple[str, ...]
    given: Plan = NOTHING


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which kernels a network has, by what was measured.

    Attributes:
        step: How many choices there were, this one included.
        weights: How often the network runs each task of its job under this plan.
        contenders: How often it would run each task that this plan does not have, but a slightly faster task would.
        before: What `weights` were when nothing was chosen.
        last: Whether no other choice follows, but for that between this plan and the one as submitted.
        beside: The plan with small kernels beside each other; None if no two can be, or before the last choice.
        ratio: What part of the whole model's time with the plan as submitted it took with the chosen one; None if that
            was not measured.
        returned: Whether the plan as submitted was kept for that, and is `plan`.
    """

    FORMAT = ("autotune-choice", 1)

    step: int
    plan: Plan
    weights: tuple[Annotated[int, whole_number(0)], ...]
    contenders: tuple[Annotated[int, whole_number(0)], ...]
    before: tuple[Annotated[int, whole_number(0)], ...]
    last: bool = False
    beside: Plan | None = None
    ratio: float | None = None
    returned: bool = False


def decision(ratio: float, returned: bool) -> str:
    """Return a sentence on which plan is kept. The arguments are those of a `Choice`."""
    kept = ("the chosen plan, which is kept,", "the plan as submitted")
    if returned:
        kept = ("the chosen plan", "the plan as submitted, which is kept")
    return f"with {kept[0]} the model takes {ratio:.2f} of its time with {kept[1]}"


def added(operator: str) -> bool:
    """Return whether a pass has added an operator, such as `conv2d_1:layout_pack_1`."""
    return ":" in operator


def value_of(tensor: str) -> str:
    """Return the value that a tensor holds."""
    return tensor.partition("@")[0]


def base_layouts_only(alternatives: Alternatives) -> Alternatives:
    """Return the alternatives without kernels for tensors in other layouts than those of the base."""
    forms = dict[str, set[str]]()
    for number in alternatives.base:
        for tensor in _tensors(alternatives.kernels[number]):
            forms.setdefault(value_of(tensor), set()).add(tensor)
    kept = [
        kernel
        for kernel in alternatives.kernels
        if all(tensor in forms.get(value_of(tensor), (tensor,)) for tensor in _tensors(kernel))
    ]
    place = {kernel: number for number, kernel in enumerate(kept)}
    base = tuple(place[alternatives.kernels[number]] for number in alternatives.base)
    return replace(alternatives, kernels=tuple(kept), base=base)


def _tensors(kernel: Kernel) -> tuple[str, ...]:
    return (*kernel.reads, *kernel.writes)


def plan_of(alternatives: Alternatives, chosen: Sequence[int]) -> Plan:
    """Return the plan that makes a network of kernels: what was given, and the blocks that differ from the base.

    Args:
        alternatives: What there is.
        chosen: The numbers of the kernels of the network.
    """
    place: Mapping[str, int] = {
        name: number for number in alternatives.base for name in alternatives.kernels[number].operators
    }
    order = {name: index for index, name in enumerate(place)}
    kernels = [alternatives.kernels[number] for number in chosen if number not in alternatives.base]
    blocks = {kernel.named: _block(kernel) for kernel in kernels if kernel.named}
    decided = {name for names in blocks for name in names}
    kept = [block for block in alternatives.given.blocks if not decided.intersection(block.operators)]
    ordered = sorted([*kept, *blocks.values()], key=lambda block: min(order.get(name, 0) for name in block.operators))
    return Plan(facts=alternatives.given.facts, blocks=tuple(ordered))


def _block(kernel: Kernel) -> Block:
    return Block(operators=kernel.named, algorithm=kernel.algorithm, layout=kernel.layout, threads=kernel.threads)
