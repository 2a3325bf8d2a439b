"""Join the calls of kernels that a plan runs beside each other: one call of one program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import tvm
from tvm import relax

from autotune.tvm_backend.expressions import bindings_of, called_program, op_name
from autotune.tvm_backend.graph.rewrite import with_blocks
from autotune.tvm_backend.graph.run_order import BESIDE
from autotune.tvm_backend.search.tasks import as_program, gflop, moving_us
from autotune.tvm_backend.threads.concurrent_loops import joined
from autotune.tvm_backend.types import Binding, Expr, Function, IRModule, PrimFunc, Target

_TIR = "relax.call_tir"
_NO_KERNELS = ("relax.builtin.alloc_tensor", "relax.memory.view", "relax.reshape")
_GFLOP_US = 50e-6  # what a core is assumed to compute in a microsecond

# Of each function the kernels that run beside each other: the name of the program, and which of its calls it is.
Groups = Mapping[str, Sequence[Sequence[tuple[str, int]]]]


def groups_beside(mod: IRModule) -> Groups:
    """Return what runs beside each other by the attribute `BESIDE`, in terms that lowering keeps.

    Args:
        mod: A module whose functions still have all their calls of kernels.
    """
    groups = dict[str, list[list[tuple[str, int]]]]()
    for name, function in mod.functions.items():
        numbers = (function.attrs or {}).get(BESIDE) if isinstance(function, relax.Function) else None
        if numbers:
            values = [binding.value for binding in bindings_of(function)]
            calls = _numbered(str(value.args[0].name_hint) for value in values if op_name(value) == _TIR)
            groups[str(name.name_hint)] = [[calls[int(number)] for number in group] for group in numbers]
    return groups


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return names, each with how often it came before."""
    counts = Counter[str]()
    numbered = list[tuple[str, int]]()
    for name in names:
        numbered.append((name, counts[name]))
        counts[name] += 1
    return numbered


def joined_name(kernels: Iterable[str]) -> str:
    """Return the name of a kernel that some others are joined to."""
    return "_beside_".join(kernels)


def join_kernels(mod: IRModule, groups: Groups, target: Target) -> IRModule:
    """Replace the calls of kernels that run beside each other by calls of joined ones.

    Args:
        mod: A module after `share_buffers`.
        groups: What `groups_beside` returned.
        target: What the module is compiled for.
    """
    if not groups:
        return mod
    joiner = _Joiner(mod, int(target.attrs.get("num-cores") or 1))
    functions = {
        name: joiner.run(function, groups[str(name.name_hint)])
        for name, function in mod.functions.items()
        if groups.get(str(name.name_hint))
    }
    made = joiner.builder.get()
    for name, function in functions.items():
        made.update_func(name, function)
    return _without_unused(made)


def _without_unused(mod: IRModule) -> IRModule:
    """Return a module without tensor programs that nothing calls."""
    used = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
    called = {called_program(binding.value) for function in used for binding in bindings_of(function)}
    kept = {
        name: function
        for name, function in mod.functions.items()
        if isinstance(function, relax.Function) or name.name_hint in called
    }
    return tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)


class _Joiner:
    """Joins calls of kernels in functions of a module.

    Attributes:
        builder: Has the joined programs, besides the module.
    """

    def __init__(self, mod: IRModule, threads: int) -> None:
        self._mod = mod
        self._threads = threads
        self.builder = relax.BlockBuilder(mod)

    def run(self, function: Function, groups: Sequence[Sequence[tuple[str, int]]]) -> Function:
        """Return a function with joined calls, each in the place of the last one of its group."""
        bindings = bindings_of(function)
        kernels = [number for number, binding in enumerate(bindings) if called_program(binding.value)]
        names = _numbered(called_program(bindings[number].value) for number in kernels)
        place = dict(zip(names, kernels, strict=True))
        calls = dict[int, Binding]()
        gone = set[int]()
        for group in groups:
            numbers = sorted(place[call] for call in group if call in place)  # a reshape is no call any more
            if len(numbers) > 1 and _nothing_between(bindings, numbers):
                joined_call = self._joined([bindings[number].value for number in numbers])
                calls[numbers[-1]] = relax.VarBinding(bindings[numbers[-1]].var, joined_call)
                gone.update(numbers[:-1])
        left = [calls.get(number, binding) for number, binding in enumerate(bindings) if number not in gone]
        return with_blocks(function, [relax.BindingBlock(left)])

    def _joined(self, calls: Sequence[Expr]) -> Expr:
        programs = [self._mod[call.op] for call in calls]
        names = list(map(called_program, calls))
        program = joined(names, programs, list(map(_work_us, programs)), self._threads)
        name = self.builder.add_func(program, joined_name(names))
        arguments = [argument for call in calls for argument in call.args]
        return relax.Call(name, arguments, None, calls[0].ty_args)


def _nothing_between(bindings: Sequence[Binding], numbers: Sequence[int]) -> bool:
    """Return whether only memory is given out between calls, and results get other names."""
    between = (bindings[number].value for number in range(numbers[0], numbers[-1]) if number not in numbers)
    return all(isinstance(value, relax.Var) or op_name(value) in _NO_KERNELS for value in between)


def _work_us(program: PrimFunc) -> float:
    module = as_program(program)
    return max(gflop(module) / _GFLOP_US, moving_us(module))
