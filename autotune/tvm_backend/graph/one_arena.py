"""Put the activations of a function into one memory, which is allocated once a call.

TVM plans storages, of which each holds one tensor at a time. Tensors of several sizes fit better into one memory, at
offsets. What a function returns outlives the call, so it has a storage of its own. Until the first kernel writes there,
other tensors may lie in it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator

from tvm import relax, tirx

from autotune.network_plan.arena import FOR_EVER, Lifetimes, aligned, place
from autotune.tvm_backend.expressions import (
    bindings_of,
    called_program,
    fixed_bytes,
    has_branches,
    has_fixed_sizes,
    op_name,
    variables,
)
from autotune.tvm_backend.graph.rewrite import with_blocks, with_functions
from autotune.tvm_backend.types import Binding, Call, Expr, Function, IRModule, Var

_STORAGE = "relax.vm.alloc_storage"
_TENSOR = "relax.vm.alloc_tensor"
_DROP = "relax.vm.kill_object"
# Calls whose result has the memory of the first operand. The last one copies a tensor that does not begin it.
_SAME_MEMORY = ("vm.builtin.reshape", "runtime.TVMTensorCreateView", "vm.builtin.ensure_zero_offset")


def place_activations(mod: IRModule) -> IRModule:
    """Put tensors of fixed sizes that only kernels use into one storage for each function.

    The kernels have to be compiled so that they respect the `byte_offset` of their tensors.

    Args:
        mod: A module after all passes that lower it for TVM's virtual machine. Functions with branches stay as they
            are.
    """
    return with_functions(mod, lambda function: _Planner(function).run())


class _Planner:
    """The bindings of a function, and the tensors that get other places."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._bindings = list(_without_unread_tuples(function))
        self._values = {binding.var: binding.value for binding in self._bindings}
        self._lifetimes = Lifetimes[Var]()
        fixed = [var for var, value in self._values.items() if self._is_fixed(value)]
        for var in fixed:
            self._lifetimes.allocate(var, fixed_bytes(var))
        self._is_empty = not fixed

    def _is_fixed(self, value: Expr) -> bool:
        """Return whether a value is a tensor of a fixed size, at the start of a storage of one."""
        if op_name(value) != _TENSOR:
            return False
        storage: Expr = self._values.get(value.args[0])
        shapes = (value.args[2], storage.args[0]) if op_name(storage) == _STORAGE else (None,)
        return all(map(has_fixed_sizes, shapes)) and int(value.args[1]) == 0

    def run(self) -> Function:
        """Return the function with its tensors in one storage."""
        if has_branches(self._function) or self._is_empty:
            return self._function
        for number, binding in enumerate(self._bindings):
            self._visit(number, binding)
        for var in variables(self._function.body.body):
            self._lifetimes.use(var, FOR_EVER)
        return with_blocks(self._function, [relax.BindingBlock(list(self._placed()))])

    def _visit(self, number: int, binding: Binding) -> None:
        value = binding.value
        name = op_name(value)
        if name in (_STORAGE, _TENSOR, _DROP):
            return
        source = _same_memory(value)
        if source is not None:
            self._lifetimes.share(binding.var, source)
        for var in variables(value):
            self._lifetimes.use(var, number)
            if source is None and not called_program(value):  # what else is done with it is not known
                self._lifetimes.use(var, FOR_EVER)

    def _placed(self) -> Iterator[Binding]:
        """Yield the bindings with the new storages first, and without the drops of what lies in these."""
        storages, places = self._places()
        yield from storages
        tensors = {var: value for var, value in self._values.items() if op_name(value) == _TENSOR}
        needed = {value.args[0] for var, value in tensors.items() if var not in places}
        gone = {value.args[0] for value in tensors.values()} - needed
        gone.update(var for var in self._values if self._lifetimes.owner(var) in places)
        for binding in self._bindings:
            value = binding.value
            if binding.var in places:
                yield _bound(binding.var, relax.Call(value.op, [*places[binding.var], *value.args[2:]]))
            elif op_name(value) == _DROP and value.args[0] in gone:
                continue
            elif op_name(value) != _STORAGE or binding.var not in gone:
                yield binding

    def _places(self) -> tuple[list[Binding], dict[Var, tuple[Var, Expr]]]:
        """Return the storages, and for each tensor its storage and its offset there."""
        used = self._lifetimes.lives()
        order = sorted(used, key=lambda var: used[var].last != FOR_EVER)  # those that outlive the call come first
        own = sum(life.last == FOR_EVER for life in used.values())
        lives = [used[var] for var in order]
        offsets, size = place(lives, own)
        starts = list(itertools.accumulate((aligned(life.bytes) for life in lives[:own]), initial=0))
        sizes = [end - start for start, end in itertools.pairwise((*starts, size))]
        storages = [self._storage(number) for number in sizes if number]
        places = dict[Var, tuple[Var, Expr]]()
        for var, offset in zip(order, offsets, strict=True):
            region = bisect_right(starts, offset) - 1
            places[var] = storages[region].var, tirx.IntImm("int64", offset - starts[region])
        return storages, places

    def _storage(self, size: int) -> Binding:
        """Return a new storage like those that there are."""
        var, old = next((var, value) for var, value in self._values.items() if op_name(value) == _STORAGE)
        return _bound(relax.Var("storage", var.ty), relax.Call(old.op, [relax.ShapeExpr([size]), *old.args[1:]]))


def _without_unread_tuples(function: Function) -> Iterator[Binding]:
    """Yield the bindings but tuples of what a kernel writes, whose elements are read one by one."""
    bindings = bindings_of(function)
    drops = {binding.var: binding.value.args[0] for binding in bindings if op_name(binding.value) == _DROP}
    read = {var for binding in bindings if binding.var not in drops for var in variables(binding.value)}
    read.update(variables(function.body.body))
    unread = {item.var for item in bindings if isinstance(item.value, relax.Tuple) and item.var not in read}
    yield from (item for item in bindings if item.var not in unread and drops.get(item.var) not in unread)


def _bound(var: Var, value: Call) -> Binding:
    return relax.VarBinding(var, relax.BlockBuilder().normalize(value))


def _same_memory(value: Expr) -> Var | None:
    """Return the variable in whose memory a value lies; None if the value has other memory."""
    if isinstance(value, relax.Var):
        return value
    called = str(getattr(getattr(value, "op", None), "global_symbol", ""))
    return value.args[0] if called in _SAME_MEMORY and isinstance(value.args[0], relax.Var) else None
