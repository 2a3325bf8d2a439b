"""Let a call of a model make few tensor objects, each of which costs more than a tiny kernel.

Memory is planned once, but at every call TVM's virtual machine makes an object for each tensor in it. Tensors of one
shape at one place can be one object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tvm
import tvm_ffi
from tvm import relax

from autotune.tvm_backend.expressions import op_name
from autotune.tvm_backend.graph.rewrite import with_blocks
from autotune.tvm_backend.types import Binding, Function, IRModule, Var

_TENSOR = "relax.vm.alloc_tensor"
_DROP = "relax.vm.kill_object"


def share_objects(mod: IRModule) -> IRModule:
    """Let tensors of one shape and type at one place be one object.

    Args:
        mod: What `finish` returned. Functions with branches stay as they are.
    """
    functions = {
        name: _sharing(function) if isinstance(function, relax.Function) else function
        for name, function in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _sharing(function: Function) -> Function:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If) for binding in bindings):
        return function
    same = _repeated(bindings)
    bindings = [binding for binding in bindings if binding.var not in same]
    shared = with_blocks(function, [relax.BindingBlock(list(_without_drops(bindings, same)))])
    return tvm_ffi.structural_map(shared, (tvm.ir.Var, lambda var: same.get(var, var))) if same else shared


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
