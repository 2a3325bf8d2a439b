"""Let a call of a model make few tensor objects, each of which costs more than a tiny kernel.

Memory is planned once, but at every call TVM's virtual machine makes an object for each tensor in it, and for each that
is a tensor in another shape or a part of one. Those of one shape at one place can be one object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx

from autotune.tvm_backend.expressions import bindings_of, op_name
from autotune.tvm_backend.graph.rewrite import with_blocks, with_functions
from autotune.tvm_backend.types import Binding, Call, Expr, Function, IRModule, Var

_TENSOR = "relax.vm.alloc_tensor"
_DROP = "relax.vm.kill_object"
_RESHAPE = "vm.builtin.reshape"
_VIEW = "runtime.TVMTensorCreateView"


def share_objects(mod: IRModule) -> IRModule:
    """Let tensors of one shape and type at one place be one object.

    Args:
        mod: What `finish` returned. Functions with branches stay as they are.
    """
    return with_functions(mod, _sharing)


def _sharing(function: Function) -> Function:
    bindings = bindings_of(function)
    if any(isinstance(binding.value, relax.If) for binding in bindings):
        return function
    bindings = list(_placed(bindings))
    same = _repeated(bindings)
    bindings = [binding for binding in bindings if binding.var not in same]
    shared = with_blocks(function, [relax.BindingBlock(list(_without_drops(bindings, same)))])
    return tvm_ffi.structural_map(shared, (tvm.ir.Var, lambda var: same.get(var, var))) if same else shared


def _placed(bindings: Sequence[Binding]) -> Iterator[Binding]:
    """Yield the bindings, with tensors at their places instead of parts of others, or others in another shape."""
    dropped = {binding.value.args[0] for binding in bindings if op_name(binding.value) == _DROP}
    tensors = dict[Var, Call]()
    for binding in bindings:
        tensor = _tensor(binding.value, tensors)
        if tensor is None or tensor.args[0] in dropped:
            yield binding
        else:
            tensors[binding.var] = relax.BlockBuilder().normalize(tensor)
            yield relax.VarBinding(binding.var, tensors[binding.var])


def _tensor(value: Expr, tensors: Mapping[Var, Call]) -> Call | None:
    """Return the tensor at a place that a value is, given those of variables; None for any other value."""
    called = str(getattr(getattr(value, "op", None), "global_symbol", ""))
    if op_name(value) == _TENSOR:
        return value
    if called not in (_RESHAPE, _VIEW) or value.args[0] not in tensors:
        return None
    whole = tensors[value.args[0]]
    storage, offset, _, dtype, *device = whole.args
    if called == _VIEW:
        dtype = value.args[2]
        offset = tirx.IntImm("int64", int(offset) + int(value.args[3]))
    return relax.Call(whole.op, [storage, offset, value.args[1], dtype, *device])


def _repeated(bindings: Sequence[Binding]) -> dict[Var, Var]:
    """Return the first tensor of its shape and type at its place, for each further one."""
    first = dict[tuple[object, ...], Var]()
    same = dict[Var, Var]()
    for binding in bindings:
        if op_name(binding.value) == _TENSOR:
            storage, *others = binding.value.args
            place = storage, *map(str, others)
            if place in first:
                same[binding.var] = first[place]
            else:
                first[place] = binding.var
    return same


def _without_drops(bindings: Sequence[Binding], same: Mapping[Var, Var]) -> Iterator[Binding]:
    """Yield the bindings but those that drop a tensor that is used again."""
    drops = {binding.var: binding.value.args[0] for binding in bindings if op_name(binding.value) == _DROP}
    last = {same.get(dropped, dropped): var for var, dropped in drops.items()}
    for binding in bindings:
        dropped = drops.get(binding.var)
        if dropped is None or binding.var.same_as(last[same.get(dropped, dropped)]):
            yield binding
