"""Let kernels write into a concatenation and read slices where they lie, so that neither is copied.

A concatenation whose parts lie one after the other in memory needs no kernel, if the kernels that compute the parts
write them where the concatenation lies. A slice that lies in one piece needs none either. `place_parts` finds both
before operators are lowered. `share_buffers` gives them their places when the module calls kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import tvm
import tvm_ffi
from tvm import relax, tirx, topi

from autotune.tvm_backend.expressions import bindings_of, called_program, op_name, static_shape, variables
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean, with_blocks
from autotune.tvm_backend.programs import OPAQUE, runtime_functions
from autotune.tvm_backend.types import Buffer, Call, Expr, Function, GlobalVar, IRModule, PrimFunc, Var

TOGETHER = "parts_together"  # how the tensor programs of such concatenations are called
_IMAGE = (4, 5)  # the dimensions of an image, plain or packed; other tensors are small, and fused with what follows
_VIEW = "relax.memory.view"
_SAME_ELEMENTS = ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten")


def place_parts(mod: IRModule) -> IRModule:
    """Rewrite `main`: slices in one piece become views, and concatenations that need no copy become calls of their own.

    Args:
        mod: A module before LegalizeOps.

    Returns:
        The rewritten module, or `mod` if `main` cannot be rewritten.
    """
    return rewrite_and_clean(mod, _Placer)


class _Placer(PlainRewriter):
    """Remembers which variables are views, parts of a concatenation, or returned by the function."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._returned = set(returned(self.function))
        self._views: set[Var] = set()
        self._parts: set[Var] = set()

    def visit(self, var: Var, value: Expr) -> None:
        self._var = var
        super().visit(var, value)

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) == "relax.concat" and isinstance(value.args[0], relax.Tuple):
            return self._concatenation(value)
        if op_name(value) == "relax.strided_slice" and self._var not in self._returned:
            return self._view(value)
        return None

    def _view(self, value: Expr) -> Expr | None:
        """Return a slice as a view of the tensor that it is cut from; None if it does not lie in one piece."""
        piece = _piece(value)
        if piece is None:
            return None
        self._views.add(self._var)
        data, axis, first = piece
        return _part(self.leaf(data), value, first * prod(static_shape(data)[axis + 1 :]))

    def _concatenation(self, value: Expr) -> Expr | None:
        """Return a concatenation as a call of a tensor program; None if its parts have to be copied."""
        shape = static_shape(value)
        axis = int(value.attrs.axis or 0) % max(len(shape), 1)
        if len(shape) not in _IMAGE or prod(shape[:axis]) != 1:
            return None
        pieces = list(self._whole(value.args[0].fields, axis))
        if len(pieces) == 1:
            return self.leaf(pieces[0])
        if len(set(pieces)) < len(pieces) or not all(map(self._is_computed, pieces)):
            return None
        self._parts.update(pieces)
        return self.builder.call_te(
            topi.concatenate,
            [self.plain(part) for part in pieces],
            axis,
            primfunc_name_hint=TOGETHER,
            primfunc_attrs={"op_pattern": OPAQUE},
        )

    def _whole(self, pieces: Sequence[Expr], axis: int) -> Iterator[Expr]:
        """Yield the parts; instead of slices that follow each other and make up a whole tensor, that tensor."""
        first = 0
        while first < len(pieces):
            source, count = self._source(pieces[first:], axis)
            yield source
            first += count

    def _source(self, pieces: Sequence[Expr], axis: int) -> tuple[Expr, int]:
        """Return what the first parts are slices of and how many these are; the first part itself if there is none."""
        source = None
        past = 0
        for count, part in enumerate(pieces, 1):
            cut = _piece(self.values[part]) if part in self._views else None
            if cut is None or cut[1:] != (axis, past) or source not in (None, cut[0]):
                break
            source = cut[0]
            past = past + static_shape(part)[axis]
            if past == static_shape(source)[axis]:
                return source, count
        return pieces[0], 1

    def _is_computed(self, part: Expr) -> bool:
        """Return whether a kernel computes a part, which can then write it anywhere."""
        if not isinstance(part, relax.DataflowVar) or part in self._returned | self._parts | self._views:
            return False
        value: Expr = self.values.get(part)
        return isinstance(value, relax.Call) and bool(static_shape(part)) and not _same_elements(value)


def _piece(value: Expr) -> tuple[Expr, int, int] | None:
    """Return the variable, the axis and the first index of a slice that lies in one piece; None for any other value."""
    if op_name(value) != "relax.strided_slice" or not isinstance(value.args[0], relax.Var):
        return None
    data, axes, begins, _, *strides = value.args
    shape = static_shape(data)
    cut = static_shape(value)
    if len(shape) not in _IMAGE or not cut or any(int(item.value) != 1 for numbers in strides for item in numbers):
        return None
    cuts = [axis for axis in range(len(shape)) if cut[axis] < shape[axis]]
    if len(cuts) != 1 or prod(shape[: cuts[0]]) != 1:
        return None
    pairs = zip(axes, begins, strict=True)
    first = next(int(begin.value) for axis, begin in pairs if int(axis.value) % len(shape) == cuts[0])
    return data, cuts[0], max(first + shape[cuts[0]], 0) if first < 0 else first


def _part(whole: Expr, like: Expr, offset: int) -> Expr:
    """Return a part of a tensor with the shape and type of another one. The offset is in elements."""
    dtype = str(like.ty.dtype)
    size = tvm.DataType(dtype).itemsize
    return relax.op.memory.view(whole, static_shape(like), dtype, relax.prim_value(offset * size))


