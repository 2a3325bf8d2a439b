"""Join the modules of several sets of shapes into one, with a function for each and one copy of what they share."""

from __future__ import annotations

import hashlib

import tvm
from tvm import relax

from autotune.tvm_backend.passes.rewrite import is_tensor_constant
from autotune.tvm_backend.types import Expr, Function, GlobalVar, IRModule, PrimFunc

_SYMBOL = "global_symbol"


class Joiner:
    """Adds modules with a function `main` to one module, in which the functions have names of their own.

    Equal tensor programs and equal constants are in it once, whichever module they come from. A module that is added as
    `main` is the only one, and stays as it is.
    """

    def __init__(self) -> None:
        self._builder = relax.BlockBuilder()
        self._constants: dict[bytes, Expr] = {}
        self._functions: dict[str, Function] = {}
        self._only: IRModule | None = None

    def add(self, name: str, module: IRModule) -> None:
        """Add the functions of a module.

        Args:
            name: What its function `main` is called from now on. Tensor programs have no such names.
            module: The module.
        """
        if name == "main":
            self._only = module
            return
        programs = {
            var.name_hint: self._builder.add_func(_anonymous(program), var.name_hint)
            for var, program in module.functions.items()
            if var.name_hint != "main"
        }
        mover = _Mover(self._builder.get(), programs, self._constants)
        self._functions[name] = mover.visit_expr(module["main"]).with_attr(_SYMBOL, name)

    def module(self) -> IRModule:
        """Return the joined module."""
        if self._only is not None:
            return self._only
        entries = {tvm.ir.GlobalVar(name): function for name, function in self._functions.items()}
        return tvm.IRModule({**dict(self._builder.get().functions.items()), **entries})


def _anonymous(program: PrimFunc) -> PrimFunc:
    """Return a function without the name that it had in its module."""
    return program.without_attr(_SYMBOL) if _SYMBOL in (program.attrs or {}) else program


@relax.expr_functor.mutator
class _Mover(relax.expr_functor.PyExprMutator):  # type: ignore[misc]
    """Rebuilds a function with the tensor programs and the constants of another module."""

    def __init__(self, module: IRModule, programs: dict[str, GlobalVar], constants: dict[bytes, Expr]) -> None:
        super().__init__(module)
        self._programs = programs
        self._constants = constants

    def visit_global_var_(self, var: Expr) -> Expr:
        return self._programs.get(var.name_hint, var)

    def visit_generic_const_(self, constant: Expr) -> Expr:
        if not is_tensor_constant(constant):
            return constant
        value = constant.value.numpy()
        key = hashlib.sha256(f"{constant.value.dtype} {value.shape} ".encode())
        key.update(value.tobytes())
        return self._constants.setdefault(key.digest(), constant)
