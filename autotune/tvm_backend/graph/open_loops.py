"""Loops that end when the data say so: one kernel, which runs the kernels of its body as often as it takes.

A module has the body of each loop as a function of its own, beside `main`. A call of a placeholder stands for the loop
there: for all passes it is one kernel, which has its schedule. The body goes through the same passes, so its kernels
are tasks as others are. When these have schedules, `compose_loops` writes the kernel.

A body takes the number of the step, whether the loop goes on, what the loop carries from step to step, and what it
reads. It returns whether there is a next step, what that is given, and a slice for each result that consists of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain

import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock, SBlockRealize, renew_defs
from tvm.script.ir_builder import tirx as T

from autotune.tvm_backend.expressions import bindings_of, is_tensor_constant, op_name
from autotune.tvm_backend.graph.rewrite import with_blocks
from autotune.tvm_backend.operators.activations import argument, body, kernel
from autotune.tvm_backend.programs import finished, replaced
from autotune.tvm_backend.types import (
    Binding,
    Buffer,
    Call,
    DeviceArray,
    Expr,
    Function,
    IRModule,
    PrimExpr,
    PrimFunc,
    Stmt,
)

_LOOP = "autotune_loop"  # the attribute of a program that stands for a loop
_TIR = "relax.call_tir"

Tensor = tuple[tuple[int, ...], str]  # its shape and its element type


@dataclass(frozen=True)
class OpenLoop:
    """A loop whose number of steps the data decide.

    Attributes:
        body: The name of the function that is its body.
        carried: How many tensors it carries from step to step: they are its first results.
        slices: How many of its results have a slice of each step; the last result is the number of steps.
        has_limit: Whether its first argument is the largest number of steps.
        has_condition: Whether the next one says if there is a first step.
    """

    body: str
    carried: int
    slices: int
    has_limit: bool
    has_condition: bool


def placeholder(loop: OpenLoop, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> PrimFunc:
    """Return the tensor program that stands for a loop.

    Args:
        arguments: The limit and the condition, if it has them, what it carries, and what else its body reads.
        results: What it carries, what it puts out in slices, and the number of steps, an int64 scalar.
    """
    with kernel() as made:
        for number, (shape, dtype) in enumerate((*arguments, *results)):
            argument(f"tensor{number}", shape, dtype)
        with body():
            T.evaluate(0)
    return made().with_attr(_LOOP, list(astuple(loop)))


def with_body_names(program: PrimFunc, names: Mapping[str, str]) -> PrimFunc:
    """Return a tensor program with the new name of its body, if it stands for a loop."""
    loop = _loop_of(program)
    return program if loop is None else program.with_attr(_LOOP, [names.get(loop.body, loop.body), *astuple(loop)[1:]])


def _loop_of(program: PrimFunc) -> OpenLoop | None:
    attrs = program.attrs or {}
    if not isinstance(program, tirx.PrimFunc) or _LOOP not in attrs:
        return None
    name, carried, slices, has_limit, has_condition = attrs[_LOOP]
    return OpenLoop(str(name), int(carried), int(slices), bool(has_limit), bool(has_condition))


def bodies_of(mod: IRModule) -> dict[str, IRModule]:
    """Return the bodies of loops in a module, by name: each as the `main` of a module with all tensor programs."""
    programs = {name: item for name, item in mod.functions.items() if isinstance(item, tirx.PrimFunc)}
    main = tvm.ir.GlobalVar("main")
    return {
        name: tvm.IRModule({**programs, main: mod[name].with_attr("global_symbol", "main")})
        for name in sorted(_names_of_bodies(mod))
    }


def without_bodies(mod: IRModule) -> IRModule:
    """Return a module without the functions that are bodies of loops."""
    names = _names_of_bodies(mod)
    kept = {name: item for name, item in mod.functions.items() if str(name.name_hint) not in names}
    return tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos) if names else mod


def _names_of_bodies(mod: IRModule) -> set[str]:
    return {loop.body for item in mod.functions.values() if (loop := _loop_of(item)) is not None}


def fuse_bodies(mod: IRModule) -> IRModule:
    """Return an imported module with its operators as tensor programs, if it has loops: these call nothing else."""
    return relax.get_pipeline("zero")(mod) if _names_of_bodies(mod) else mod


def compose_loops(mod: IRModule) -> IRModule:
    """Put a kernel in the place of each loop.

    Args:
        mod: A module of tensor programs, before `finish`.

    Raises:
        ValueError: A body does something else than to call tensor programs.
    """
    bodies = _names_of_bodies(mod)
    if not bodies:
        return mod
    composer = _Composer(mod)
    functions = {
        name: composer.function(item)
        for name, item in mod.functions.items()
        if isinstance(item, relax.Function) and str(name.name_hint) not in bodies
    }
    made = without_bodies(composer.builder.get())
    for name, function in functions.items():
        made.update_func(name, function)
    return relax.transform.DeadCodeElimination([str(name.name_hint) for name in functions])(made)


class _Composer:
    """Rewrites functions of a module.

    Attributes:
        builder: Has the kernels of loops, besides the module.
    """

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self.builder = relax.BlockBuilder(mod)

    def function(self, function: Function) -> Function:
        """Return a function that calls the kernels of its loops."""
        blocks = [type(block)([self._binding(item) for item in block.bindings]) for block in function.body.blocks]
        return with_blocks(function, blocks)

    def _binding(self, binding: Binding) -> Binding:
        value = binding.value
        loop = _loop_of(self._mod[value.args[0]]) if op_name(value) == _TIR else None
        if loop is None:
            return binding
        body = self.function(self._mod[loop.body])  # which adds the kernels of the loops in it
        program, constants = _LoopWriter(self.builder.get(), loop, self._mod[value.args[0]]).run(body)
        name = self.builder.add_func(program, loop.body)
        operands = [*value.args[1].fields, *(relax.const(item) for item in constants)]
        call = relax.call_tir(name, operands, out_ty=_result_types(value))
        return relax.VarBinding(binding.var, self.builder.normalize(call))


def _result_types(call: Call) -> list[relax.TensorType]:
    kind = call.ty_args[0]
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


class _LoopWriter:
    """Writes the kernel of a loop. What it carries lies in its results, from the first step on.

    Args:
        mod: A module with the tensor programs that the body calls.
        placeholder: What stands for the loop.
    """

    def __init__(self, mod: IRModule, loop: OpenLoop, placeholder: PrimFunc) -> None:
        self._mod = mod
        self._loop = loop
        tensors = iter(renew_defs(placeholder).params)
        self._limit = next(tensors) if loop.has_limit else None
        self._condition = next(tensors) if loop.has_condition else None
        *rest, self._steps = tensors
        results = loop.carried + loop.slices
        self._first = rest[: loop.carried]
        self._read = rest[loop.carried : len(rest) - results]
        self._state = rest[len(rest) - results : len(rest) - loop.slices]
        self._slices = rest[len(rest) - loop.slices :]
        self._constants: dict[DeviceArray, Buffer] = {}
        self._buffers: list[Buffer] = []  # inside the kernel
        self._values: dict[Expr, list[Buffer]] = {}

    def run(self, body: Function) -> tuple[PrimFunc, list[DeviceArray]]:
        """Return the kernel, whose arguments are those of the placeholder, constants before its results; and these."""
        step, goes_on = (self._buffer(param.ty) for param in body.params[:2])
        given = [step, goes_on, *self._state, *self._read]
        self._values = {param: [tensor] for param, tensor in zip(body.params, given, strict=True)}
        kernels = list(chain.from_iterable(map(self._written, bindings_of(body))))
        following, *made = self._tensors(body.body.body)
        carried = made[: self._loop.carried]
        put_out = [_copy(*pair, _at(step)) for pair in zip(made[self._loop.carried :], self._slices, strict=True)]
        moves = self._moved(list(zip((following, *carried), (goes_on, *self._state), strict=True)))
        advance = _store(step, _at(step) + tirx.IntImm("int64", 1))
        again = _at(goes_on) if self._limit is None else tirx.all(_at(goes_on), _at(step) < _at(self._limit))
        first = tirx.IntImm("bool", 1) if self._condition is None else _at(self._condition)
        begin = [_copy(*pair) for pair in zip(self._first, self._state, strict=True)]
        begin += [_store(step, tirx.IntImm("int64", 0)), _store(goes_on, first)]
        loop = tirx.While(again, tirx.SeqStmt([*kernels, *put_out, *moves, advance]))
        whole = tirx.SeqStmt([*begin, loop, _store(self._steps, _at(step))])
        root = SBlock([], [], [], "root", whole, alloc_buffers=self._buffers)
        control = [item for item in (self._limit, self._condition) if item is not None]
        tensors = [*control, *self._first, *self._read, *self._constants.values(), *self._state, *self._slices]
        tensors.append(self._steps)
        program = tirx.PrimFunc(tensors, SBlockRealize([], tirx.IntImm("bool", 1), root))
        return finished(program).with_attr({"s_tir": True, "tirx.noalias": True}), list(self._constants)

    def _written(self, binding: Binding) -> Iterator[Stmt]:
        """Yield what a binding does, and note where its value is."""
        value = binding.value
        if op_name(value) != _TIR:
            self._values[binding.var] = self._tensors(value)
            return
        results = [self._buffer(kind) for kind in _result_types(value)]
        self._values[binding.var] = results
        operands = [tensor for item in value.args[1].fields for tensor in self._tensors(item)]
        program = renew_defs(self._mod[value.args[0]])
        statement = program.body
        for own, tensor in zip(program.params, (*operands, *results), strict=True):
            statement = replaced(statement, own, tensor)
        self._buffers.extend(statement.block.alloc_buffers)
        yield statement.block.body

    def _tensors(self, value: Expr) -> list[Buffer]:
        """Return where a value is: several tensors for a tuple.

        Raises:
            ValueError: It is none of those that a lowered body has.
        """
        if is_tensor_constant(value):
            shape = tuple(map(int, value.value.shape))
            return [self._constants.setdefault(value.value, tirx.decl_buffer(shape, value.value.dtype, "constant"))]
        if isinstance(value, relax.Tuple):
            return [tensor for item in value.fields for tensor in self._tensors(item)]
        if isinstance(value, relax.TupleGetItem):
            return [self._tensors(value.tuple_value)[value.index]]
        if value not in self._values:
            raise ValueError(f"the body of a loop has {op_name(value) or type(value).__name__}, which is no kernel")
        return self._values[value]

    def _moved(self, pairs: Sequence[tuple[Buffer, Buffer]]) -> list[Stmt]:
        """Return what copies tensors to their places, if they are elsewhere; none is overwritten before it is read."""
        places = [place for _, place in pairs]
        early: list[Stmt] = []
        late: list[Stmt] = []
        for source, place in pairs:
            if source.same_as(place):
                continue
            if any(source.same_as(item) for item in places):
                kept = self._buffer(source.ty)
                early.append(_copy(source, kept))
                source = kept
            late.append(_copy(source, place))
        return early + late

    def _buffer(self, kind: relax.TensorType) -> Buffer:
        """Allocate a tensor inside the kernel."""
        buffer = tirx.decl_buffer(list(map(int, kind.shape)), str(kind.dtype), "tensor")
        self._buffers.append(buffer)
        return buffer


def _at(tensor: Buffer) -> PrimExpr:
    """Return the only element of a tensor."""
    return tensor[(0,) * len(tensor.ty.shape) or ()]


def _store(tensor: Buffer, value: PrimExpr) -> Stmt:
    """Set the only element of a tensor."""
    return tirx.BufferStore(tensor, value, [tirx.IntImm("int64", 0)] * len(tensor.ty.shape))


def _copy(source: Buffer, place: Buffer, *first: PrimExpr) -> Stmt:
    """Return what copies a tensor to another of its shape, or to the slice of one that these indices begin."""
    sizes = list(map(int, source.ty.shape))
    indices = [tirx.Var(f"i{axis}", "int64") for axis in range(len(sizes))]
    statement = tirx.BufferStore(place, source[tuple(indices)], [*first, *indices])
    for index, size in reversed(list(zip(indices, sizes, strict=True))):
        zero, extent = (tirx.IntImm("int64", value) for value in (0, size))
        statement = tirx.For(index, zero, extent, tirx.ForKind.SERIAL, statement)
    return statement
