"""Which operators each kernel computes, by names that they keep through the passes, and what a plan says about it.

`name_operators` names the bindings of `main`, and rewriters keep the names. `fuse` lets TVM fuse them, apart from what
a plan separates, and writes down what became of each. `limit_threads` marks the kernels that run on fewer threads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.transform import FuseOps

from autotune.network_plan.plan import Plan
from autotune.tvm_backend.expressions import bindings_of, leaves, op_name, variables
from autotune.tvm_backend.graph.rewrite import is_rewritable, with_blocks, with_main
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.types import Binding, Expr, Function, IRModule, Var

# The attribute of `main` with the operators of each kernel, in the order of the calls.
OPERATORS = "autotune_operators"
# That with the algorithm of each convolution and product, by the name of the operator.
ALGORITHMS = "autotune_algorithms"
# And the layout of a convolution's result.
LAYOUTS = "autotune_layouts"
_NAME = re.compile(r"(.+_\d+(?::.+_\d+)?)_\d*")  # a variable's; TVM may add a number to the name that it was given
_TIR = "relax.call_tir"


def operator_of(var: Var) -> str:
    """Return the name of the operator whose result a variable is; empty for one that a pass has added."""
    match = _NAME.fullmatch(str(var.name))
    return match[1] if match else ""


def name_operators(mod: IRModule) -> IRModule:
    """Name the bindings of `main` after their operators: `conv2d_1`, `add_1`, `conv2d_2` and so on."""
    if not is_rewritable(mod):
        return mod
    counts = Counter[str]()
    names = dict[Var, str]()
    for binding in bindings_of(mod["main"]):
        if isinstance(binding.value, relax.Var) and binding.value in names:
            names[binding.var] = names[binding.value]
            continue
        kind = _kind(binding.value)
        counts[kind] += 1
        names[binding.var] = f"{kind}_{counts[kind]}"
    return _renamed(mod, names)


def _name_additions(mod: IRModule) -> IRModule:
    """Name what passes have added after the operator that it is for, the next one: `conv2d_1:layout_pack_1`."""
    names = dict[Var, str]()
    taken = set[str]()
    counts = Counter[str]()
    added = list[Binding]()
    for binding in bindings_of(mod["main"]):
        added.append(binding)
        operator = operator_of(binding.var)
        if not operator:
            continue
        for item in added if operator in taken else added[:-1]:
            kind = f"{operator}:{_kind(item.value)}"
            counts[kind] += 1
            names[item.var] = f"{kind}_{counts[kind]}"
        if operator not in taken:
            names[binding.var] = operator
        taken.add(operator)
        added.clear()
    return _renamed(mod, names)


def _kind(value: Expr) -> str:
    """Return what an operator is called, or the tensor program that computes it."""
    name = op_name(value).split(".")[-1]
    if name.startswith("call_tir"):
        name = str(value.args[0].name_hint).rstrip("0123456789")
    return name.strip("_") or "value"


def _renamed(mod: IRModule, names: Mapping[Var, str]) -> IRModule:
    made = {var: type(var)(f"{name}_", var.ty) for var, name in names.items()}
    return with_main(mod, _mapped(mod["main"], made))


def _mapped(node: Expr, variables: Mapping[Var, Expr]) -> Expr:
    return tvm_ffi.structural_map(node, (relax.Var, lambda var: variables.get(var, var)))


def fuse(mod: IRModule, plan: Plan) -> IRModule:
    """Fuse operators as TVM does, but none that are in two blocks of a plan.

    Args:
        mod: A module after AnnotateTIROpPattern.
        plan: The plan. Operators that it does not name are fused as without one.

    Returns:
        The module, whose `main` has the attribute `OPERATORS`.

    Raises:
        BadInput: The plan names an operator that the model does not have, or a block that no kernel can compute.
    """
    if not is_rewritable(mod):
        return FuseOps()(mod)
    named = _name_additions(mod)
    fused = FuseOps()(named)
    if plan.blocks:
        _check_names(plan, [operator_of(binding.var) for binding in bindings_of(named["main"])])
        fused = _without_barriers(FuseOps()(_with_barriers(named, plan.block_of())))
    kernels = list(_kernels(named["main"], fused))
    _check_blocks(plan, kernels)
    attrs = fused["main"].attrs or {}
    _check_convolutions(plan, "algorithm", attrs.get(ALGORITHMS, {}))
    _check_convolutions(plan, "layout", attrs.get(LAYOUTS, {}))
    return with_main(fused, fused["main"].with_attr(OPERATORS, kernels))


def _check_names(plan: Plan, names: Sequence[str]) -> None:
    for block in plan.blocks:
        for name in block.operators:
            if name not in names and ":" not in name:
                kind = name.rpartition("_")[0]
                alike = [item for item in names if item.startswith(f"{kind}_") and ":" not in item]
                has = f"; it has {alike[0]} to {alike[-1]}" if alike else f", and no {kind or name} at all"
                raise plan.refusal(name, f"the model has no operator {name}{has}")


def _with_barriers(mod: IRModule, block_of: Mapping[str, int]) -> IRModule:
    """Put an operator that TVM fuses with none between those of different blocks: one for all readers of a block."""
    main = mod["main"]
    builder = relax.BlockBuilder()
    blocks = []
    made = dict[tuple[Var, int | None], Var]()
    for block in main.body.blocks:
        bindings = list[Binding]()
        for binding in block.bindings:
            barriers = dict[Var, Var]()
            own = block_of.get(operator_of(binding.var))
            for var in dict.fromkeys(variables(binding.value)) if isinstance(block, relax.DataflowBlock) else ():
                if not isinstance(var, relax.DataflowVar) or len({block_of.get(operator_of(var)), own} - {None}) != 2:
                    continue
                if (var, own) not in made:
                    barrier = builder.normalize(relax.op.builtin.stop_lift_params(var))
                    made[var, own] = relax.DataflowVar("barrier", var.ty)
                    bindings.append(relax.VarBinding(made[var, own], barrier))
                barriers[var] = made[var, own]
            value = _mapped(binding.value, barriers) if barriers else binding.value
            bindings.append(relax.VarBinding(binding.var, value) if barriers else binding)
        blocks.append(type(block)(bindings))
    return with_main(mod, with_blocks(main, blocks))


def _without_barriers(mod: IRModule) -> IRModule:
    main = mod["main"]
    barriers = {
        binding.var: binding.value.args[0]
        for binding in bindings_of(main)
        if op_name(binding.value) == "relax.builtin.stop_lift_params"
    }
    blocks = [type(block)([item for item in block.bindings if item.var not in barriers]) for block in main.body.blocks]
    return with_main(mod, _mapped(with_blocks(main, blocks), barriers))


def _kernels(before: Function, fused: IRModule) -> Iterator[list[str]]:
    """Yield the operators of each kernel, given `main` before it was fused."""
    matcher = _Matcher(before)
    for binding in bindings_of(fused["main"]):
        group = _group(fused, binding.value)
        if group is not None:
            yield matcher.fused(binding, group)
            continue
        matcher.single(binding)
        if op_name(binding.value) == _TIR:
            yield [operator_of(binding.var)]


class _Matcher:
    """Finds the operators in fused functions, whose variables lose their names and which equal groups share.

    An operator is known by what it calls with what: constants, and the results of operators that are known.
    """

    def __init__(self, before: Function) -> None:
        self._results: dict[Expr, Any] = {}  # by variable: the operator that computes it, or those of a tuple
        self._operators: dict[Any, list[str]] = {}
        for binding in bindings_of(before):
            self._operators.setdefault(self._key(binding.value), []).append(operator_of(binding.var))
            self._results[binding.var] = operator_of(binding.var)

    def single(self, binding: Binding) -> None:
        """Take note of an operator that was not fused."""
        self._results[binding.var] = operator_of(binding.var)
        if isinstance(binding.value, relax.TupleGetItem):
            whole = self._results.get(binding.value.tuple_value)
            self._results[binding.var] = whole[binding.value.index] if isinstance(whole, tuple) else whole

    def fused(self, binding: Binding, group: Function) -> list[str]:
        """Return the operators of a fused function, and take note of its results."""
        for parameter, argument in zip(group.params, binding.value.args, strict=True):
            self._results[parameter] = self._result(argument)
        operators = []
        for item in bindings_of(group):
            same = self._operators.get(self._key(item.value))
            operators.append(same.pop(0) if same else f"unknown:{_kind(item.value)}_1")
            self._results[item.var] = operators[-1]
        output = group.body.body
        fields = output.fields if isinstance(output, relax.Tuple) else None
        self._results[binding.var] = self._result(output) if fields is None else tuple(map(self._result, fields))
        return operators

    def _key(self, value: Expr) -> Any:
        return _callee(value), *map(self._result, leaves(value))

    def _result(self, leaf: Expr) -> Any:
        if isinstance(leaf, relax.Var):
            return self._results.get(leaf, str(leaf.name))
        return leaf


def _group(mod: IRModule, value: Expr) -> Function | None:
    """Return the fused function that a value calls; None if it calls none."""
    called = getattr(value, "op", None)
    return mod[called] if isinstance(called, tvm.ir.GlobalVar) else None


def _callee(value: Expr) -> str:
    return str(value.args[0].name_hint) if op_name(value) == _TIR else op_name(value)


def _check_blocks(plan: Plan, kernels: Sequence[Sequence[str]]) -> None:
    """Check that each block of a plan is computed by one kernel, and none by the kernel of another block."""
    block_of = plan.block_of()
    kernel_of = {name: number for number, kernel in enumerate(kernels) for name in kernel}
    for kernel in kernels:
        blocks = {block_of[name]: name for name in kernel if name in block_of}
        if len(blocks) > 1:
            (one, other) = list(blocks.values())[:2]
            between = ", ".join(name for name in kernel if name not in block_of)
            raise plan.refusal(one, f"{between} fuses it with {other} of another block; put that into one of them")
    for block in plan.blocks:
        names = [name for name in block.operators if name in kernel_of]
        apart = next((name for name in names if kernel_of[name] != kernel_of[names[0]]), None)
        if apart is not None:
            raise plan.refusal(apart, f"{apart} cannot be fused with {names[0]}: put it into a block of its own")


def _check_convolutions(plan: Plan, key: str, chosen: Mapping[str, str]) -> None:
    """Check that what a plan says of convolutions was said of some.

    Args:
        key: The key of a block.
        chosen: What was chosen for it, by the name of the convolution.
    """
    for block in plan.blocks:
        if getattr(block, key) and not any(name in chosen for name in block.operators):
            reason = "is for convolutions and products with constants on a CPU, and there is none that has a choice"
            raise plan.refusal(block.operators[0], f"{key} = {getattr(block, key)!r} {reason}")


def limit_threads(mod: IRModule, plan: Plan, most: int) -> IRModule:
    """Give the kernels that a plan runs on fewer threads an attribute that says so.

    Args:
        mod: A module after FuseTIR, with the attribute of `fuse`.
        most: How many threads a model runs on; 0 for a device that is no CPU.

    Raises:
        BadInput: The plan wants threads, or kernels beside each other, of a device that has none, or more threads than
            there are.
    """
    wanted = plan.threads_limits()
    for name, threads in wanted.items():
        if threads > most:
            limit = f"the target has {most}" if most else "only kernels for CPUs have threads"
            raise plan.refusal(name, f"threads = {threads}; {limit}")
    beside = [block.operators[0] for block in plan.blocks if block.beside]
    if beside and not most:
        raise plan.refusal(beside[0], "only kernels for CPUs run beside each other")
    limited = {name: threads for name, threads in wanted.items() if threads < most}
    return _Limiter(mod, limited).run() if limited else mod


class _Limiter:
    """Makes a copy of a tensor program for each number of threads that it runs on."""

    def __init__(self, mod: IRModule, limited: Mapping[str, int]) -> None:
        self._mod = mod
        self._limited = limited
        self._builder = relax.BlockBuilder(mod)
        self._copies = dict[tuple[str, int], Expr]()

    def run(self) -> IRModule:
        main = self._mod["main"]
        kernels = iter(main.attrs[OPERATORS])
        blocks = [
            type(block)([self._limit(binding, kernels) for binding in block.bindings]) for block in main.body.blocks
        ]
        return with_main(self._builder.get(), with_blocks(main, blocks))

    def _limit(self, binding: Binding, kernels: Iterator[Sequence[str]]) -> Binding:
        if op_name(binding.value) != _TIR:
            return binding
        threads = [self._limited[str(name)] for name in next(kernels) if name in self._limited]
        return relax.VarBinding(binding.var, self._call(binding.value, min(threads))) if threads else binding

    def _call(self, call: Expr, threads: int) -> Expr:
        program = call.args[0]
        key = str(program.name_hint), threads
        if key not in self._copies:
            limited = self._mod[program].without_attr("global_symbol").with_attr(MAX_THREADS, threads)
            self._copies[key] = self._builder.add_func(limited, f"{program.name_hint}_on_{threads}")
        copy = self._copies[key]
        return self._builder.normalize(relax.Call(call.op, [copy, *call.args[1:]], call.attrs, call.ty_args))
