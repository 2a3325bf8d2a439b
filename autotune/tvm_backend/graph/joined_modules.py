"""Join modules to one, in which equal tensor programs and equal constants are once."""

from __future__ import annotations

import hashlib

import tvm
from tvm import relax, tirx

from autotune.tvm_backend.expressions import is_tensor_constant
from autotune.tvm_backend.graph.open_loops import with_body_names
from autotune.tvm_backend.types import DeviceArray, Expr, Function, GlobalVar, IRModule, PrimFunc

_SYMBOL = "global_symbol"


class Joiner:
    """Adds modules with a function `main` to one module, in which the functions have names of their own.

    Equal tensor programs and equal constants are in it once, whichever module they come from. A module that is added as
    `main` is the first, and stays as it is.
    """

    def __init__(self) -> None:
        self._builder = relax.BlockBuilder()
        self._constants: dict[DeviceArray | bytes, Expr] = {}
        self._functions: dict[str, Function] = {}
        self._first: IRModule | None = None

    def add(self, name: str, module: IRModule) -> None:
        """Add the functions of a module.

        Args:
            name: What its function `main` is called from now on; those of the bodies of its loops begin with it. Tensor
                programs have no such names.
        """
        if name == "main":
            self._first = module
            self._builder = relax.BlockBuilder(module)
            return
        functions = {var.name_hint: item for var, item in module.functions.items() if isinstance(item, relax.Function)}
        names = {item: name if item == "main" else f"{name}_{item}" for item in functions}
        programs = {
            var.name_hint: self._builder.add_func(_anonymous(with_body_names(item, names)), var.name_hint)
            for var, item in module.functions.items()
            if isinstance(item, tirx.PrimFunc)
        }
        mover = _Mover(self._builder.get(), programs, self._constants)
        for item, function in functions.items():
            self._functions[names[item]] = mover.visit_expr(function).with_attr(_SYMBOL, names[item])

    def module(self) -> IRModule:
        """Return the joined module."""
        if self._first is not None and not self._functions:
            return self._first
        entries = {tvm.ir.GlobalVar(name): function for name, function in self._functions.items()}
        return tvm.IRModule({**dict(self._builder.get().functions.items()), **entries})


def _anonymous(program: PrimFunc) -> PrimFunc:
    """Return a function without the name that it had in its module."""
    return program.without_attr(_SYMBOL) if _SYMBOL in (program.attrs or {}) else program


@relax.expr_functor.mutator
class _Mover(relax.expr_functor.PyExprMutator):  # type: ignore[misc]
    """Rebuilds a function with the tensor programs and the constants of another module."""

    def __init__(
        self, module: IRModule, programs: dict[str, GlobalVar], constants: dict[DeviceArray | bytes, Expr]
    ) -> None:
        super().__init__(module)
        self._programs = programs
        self._constants = constants

    def visit_global_var_(self, var: Expr) -> Expr:
        return self._programs.get(var.name_hint, var)

    def visit_generic_const_(self, constant: Expr) -> Expr:
        if not is_tensor_constant(constant):
            return constant
        if constant.value not in self._constants:  # what the same array is need not be compared
            self._constants[constant.value] = self._constants.setdefault(_digest(constant.value), constant)
        return self._constants[constant.value]


def _digest(array: DeviceArray) -> bytes:
    value = array.numpy()
    digest = hashlib.sha256(f"{array.dtype} {value.shape} ".encode())
    digest.update(value.tobytes())
    return digest.digest()