def returned(function: Function) -> Iterator[Var]:
    """Yield the variables that a function returns, in a tuple, as a part of one or under another name."""
    values = {binding.var: binding.value for binding in bindings_of(function)}
    left = list(variables(function.body.body))
    while left:
        var = left.pop()
        yield var
        if var in values and not isinstance(values[var], relax.Call):
            left += variables(values[var])


def share_buffers(mod: IRModule) -> IRModule:
    """Let the kernels of parts write where their concatenation lies, and drop the kernels of such concatenations.

    Args:
        mod: A module after CallTIRRewrite, with the calls that `place_parts` made.

    Returns:
        The module. Kernels that get a part of a tensor take its offset from the tensor that they are called with.
    """
    programs: dict[GlobalVar, set[int]] = {}
    for name, function in list(mod.functions.items()):
        if isinstance(function, relax.Function):
            calls = _Calls(function, mod)
            mod.update_func(name, calls.shared())
            calls.add_offsets(programs)
    for name, positions in programs.items():
        mod.update_func(name, _with_offsets(mod[name], positions))
    return mod


class _Calls:
    """The bindings of a function that allocates tensors and calls kernels on them."""

    def __init__(self, function: Function, mod: IRModule) -> None:
        self._function = function
        self._mod = mod
        bindings = bindings_of(function)
        self._bindings = {item.var: item for item in bindings}
        self._order = [item.var for item in bindings]
        self._fixed = {self._root(var) for var in self._used_elsewhere()}

    def _value(self, var: Var) -> Expr:
        binding = self._bindings.get(var)
        return None if binding is None else binding.value

    def _bind(self, var: Var, value: Expr) -> None:
        self._bindings[var] = relax.VarBinding(var, relax.BlockBuilder().normalize(value))

    def _root(self, var: Var) -> Var:
        """Return the variable that the memory of a tensor was allocated as."""
        while isinstance(value := self._value(var), relax.Var) or _same_elements(value):
            var = value if isinstance(value, relax.Var) else value.args[0]
        return var

    def _used_elsewhere(self) -> Iterator[Var]:
        """Yield the variables that the function returns, or hands to what may not know offsets."""
        yield from variables(self._function.body.body)
        for value in map(self._value, self._order):
            same = isinstance(value, relax.Var) or _same_elements(value) or op_name(value) == _VIEW
            yield from () if same or self._is_kernel(value) else variables(value)

    def shared(self) -> Function:
        """Return the function without the kernels of concatenations."""
        for var in list(self._order):
            value = self._value(var)
            if called_program(value).startswith(TOGETHER) and self._share(value):
                self._order.remove(var)
            elif isinstance(value, relax.Call) and not isinstance(value.op, tvm.ir.Op) and not self._is_kernel(value):
                self._copy_parts(var, value)
        return with_blocks(self._function, [relax.BindingBlock([self._bindings[var] for var in self._order])])

    def _is_kernel(self, value: Expr) -> bool:
        """Return whether a value calls a tensor program that is compiled. Functions of the runtime ignore offsets."""
        return bool(called_program(value)) and not runtime_functions(self._mod[value.op])

    def _share(self, call: Call) -> bool:
        """Make the parts of a concatenation views of its result, which is then allocated before them."""
        *pieces, whole = map(self._root, call.args)
        allocated = all(op_name(self._value(var)) == "relax.builtin.alloc_tensor" for var in (*pieces, whole))
        if not allocated or self._fixed.intersection(pieces):
            return False
        self._order.remove(whole)
        self._order.insert(min(map(self._order.index, pieces)), whole)
        offset = 0
        for part in pieces:
            self._bind(part, _part(whole, part, offset))
            offset += prod(static_shape(part))
        return True

    def _copy_parts(self, var: Var, call: Call) -> None:
        """Call a function of the runtime with copies of parts."""
        if any(op_name(self._value(self._root(item))) == _VIEW for item in call.args if isinstance(item, relax.Var)):
            args = [self._copy(var, item) if isinstance(item, relax.Var) else item for item in call.args]
            self._bind(var, relax.Call(call.op, args, call.attrs, call.ty_args))

    def _copy(self, before: Var, tensor: Var) -> Var:
        if op_name(self._value(self._root(tensor))) != _VIEW:
            return tensor
        copied = relax.Var("copied", tensor.ty)
        self._bind(copied, relax.op.memory.ensure_zero_offset(tensor))
        self._order.insert(self._order.index(before), copied)
        return copied

    def add_offsets(self, programs: dict[GlobalVar, set[int]]) -> None:
        """Add to `programs`, by their names, the positions of the parameters that may be part of a tensor."""
        for value in map(self._value, self._order):
            if called_program(value):
                roots = enumerate(map(self._root, value.args))
                positions = {position for position, root in roots if op_name(self._value(root)) == _VIEW}
                programs.setdefault(value.op, set()).update(positions)


def _same_elements(value: Expr) -> bool:
    """Return whether a value has the elements of its first operand, in the same memory."""
    called = str(getattr(getattr(value, "op", None), "global_symbol", ""))
    return op_name(value) in _SAME_ELEMENTS or called == "vm.builtin.reshape"


def _with_offsets(program: PrimFunc, positions: set[int]) -> PrimFunc:
    """Return a tensor program that finds the first element of some of its tensors at the offset that they have."""
    moved = {program.params[position]: _with_offset(program.params[position]) for position in positions}
    return tvm_ffi.structural_map(program, (tvm.ir.Var, lambda var: moved.get(var, var))) if moved else program


def _with_offset(tensor: Buffer) -> Buffer:
    kind = tensor.ty
    offset = tirx.Var(f"{tensor.name}_offset", "int64")
    alignment = int(kind.data_alignment)
    return tirx.decl_buffer(
        list(kind.shape), str(kind.dtype), tensor.name, elem_offset=offset, data_alignment=alignment, offset_factor=1
    )
