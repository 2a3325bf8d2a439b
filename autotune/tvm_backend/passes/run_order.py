"""Put the kernels of a model in an order: that of a plan, and among the orders left one that needs little memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
from tvm import relax

from autotune.errors import BadInput
from autotune.plans.arena import aligned
from autotune.plans.order import Order, Step, Steps, best_order, stable_order
from autotune.plans.plan import Plan, title
from autotune.tvm_backend.passes.blocks import OPERATORS
from autotune.tvm_backend.passes.in_place import TOGETHER, returned
from autotune.tvm_backend.passes.rewrite import is_rewritable, op_name, variables, with_blocks, with_main
from autotune.tvm_backend.types import Binding, Function, IRModule, Var

# The attribute of `main` with the bytes that every order of its kernels needs at least.
LEAST_MEMORY = "autotune_least_memory"
_TIR = "relax.call_tir"
_MEGABYTE = 1e6


def order_kernels(mod: IRModule, plan: Plan, memory_mb: float | None = None) -> IRModule:
    """Put the kernels of `main` in an order in which the activations need the least memory.

    They stay in their order where no other needs less.

    Args:
        mod: A module after `fuse`.
        plan: Its blocks run in its order.
        memory_mb: How much memory activations may take, in megabytes; None for any.

    Returns:
        The module, whose `main` has the attribute `LEAST_MEMORY`.

    Raises:
        BadInput: The plan's order is none in which the blocks can run, or no order takes so little memory.
    """
    main = mod["main"] if is_rewritable(mod) else None
    if main is None or len(main.body.blocks) != 1 or not isinstance(main.body.blocks[0], relax.DataflowBlock):
        if memory_mb is not None:
            raise BadInput("--memory: how much this model's activations need is not known, for it has branches")
        return mod
    (block,) = main.body.blocks
    graph = _Graph(main, relax.transform.RewriteDataflowReshape()(mod)["main"])
    first = _planned(graph, plan)
    chosen = best_order(graph.steps(first))
    if memory_mb is not None and chosen.peak > memory_mb * _MEGABYTE:
        raise BadInput(_too_much(chosen, memory_mb))
    order = [first[number] for number in chosen.order]
    kernels = {step: names for step, names in zip(graph.kernels, main.attrs[OPERATORS], strict=True)}
    attrs = {OPERATORS: [kernels[step] for step in order if step in kernels], LEAST_MEMORY: chosen.bound}
    moved = relax.DataflowBlock([block.bindings[step] for step in order])
    return with_main(mod, with_blocks(main, [moved]).with_attr(attrs))


def _too_much(order: Order, memory_mb: float) -> str:
    needs, least = (f"{number / _MEGABYTE:.6g} MB" for number in (order.peak, order.bound))
    allowed = f"--memory {memory_mb:.6g}MB"
    return f"the model's activations need {needs}, more than {allowed}; in any order of its kernels {least} at least"


def _planned(graph: _Graph, plan: Plan) -> list[int]:
    """Return the steps in an order that a plan allows."""
    step_of = {name: step for step, names in zip(graph.kernels, graph.operators, strict=True) for name in names}
    listed = [step_of.get(block.operators[0]) for block in plan.blocks]
    steps = [step for step in dict.fromkeys(listed) if step is not None]
    for one, other in itertools.pairwise(steps):
        graph.after[other].add(one)
    order = stable_order(graph.after)
    if len(order) < len(graph.after):
        raise _impossible(graph, plan, listed)
    return order


def _impossible(graph: _Graph, plan: Plan, listed: Sequence[int | None]) -> BadInput:
    """Return the error for a block that comes before one whose result it needs."""
    for number, step in enumerate(listed):
        later = {other: place for place, other in enumerate(listed) if other is not None and place > number}
        needs = graph.needed(step) if step is not None else set[int]()
        needed = min((later[other] for other in needs if other in later), default=None)
        if needed is not None:
            reason = f"it needs a result of block {needed + 1} ({title(plan.blocks[needed])}), which comes after it"
            return plan.refusal(plan.blocks[number].operators[0], reason)
    raise AssertionError("the graph has a cycle")


@dataclass
class _Graph:
    """The bindings of `main` as steps.

    Attributes:
        main: The function.
        seen: The same with reshapes that need no kernel.
        after: For each binding those that come before it.
        kernels: The numbers of the bindings that call tensor programs.
        operators: What each of these computes.
    """

    main: Function
    seen: Function
    after: list[set[int]] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    operators: list[list[str]] = field(default_factory=list)
    _needs: list[set[int]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _root: list[int] = field(default_factory=list)  # the buffer in which the result of a binding lies

    def __post_init__(self) -> None:
        bindings = list(self.main.body.blocks[0].bindings)
        seen = list(self.seen.body.blocks[0].bindings)
        numbers = {binding.var: number for number, binding in enumerate(bindings)}
        same = len(bindings) == len(seen)
        for number, binding in enumerate(bindings):
            sources = [numbers[var] for var in variables(binding.value) if var in numbers]
            self._needs.append(set(sources))
            self._place(number, binding, seen[number] if same else binding, sources)
        self.after = [set(needs) for needs in self._needs]
        self.operators = [list(map(str, names)) for names in self.main.attrs[OPERATORS]]
        self._kept = [numbers[var] for var in returned(self.main) if var in numbers]

    def _place(self, number: int, binding: Binding, seen: Binding, sources: Sequence[int]) -> None:
        """Note where the result of a binding lies: in a buffer of its own, or where its first operand lies."""
        is_kernel = op_name(binding.value) == _TIR
        self._root.append(number)
        if is_kernel:
            self.kernels.append(number)
        computed = is_kernel and op_name(seen.value) == _TIR
        self._sizes.append(aligned(_bytes(binding.var)) if computed else 0)
        if is_kernel and str(binding.value.args[0].name_hint).startswith(TOGETHER):
            for part in sources:
                self._sizes[part] = 0
                self._root[part] = number
        elif not computed and sources:
            self._root[number] = sources[0]

    def needed(self, step: int) -> set[int]:
        """Return the bindings whose results a binding needs, its own operands and theirs."""
        needs = set[int]()
        left = [step]
        while left:
            more = self._needs[left.pop()] - needs
            needs |= more
            left += more
        return needs

    def _lies_in(self, number: int) -> int:
        while self._root[number] != number:
            number = self._root[number]
        return number

    def steps(self, order: Sequence[int]) -> Steps:
        """Return the steps in an order."""
        place = {step: position for position, step in enumerate(order)}
        steps = [
            Step(
                frozenset(place[before] for before in self.after[step]),
                frozenset(self._lies_in(item) for item in {step, *self._needs[step]}),
            )
            for step in order
        ]
        kept = frozenset(map(self._lies_in, self._kept))
        always = sum(aligned(_bytes(param)) for param in self.main.params)
        return Steps(tuple(steps), tuple(self._sizes), kept, always)


def _bytes(var: Var) -> int:
    """Return the size of the tensors that a variable holds; 0 for one whose size is not fixed."""
    kinds = var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]
    return sum(_type_bytes(kind) for kind in kinds if isinstance(kind, relax.TensorType))


def _type_bytes(kind: Any) -> int:
    sizes = kind.shape.values if isinstance(kind.shape, relax.ShapeExpr) else [None]
    fixed = all(isinstance(size, tvm.tirx.IntImm) for size in sizes)
    return prod(map(int, sizes)) * int(tvm.DataType(str(kind.dtype)).itemsize) if fixed else 0
