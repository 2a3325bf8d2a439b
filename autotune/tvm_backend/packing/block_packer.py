"""Keep the forms of a network's tensors, plain and packed, while convolutions get a channel-blocked layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax

from autotune.plans.plan import ALGORITHMS as ALL_ALGORITHMS
from autotune.plans.plan import Algorithm, Layout, Plan
from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, op_name, static_shape
from autotune.tvm_backend.graph.blocks import ALGORITHM_CHOICES, ALGORITHMS, LAYOUT_CHOICES, LAYOUTS, operator_of
from autotune.tvm_backend.graph.rewrite import Rewriter
from autotune.tvm_backend.operators.convolution import PLAIN, pack_constant, packable, te_convert
from autotune.tvm_backend.operators.winograd import winograd_refusal
from autotune.tvm_backend.types import Call, Expr, IRModule, Var

_BLOCKS = (8, 16)  # that a choice of layouts has, besides that of the rules: a vector register of AVX2, and of AVX-512


@dataclass(frozen=True)
class Form:
    """The new expression of a binding, and the block that it is packed with; PLAIN if it is not packed."""

    block: int
    expr: Expr


class LayoutPacker(Rewriter):
    """Keeps the plain and packed forms of each old variable, and makes missing forms when they are needed."""

    local = ("_forms",)

    def __init__(
        self,
        mod: IRModule,
        lanes: int,
        winograd: Callable[[Expr], bool] | None,
        registers: tuple[int, int] | None,
        plan: Plan,
    ) -> None:
        super().__init__(mod)
        self.registers = registers
        self.plan = plan
        self.chosen: dict[str, Algorithm] = {}
        self.layouts: dict[str, Layout] = {}
        self._choices: dict[str, list[Algorithm]] = {}
        self._layout_choices: dict[str, list[Layout]] = {}
        self._wanted = plan.algorithms()
        self._wanted_layouts = plan.layouts()
        self._var: Var = None
        self.lanes = lanes
        self.winograd = winograd
        self.values: dict[Var, Expr] = {}
        self._forms: dict[Var, dict[int, Expr]] = {param: {PLAIN: param} for param in self.function.params}

    def run(self) -> IRModule:
        mod = super().run()
        choices = {ALGORITHM_CHOICES: self._choices, LAYOUT_CHOICES: self._layout_choices}
        mod["main"] = mod["main"].with_attr({ALGORITHMS: self.chosen, LAYOUTS: self.layouts, **choices})
        return mod

    def visit(self, var: Var, value: Expr) -> None:
        self.values[var] = value
        self._var = var
        same = self._same(value)
        if same is not None:
            self._forms[var] = self._forms[same]
            return
        form = (self.operator(value) if float_dtype(value) is not None else None) or Form(PLAIN, self.rebuild(value))
        self._forms[var] = {form.block: self.builder.emit(form.expr, var.name)}

    def operator(self, value: Expr) -> Form | None:
        """Return the packed form of an operator's result; None if it cannot be packed."""
        raise NotImplementedError

    def plain(self, var: Var) -> Expr:
        return self.form(var, PLAIN) if var in self._forms else var

    def bind(self, var: Var, expr: Expr) -> None:
        self._forms[var] = {PLAIN: expr}

    def block_of(self, expr: Expr) -> int:
        """Return the block that an old variable is packed with; PLAIN if it is not packed."""
        return next((block for block in self._forms.get(expr, ()) if block != PLAIN), PLAIN)

    def form(self, var: Var, block: int) -> Expr:
        """Return an old variable (N, C, H, W) packed with a block. It is converted if there is no such form yet."""
        forms = self._forms[var]
        if block not in forms:
            source = next(iter(forms))  # the form in which it was computed
            forms[block] = self.builder.emit(self._convert(forms[source], static_shape(var), source, block))
        return forms[block]

    def operand(self, expr: Expr, block: int) -> Expr:
        """Return a packable operand packed."""
        return pack_constant(expr, block) if is_tensor_constant(expr) else self.form(expr, block)

    def operands(self, exprs: list[Expr], value: Expr) -> tuple[int, list[Expr]] | None:
        """Return the block and the packed operands of an elementwise operator.

        Returns None unless one of the operands is packed already and all of them can be packed.
        """
        shape = static_shape(value)
        block = next(filter(None, map(self.block_of, exprs)), PLAIN)
        if block == PLAIN or len(shape) != 4 or not all(packable(item, shape[1]) for item in exprs):
            return None
        return block, [self.operand(item, block) for item in exprs]

    def emit(self, expr: Expr) -> Var:
        """Bind an expression that computes the operator, before others that only change the form of its result."""
        return self.builder.emit(expr, self._var.name)

    def block_out(self, chosen: int, channels: int, exact: bool) -> int:
        """Return the block for the result of a convolution: that of the plan, or that which the rules have chosen.

        Args:
            chosen: The latter.
            channels: The channels of a group.
            exact: Whether a block has to divide them.
        """
        operator = operator_of(self._var)
        wanted = self._wanted_layouts.get(operator)
        if wanted is not None:
            block = int(wanted.removeprefix("NCHW").removesuffix("c"))
            if chosen == PLAIN or not _fits(block, channels, exact):
                raise self.plan.refusal(operator, f"layout = {wanted!r} does not fit {channels} channels of a group")
            chosen = block
        if chosen != PLAIN:
            self.layouts[operator] = f"NCHW{chosen}c"
            fitting = [block for block in sorted({chosen, *_BLOCKS}) if _fits(block, channels, exact)]
            self._layout_choices[operator] = [f"NCHW{block}c" for block in fitting]
        return chosen

    def algorithm(self, call: Call, block_in: int, pixels: int) -> Algorithm:
        """Return how to compute a convolution: as the plan says, or as the rules do.

        Args:
            call: The convolution.
            block_in: The block of its input.
            pixels: What `padded_pixels` returned.
        """
        operator = operator_of(self._var)
        wanted = self._wanted.get(operator)
        allowed = [item for item in ALL_ALGORITHMS if self.winograd is not None or not winograd_tile(item)]
        self._choices[operator] = [item for item in allowed if not _refusal(item, call, block_in, pixels)]
        if wanted is None:
            fast = self.winograd is not None and block_in != PLAIN and self.winograd(call)
            wanted = "winograd-4x4" if fast else "rows" if pixels else "direct"
        elif refusal := _refusal(wanted, call, block_in, pixels):
            raise self.plan.refusal(operator, refusal)
        self.chosen[operator] = wanted
        return wanted

    def _same(self, value: Expr) -> Expr | None:
        """Return the old variable that has the same value; None if there is none."""
        source = value
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            dropout: Expr = self.values.get(value.tuple_value)
            source = dropout.args[0] if op_name(dropout) == "relax.nn.dropout" else None
        elif op_name(value) in ("relax.broadcast_to", "relax.reshape"):
            source = value.args[0] if static_shape(value) == static_shape(value.args[0]) != () else None
        return source if isinstance(source, relax.Var) and source in self._forms else None

    def _convert(self, expr: Expr, shape: tuple[int, ...], source: int, wanted: int) -> Expr:
        batch, channels, height, width = shape
        if height == width == 1 and not (source and channels % source) and not (wanted and channels % wanted):
            flat = (batch, channels // wanted, 1, 1, wanted) if wanted else shape
            return relax.op.reshape(expr, flat)
        hint = "layout_repack" if source and wanted else "layout_pack" if wanted else "layout_unpack"
        return self.builder.call_te(
            lambda data: te_convert(data, channels, source, wanted), expr, primfunc_name_hint=hint
        )


def _fits(block: int, channels: int, exact: bool) -> bool:
    """Return whether so many channels can be in blocks of that size, which have to divide them if `exact`."""
    return block <= channels and not (exact and channels % block)


def _refusal(wanted: Algorithm, call: Call, block_in: int, pixels: int) -> str:
    """Return why a convolution cannot be computed so; empty if it can."""
    if tile := winograd_tile(wanted):
        return winograd_refusal(call, tile) or (
            "winograd is for inputs of at least 8 channels" if block_in == PLAIN else ""
        )
    if wanted in ("packed", "plain"):
        return f"{wanted} is for products"
    if wanted == "rows" and not pixels:
        return "rows is for images with no good tile in the registers; this one has one, or strides, or few channels"
    return ""


def winograd_tile(algorithm: Algorithm) -> int:
    """Return the rows and columns of a tile of Winograd's algorithm; 0 for another one."""
    return {"winograd-2x2": 2, "winograd-4x4": 4}.get(algorithm, 0)
