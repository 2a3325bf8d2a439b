"""Put the kernels of a model in an order: that of a plan, and among the orders left one that needs little memory.

Kernels that a plan runs beside each other are one step.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm import relax

from autotune.errors import BadInput
from autotune.network_plan.arena import aligned
from autotune.network_plan.order import Order, Step, Steps, best_order, stable_order
from autotune.network_plan.plan import Plan, title
from autotune.tvm_backend.expressions import fixed_bytes, op_name, variables
from autotune.tvm_backend.graph.blocks import OPERATORS
from autotune.tvm_backend.graph.in_place import TOGETHER, returned
from autotune.tvm_backend.graph.rewrite import is_rewritable, with_blocks, with_main
from autotune.tvm_backend.types import Binding, Function, IRModule

# The attribute of `main` with the bytes that every order of its kernels needs at least.
MIN_MEMORY = "autotune_least_memory"
# That with the kernels that run beside each other: lists of their numbers, counted from 0 in the order of the calls.
BESIDE = "autotune_beside"
_TIR = "relax.call_tir"
_MEGABYTE = 1e6

Unit = tuple[int, ...]  # the numbers of a binding, or of kernels that run beside each other


def order_kernels(mod: IRModule, plan: Plan, memory_mb: float | None = None) -> IRModule:
    """Put the kernels of `main` in an order in which the activations need the least memory.

    They stay in their order where no other needs less.

    Args:
        mod: A module after `fuse`.
        plan: Its blocks run in its order.
        memory_mb: How much memory activations may take, in megabytes; None for any.

    Returns:
        The module, whose `main` has the attribute `MIN_MEMORY`, and `BESIDE` if kernels run beside each other.

    Raises:
        BadInput: The plan's order is none in which the blocks can run, blocks that are to run beside each other need
            each other's results, or no order takes so little memory.
    """
    graph = _graph_of(mod)
    if graph is None:
        if memory_mb is not None:
            raise BadInput("--memory: how much this model's activations need is not known, for it has branches")
        return mod
    main = graph.main
    (block,) = main.body.blocks
    units = _planned(graph, plan)
    chosen = best_order(graph.steps(units))
    if memory_mb is not None and chosen.peak > memory_mb * _MEGABYTE:
        raise BadInput(_too_much(chosen, memory_mb))
    ordered = [units[number] for number in chosen.order]
    order = [step for unit in ordered for step in unit]
    kernels = {step: names for step, names in zip(graph.kernels, main.attrs[OPERATORS], strict=True)}
    attrs = {OPERATORS: [kernels[step] for step in order if step in kernels], MIN_MEMORY: chosen.bound}
    place = {step: number for number, step in enumerate(step for step in order if step in kernels)}
    beside = [[place[step] for step in unit] for unit in ordered if len(unit) > 1]
    moved = relax.DataflowBlock([block.bindings[step] for step in order])
    return with_main(mod, with_blocks(main, [moved]).with_attr(attrs | ({BESIDE: beside} if beside else {})))


def _graph_of(mod: IRModule) -> _Graph | None:
    """Return the bindings of `main` as steps; None if it has branches."""
    main = mod["main"] if is_rewritable(mod) else None
    if main is None or len(main.body.blocks) != 1 or not isinstance(main.body.blocks[0], relax.DataflowBlock):
        return None
    return _Graph(main, relax.transform.RewriteDataflowReshape()(mod)["main"])


def _too_much(order: Order, memory_mb: float) -> str:
    needs, least = (f"{number / _MEGABYTE:.6g} MB" for number in (order.peak, order.bound))
    allowed = f"--memory {memory_mb:.6g}MB"
    return f"the model's activations need {needs}, more than {allowed}; in any order of its kernels {least} at least"


def _planned(graph: _Graph, plan: Plan) -> list[Unit]:
    """Return the steps in an order that a plan allows, with those that run beside each other in one unit."""
    step_of = {name: step for step, names in zip(graph.kernels, graph.operators, strict=True) for name in names}
    listed = [step_of.get(block.operators[0]) for block in plan.blocks]
    together = _together(graph, plan, listed)
    unit_of = {step: unit for unit in together for step in unit}
    units = list(dict.fromkeys(unit_of.get(step, (step,)) for step in range(len(graph.after))))
    steps = [step for step in dict.fromkeys(listed) if step is not None]
    for one, other in itertools.pairwise(steps):
        graph.after[other].add(one)
    order = stable_order(graph.after_units(units))
    if len(order) < len(units):
        raise _impossible(graph, plan, listed)
    return [units[place] for place in order]


def _together(graph: _Graph, plan: Plan, listed: Sequence[int | None]) -> list[Unit]:
    """Return the steps of the blocks that run beside each other."""
    units = list[Unit]()
    for number, (block, step) in enumerate(zip(plan.blocks, listed, strict=True)):
        if not block.beside:
            units += [] if step is None else [(step,)]
            continue
        before = listed[number - 1]
        if step is None or before is None or step == before:
            raise plan.refusal(block.operators[0], "it cannot run beside the block before it: one of them is no kernel")
        if graph.needed(step) & set(units[-1]):
            raise plan.refusal(block.operators[0], "it cannot run beside a block whose result it needs")
        units[-1] = (*units[-1], step)
    return [unit for unit in units if len(unit) > 1]


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
    """The bindings of `main` as steps."""

    main: Function
    seen: Function  # the same with reshapes that need no kernel
    after: list[set[int]] = field(default_factory=list)  # for each binding those that come before it
    kernels: list[int] = field(default_factory=list)  # the numbers of the bindings that call tensor programs
    operators: list[list[str]] = field(default_factory=list)  # what each of these computes
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
        self._sizes.append(aligned(fixed_bytes(binding.var)) if computed else 0)
        together = is_kernel and str(binding.value.args[0].name_hint).startswith(TOGETHER)
        if together:
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

    def after_units(self, units: Sequence[Unit]) -> list[frozenset[int]]:
        """Return for each unit the numbers of those that come before it."""
        place = {step: number for number, unit in enumerate(units) for step in unit}
        return [
            frozenset(place[before] for step in unit for before in self.after[step]) - {number}
            for number, unit in enumerate(units)
        ]

    def steps(self, units: Sequence[Unit]) -> Steps:
        """Return the units in an order, each as a step."""
        steps = [
            Step(after, frozenset(self._lies_in(item) for step in unit for item in {step, *self._needs[step]}))
            for unit, after in zip(units, self.after_units(units), strict=True)
        ]
        kept = frozenset(map(self._lies_in, self._kept))
        always = sum(aligned(fixed_bytes(param)) for param in self.main.params)
        return Steps(tuple(steps), tuple(self._sizes), kept, always)
