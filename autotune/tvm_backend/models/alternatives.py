"""Find the kernels that a network may have: prepare it by several plans, each of which decides one thing everywhere.

What a plan decides for one operator says nothing of what it decides for another. So a few plans for the whole network
show all kernels, and an integer program puts the best of them together (`autotune.plans.kernel_selection`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from autotune.errors import BadInput
from autotune.plans.exploration import Alternatives, Kernel, added
from autotune.plans.plan import ALGORITHMS as ALL_ALGORITHMS
from autotune.plans.plan import Block, Plan
from autotune.tvm_backend.expressions import op_name, variables
from autotune.tvm_backend.graph.blocks import ALGORITHM_CHOICES, ALGORITHMS, LAYOUT_CHOICES, LAYOUTS, OPERATORS
from autotune.tvm_backend.graph.in_place import TOGETHER, returned
from autotune.tvm_backend.search.tasks import (
    Program,
    Task,
    argument_bytes,
    as_program,
    extract,
    gflop,
    moving_us,
    task_hash,
    task_of,
)
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.types import Binding, Expr, IRModule, PrimFunc, Target, Var

_TIR = "relax.call_tir"
_FREE = (TOGETHER, "reshape")  # kernels that move nothing, or whose results other kernels write to their place
# A kernel with more work on all threads loses too much on one: 100 us of a core that computes 50e9 operations a second.
_FEW_GFLOP = 5e-3
_FEW_BYTES = 2**20
# What alternatives may save in microseconds: one on fewer threads, and others for each 1e9 operations, a tenth of their
# time. A split saves a tenth of that.
_FEWER_THREADS_US = 2.0
_GFLOP_US = 1000.0
_SPLIT_GFLOP_US = 100.0


@dataclass(frozen=True)
class Explored:
    """What was found.

    Attributes:
        alternatives: The kernels that the network may have.
        tasks: The tasks of those that it has by no decision of a plan, and then of the others, with a weight of 0.
    """

    alternatives: Alternatives
    tasks: list[Task]


def explore(prepare_by: Callable[[Plan], IRModule], given: Plan, target: Target, most: int) -> Explored:
    """Find the kernels that a network may have.

    Args:
        prepare_by: Prepares the network by a plan.
        given: What the user has decided, which stays.
        most: How many tasks there may be besides those of the given plan: those that promise most.

    Raises:
        BadInput: The network cannot be computed as the given plan says.
    """
    base = prepare_by(given)
    programs = extract(base, target)
    kernels = dict.fromkeys(_kernels(base, programs))
    first = len(kernels)
    for blocks in filter(None, _variants(base, given)):
        try:
            prepared = prepare_by(_together(base, given, blocks))
        except BadInput:  # two decisions that exclude each other
            continue
        others = extract(prepared, target)
        programs = {hash: replace(program, weight=0) for hash, program in others.items()} | programs
        kernels |= dict.fromkeys(_kernels(prepared, programs))
    kept = _promising(list(kernels), first, programs, most)
    tasks = {hash: task_of(program, target) for hash, program in programs.items() if hash in kept}
    used = [_assumed(kernel, tasks) for kernel in kernels if kernel.task in tasks or not kernel.task]
    outputs = _Tensors(base).names(returned(base["main"]))
    alternatives = Alternatives(kernels=tuple(used), base=tuple(range(first)), outputs=outputs, given=given)
    return Explored(alternatives, list(tasks.values()))


def _assumed(kernel: Kernel, tasks: Mapping[str, Task]) -> Kernel:
    """Return a kernel with the time that it is assumed to take, if no trials of its task will say it."""
    task = tasks.get(kernel.task)
    if task is None or task.spec.tunable:
        return kernel
    return replace(kernel, assumed_us=_moving_us(task.program, task.spec.name))


def _promising(kernels: Sequence[Kernel], first: int, programs: Mapping[str, Program], most: int) -> set[str]:
    """Return the tasks of the base, and as many of the others as may be, by what they may save.

    Args:
        kernels: All kernels, those of the base first.
        first: How many these are.
        programs: The programs of all tasks, by hash.
        most: How many tasks may be added.
    """
    base = {hash for hash, program in programs.items() if program.weight}
    by_name = {name: kernel for kernel in kernels[:first] for name in kernel.named}
    promises = dict[str, float]()
    for kernel in kernels[first:]:
        if kernel.task and kernel.task not in base:
            promise = _promise(kernel, by_name, gflop(programs[kernel.task].program))
            promises[kernel.task] = promises.get(kernel.task, 0.0) + promise
    return base | set(sorted(promises, key=lambda hash: -promises[hash])[:most])


def _promise(kernel: Kernel, base: Mapping[str, Kernel], work: float) -> float:
    """Return how many microseconds a kernel may save: of a split least, for fused ones write less to memory."""
    if kernel.threads is not None:
        return _FEWER_THREADS_US
    same = kernel.named and base[kernel.named[0]].named == kernel.named
    return work * (_GFLOP_US if same else _SPLIT_GFLOP_US)


def _variants(base: IRModule, given: Plan) -> Iterator[list[Block]]:
    """Yield the decisions of each plan that is tried, beside those that are given."""
    attrs = base["main"].attrs
    chosen = {str(name): str(value) for name, value in dict(attrs.get(ALGORITHMS, {})).items()}
    choices = {str(name): list(map(str, values)) for name, values in dict(attrs.get(ALGORITHM_CHOICES, {})).items()}
    free = [name for name in choices if name not in given.algorithms()]
    for algorithm in ALL_ALGORITHMS:
        yield [
            Block(operators=(name,), algorithm=algorithm)
            for name in free
            if algorithm in choices[name] and algorithm != chosen[name]
        ]
    yield from _layout_variants(attrs, given)
    yield [block for names in _split(attrs, chosen) for block in names]
    limited = given.threads_limits()
    yield [Block(operators=names[:1], threads=1) for names in _small(base) if not limited.keys() & set(names)]


def _layout_variants(attrs: Mapping[str, Any], given: Plan) -> Iterator[list[Block]]:
    """Yield other layouts for all convolutions, and for every other one, so that inputs and results differ."""
    chosen = {str(name): str(value) for name, value in dict(attrs.get(LAYOUTS, {})).items()}
    choices = {str(name): list(map(str, values)) for name, values in dict(attrs.get(LAYOUT_CHOICES, {})).items()}
    free = [name for name in chosen if name not in given.layouts()]
    for layout in sorted({item for values in choices.values() for item in values}):
        for first, step in ((0, 1), (0, 2), (1, 2)):
            yield [
                Block(operators=(name,), layout=layout)
                for name in free[first::step]
                if layout in choices[name] and layout != chosen[name]
            ]


def _split(attrs: Mapping[str, Any], chosen: Mapping[str, str]) -> Iterator[tuple[Block, Block]]:
    """Yield the two blocks that each kernel of a convolution or a product, and what follows it, can be split into."""
    for operators in attrs[OPERATORS]:
        names = [str(name) for name in operators if not added(str(name))]
        place = next((index + 1 for index, name in enumerate(names) if name in chosen), 0)
        if 0 < place < len(names):
            yield Block(operators=tuple(names[:place])), Block(operators=tuple(names[place:]))


def _small(base: IRModule) -> Iterator[tuple[str, ...]]:
    """Yield the operators of each kernel that may be faster on one thread."""
    for binding, operators in _calls(base):
        program = as_program(base[binding.value.args[0]])
        names = tuple(name for name in operators if not added(name))
        if names and gflop(program) <= _FEW_GFLOP and argument_bytes(program) <= _FEW_BYTES:
            yield names


def _together(base: IRModule, given: Plan, blocks: Sequence[Block]) -> Plan:
    """Return a plan of given blocks and others, in the order in which the base runs them.

    A decision about an operator of a given block becomes one of that block; a split of one is left out.
    """
    place = {name: index for index, (_, names) in enumerate(_calls(base)) for name in names}
    of = given.block_of()
    merged = list(given.blocks)
    for block in blocks:
        owner = next((of[name] for name in block.operators if name in of), None)
        if owner is None:
            merged.append(block)
        elif len(block.operators) == 1:
            decided = {key: value for key in _DECISIONS if (value := getattr(block, key))}
            merged[owner] = replace(merged[owner], **decided)
    return replace(given, blocks=tuple(sorted(merged, key=lambda item: place.get(item.operators[0], 0))))


_DECISIONS = ("algorithm", "layout", "threads", "beside")


def _calls(prepared: IRModule) -> Iterator[tuple[Binding, tuple[str, ...]]]:
    """Yield each call of a kernel and its operators."""
    bindings = [binding for block in prepared["main"].body.blocks for binding in block.bindings]
    calls = [binding for binding in bindings if op_name(binding.value) == _TIR]
    for binding, operators in zip(calls, prepared["main"].attrs[OPERATORS], strict=True):
        yield binding, tuple(map(str, operators))


def _kernels(prepared: IRModule, tasks: Container[str]) -> Iterator[Kernel]:
    """Yield the kernels of a prepared network in order."""
    tensors = _Tensors(prepared)
    attrs = prepared["main"].attrs
    algorithms, layouts = (dict(attrs.get(key, {})) for key in (ALGORITHMS, LAYOUTS))
    programs = dict[Expr, tuple[str, float | None]]()
    for binding, operators in _calls(prepared):
        callee = binding.value.args[0]
        if callee not in programs:
            programs[callee] = _tuned(prepared[callee], str(callee.name_hint), tasks)
        task, assumed_us = programs[callee]
        limit = (prepared[callee].attrs or {}).get(MAX_THREADS)
        yield Kernel(
            operators=operators,
            reads=tensors.names(variables(binding.value)),
            writes=tensors.written(binding.var),
            task=task,
            assumed_us=assumed_us,
            algorithm=next((algorithms[name] for name in operators if name in algorithms), None),
            layout=next((layouts[name] for name in operators if name in layouts), None),
            threads=int(limit) if limit else None,
        )


def _tuned(program: PrimFunc, name: str, tasks: Container[str]) -> tuple[str, float | None]:
    """Return the hash of a program's task, and how long it is assumed to take if it has none."""
    module = as_program(program)
    hash = task_hash(module)
    return (hash, None) if hash in tasks else ("", _moving_us(module, name))


