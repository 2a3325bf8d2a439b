"""Join tables of bytes to the scheduled products whose results they are looked up for.

A function of one value, as the activation behind a convolution, is a table. A kernel for it alone waits for all threads
and reads what another core has written, which takes longer than to look it up. Products are joined to tables only when
they have their schedules, so that the tasks of a model are the products alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relax

from autotune.tvm_backend.codegen.result_tables import with_table
from autotune.tvm_backend.expressions import bindings_of, is_tensor_constant, op_name, readers, variables
from autotune.tvm_backend.graph.rewrite import with_blocks
from autotune.tvm_backend.graph.run_order import BESIDE
from autotune.tvm_backend.isa.available import byte_table
from autotune.tvm_backend.isa.values import ByteTable
from autotune.tvm_backend.types import Call, Expr, Function, GlobalVar, IRModule, PrimFunc, Target, Var

TABLE = "integer_table"  # how the kernels are called that look bytes up
_TIR = "relax.call_tir"


def join_tables(mod: IRModule, target: Target) -> IRModule:
    """Let products look their results up in tables, where nothing else reads them.

    All calls of a product have a table then, or none: it keeps its name.

    Args:
        mod: A module of scheduled programs, before `finish`.
        target: What the module is compiled for.
    """
    instructions = byte_table(target) if target.kind.name == "llvm" else None
    functions = [item for item in mod.functions.values() if isinstance(item, relax.Function)]
    if instructions is None or any(BESIDE in (item.attrs or {}) for item in functions):  # these are numbered
        return mod
    by_function = {item: _joints(mod, item) for item in functions}
    joined = _joined_programs(mod, by_function, instructions)
    return _with_programs(mod, by_function, joined) if joined else mod


@dataclass(frozen=True)
class _Joint:
    """A call of a product, and the table that alone reads its result."""

    product: Var  # the variable of the product's result
    flat: Var  # the variable of that result as the table reads it, in another shape
    table: Var  # the variable of what was looked up
    numbers: Expr


def _joints(mod: IRModule, function: Function) -> list[_Joint]:
    values = {item.var: item.value for item in bindings_of(function)}
    read = readers(function)
    returned = set(variables(function.body.body))
    joints = []
    for table, value in values.items():
        if op_name(value) != _TIR or not _program(value).name_hint.startswith(TABLE):
            continue
        flat, numbers = value.args[1].fields
        product = flat
        while _is_alone(product, read, returned) and _is_reshape(mod, values.get(product)):
            (product,) = values[product].args[1].fields
        if _is_alone(product, read, returned) and op_name(values.get(product)) == _TIR and is_tensor_constant(numbers):
            joints.append(_Joint(product, flat, table, numbers))
    return joints


def _program(call: Call) -> GlobalVar:
    return call.args[0]


def _is_alone(var: Var, read: Mapping[Var, list[tuple[Var, Expr]]], returned: set[Var]) -> bool:
    """Whether one operator reads a variable."""
    return len(read.get(var, [])) == 1 and var not in returned


def _is_reshape(mod: IRModule, value: Expr) -> bool:
    return op_name(value) == _TIR and bool(relax.analysis.has_reshape_pattern(mod[_program(value)]))


def _joined_programs(
    mod: IRModule, by_function: Mapping[Function, list[_Joint]], instructions: ByteTable
) -> dict[GlobalVar, PrimFunc]:
    """The programs with tables, by the names of the products that have one in all of their calls."""
    joined = {joint.product for joints in by_function.values() for joint in joints}
    calls = [item for function in by_function for item in bindings_of(function) if op_name(item.value) == _TIR]
    apart = {_program(call.value) for call in calls if call.var not in joined}
    together = dict.fromkeys(_program(call.value) for call in calls if call.var in joined)
    programs = {name: with_table(mod[name], instructions) for name in together if name not in apart}
    return {name: program for name, program in programs.items() if program is not None}


def _with_programs(
    mod: IRModule, by_function: Mapping[Function, list[_Joint]], joined: Mapping[GlobalVar, PrimFunc]
) -> IRModule:
    builder = relax.BlockBuilder()
    names = {name: builder.add_func(program, name.name_hint) for name, program in joined.items()}  # have the new type
    functions = {}
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            functions[name] = _with_calls(function, by_function[function], names)
        else:
            functions[names.get(name, name)] = joined.get(name, function)
    made = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    entries = [name.name_hint for name, item in functions.items() if isinstance(item, relax.Function)]
    return relax.transform.DeadCodeElimination(entries)(relax.transform.CanonicalizeBindings()(made))


def _with_calls(function: Function, joints: list[_Joint], names: Mapping[GlobalVar, GlobalVar]) -> Function:
    """Call products with their tables, and give what was looked up the value of what is."""
    values = {item.var: item.value for item in bindings_of(function)}
    new = {}
    for joint in joints:
        call = values[joint.product]
        if _program(call) in names:
            operands = relax.Tuple([*call.args[1].fields, joint.numbers])
            new[joint.product] = relax.Call(call.op, [names[_program(call)], operands], call.attrs, call.ty_args)
            new[joint.table] = joint.flat
    builder = relax.BlockBuilder()
    blocks = []
    for block in function.body.blocks:
        bound = [
            relax.VarBinding(item.var, builder.normalize(new[item.var])) if item.var in new else item
            for item in block.bindings
        ]
        kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
        blocks.append(kind(bound))
    return with_blocks(function, blocks)
