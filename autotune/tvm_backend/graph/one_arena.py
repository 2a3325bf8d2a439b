"""Put the activations of a function into one memory, which is allocated once a call.

TVM plans storages, of which each holds one tensor at a time. Tensors of several sizes fit better into one memory, at
offsets. What a function returns outlives the call, so it has a storage of its own. Until the first kernel writes there,
other tensors may lie in it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from autotune.plans.arena import BufferLife, aligned, place
from autotune.tvm_backend.expressions import fixed_bytes, has_branches, op_name, variables
from autotune.tvm_backend.graph.rewrite import with_blocks
from autotune.tvm_backend.types import Binding, Call, Expr, Function, IRModule, Var

_STORAGE = "relax.vm.alloc_storage"
_TENSOR = "relax.vm.alloc_tensor"
_DROP = "relax.vm.kill_object"
# Calls whose result has the memory of the first operand. The last one copies a tensor that does not begin it.
_SAME_MEMORY = ("vm.builtin.reshape", "runtime.TVMTensorCreateView", "vm.builtin.ensure_zero_offset")
_FOR_EVER = 1 << 60


def place_activations(mod: IRModule) -> IRModule:
    """Put tensors of fixed sizes that only kernels use into one storage for each function.

    The kernels have to be compiled so that they respect the `byte_offset` of their tensors.

    Args:
        mod: A module after all passes that lower it for TVM's virtual machine. Functions with branches stay as they
            are.
    """
    functions = {
        name: _Planner(function).run() if isinstance(function, relax.Function) else function
        for name, function in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@dataclass
class _Use:
    """When a tensor is used: the numbers of the first and the last binding."""

    first: int = _FOR_EVER
    last: int = 0

    def note(self, number: int) -> None:
        self.first = min(self.first, number)
        self.last = max(self.last, number)


class _Planner:
    """The bindings of a function, and the tensors that get other places."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._bindings = list(_without_unread_tuples(function))
        self._values = {binding.var: binding.value for binding in self._bindings}
        self._tensors = {var: _Use() for var, value in self._values.items() if self._is_fixed(value)}
        self._root = {var: var for var in self._tensors}  # by variable: the tensor in whose memory it lies

    def _is_fixed(self, value: Expr) -> bool:
        """Return whether a value is a tensor of a fixed size, at the start of a storage of one."""
        if op_name(value) != _TENSOR:
            return False
        storage: Expr = self._values.get(value.args[0])
        shapes = (value.args[2], storage.args[0]) if op_name(storage) == _STORAGE else (None,)
        return all(map(_has_fixed_sizes, shapes)) and int(value.args[1]) == 0

    def run(self) -> Function:
        """Return the function with its tensors in one storage."""
        if has_branches(self._function) or not self._tensors:
            return self._function
        for number, binding in enumerate(self._bindings):
            self._visit(number, binding)
        for var in variables(self._function.body.body):
            self._use(var, _FOR_EVER)
        return with_blocks(self._function, [relax.BindingBlock(list(self._placed()))])

    def _visit(self, number: int, binding: Binding) -> None:
        value = binding.value
        name = op_name(value)
        if name in (_STORAGE, _TENSOR, _DROP):
            return
        source = _same_memory(value)
        if source in self._root:
            self._root[binding.var] = self._root[source]
        for var in variables(value):
            self._use(var, number)
            if source is None and not _is_kernel(value):  # what else is done with it is not known
                self._use(var, _FOR_EVER)

    def _use(self, var: Var, number: int) -> None:
        if var in self._root:
            self._tensors[self._root[var]].note(number)

    def _placed(self) -> Iterator[Binding]:
        """Yield the bindings with the new storages first, and without the drops of what lies in these."""
        storages, places = self._places()
        yield from storages
        tensors = {var: value for var, value in self._values.items() if op_name(value) == _TENSOR}
        needed = {value.args[0] for var, value in tensors.items() if var not in places}
        gone = {value.args[0] for value in tensors.values()} - needed
        gone.update(var for var, root in self._root.items() if root in places)
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
        used = {var: use for var, use in self._tensors.items() if use.last}
        order = sorted(used, key=lambda var: used[var].last != _FOR_EVER)  # those that outlive the call come first
        own = sum(use.last == _FOR_EVER for use in used.values())
        lives = [BufferLife(fixed_bytes(var), used[var].first, used[var].last) for var in order]
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
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
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


def _has_fixed_sizes(shape: Expr | None) -> bool:
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(size, tirx.IntImm) for size in shape.values)


def _is_kernel(value: Expr) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)