def _moving_us(program: IRModule, name: str) -> float:
    """Return how long a program is assumed to take that only moves what it reads."""
    return 0.0 if name.startswith(_FREE) else moving_us(program)


class _Tensors:
    """Names the tensors of a prepared network by their values and shapes.

    A value has the name of the last operator that computes it, apart from those that passes have added: they change
    its layout or its shape.
    """

    def __init__(self, prepared: IRModule) -> None:
        self._values = dict[Var, tuple[str, ...]]()  # of a tuple several; of an input none
        operators = {binding.var: names for binding, names in _calls(prepared)}
        for block in prepared["main"].body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._of(binding, operators.get(binding.var))

    def _of(self, binding: Binding, operators: Sequence[str] | None) -> tuple[str, ...]:
        value = binding.value
        read = [name for var in variables(value) for name in self._values.get(var, ())]
        if operators is None:
            if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
                return self._values.get(value.tuple_value, ())[value.index : value.index + 1]
            return tuple(read)
        own = [name for name in operators if not added(name)]
        if not own:
            return tuple(read[:1]) or (f"input of {operators[-1]}",)
        fields = len(binding.var.ty.fields) if isinstance(binding.var.ty, relax.TupleType) else 1
        return (own[-1],) if fields == 1 else tuple(f"{own[-1]}.{index}" for index in range(fields))

    def names(self, read: Iterable[Var]) -> tuple[str, ...]:
        """Return the names of the tensors in variables, without those that no kernel writes."""
        return tuple(dict.fromkeys(name for var in read for name in self.written(var)))

    def written(self, var: Var) -> tuple[str, ...]:
        """Return the names of the tensors in the result of a kernel."""
        kinds = var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]
        values = self._values.get(var, ())
        return tuple(f"{value}@{_shape(kind)}" for value, kind in zip(values, kinds, strict=False))


def _shape(kind: Any) -> str:
    values = kind.shape.values if isinstance(getattr(kind, "shape", None), relax.ShapeExpr) else ()
    return "x".join(str(getattr(size, "value", size)) for size in values)
