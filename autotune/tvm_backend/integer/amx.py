"""Products of tiles by Intel's Advanced Matrix Extensions: 16 pixels by 16 channels, of 64 bytes each, at once.

The elements are bytes, which are summed in 32-bit integers, or bfloat16 in buffers of uint16, summed in float32.

A kernel computes the sums of a tile of an image from all of the reduction. There is one for each geometry; its name
says which, so that a schedule that is read from a log can register it. It is LLVM's own code, which is added to a
program that calls it when the program is lowered.

The system saves the tiles of a process only if it asks for them, which whoever loads a library does, and the first
kernel that runs again. It ends the process with a line where it is refused: its next instruction would without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from autotune.tvm_backend.bfloat16.elements import to_float
from autotune.tvm_backend.integer.intrinsics import accesses
from autotune.tvm_backend.integer.tiles import TileProduct
from autotune.tvm_backend.programs import over_programs, with_llvm_code
from autotune.tvm_backend.types import Buffer, Call, IRModule, Loop, PlainTrace, PrimExpr, PrimFunc, Stmt

_BYTES = 64  # of a row
_WORD = 4  # bytes of the elements that are multiplied and summed at once
_LANES = 16


@dataclass(frozen=True)
class _Elements:
    """The types of an image, of weights and of sums; the instruction; and what makes a factor of an element."""

    data: str
    weight: str
    sums: str
    instruction: str
    factor: Callable[[PrimExpr], PrimExpr]


# By the bytes of an element.
_ELEMENTS = {
    1: _Elements("uint8", "int8", "int32", "tdpbusd", lambda value: T.cast(value, "int32")),
    2: _Elements("uint16", "uint16", "float32", "tdpbf16ps", to_float),
}


def register_named(trace: PlainTrace) -> None:
    """Register the intrinsics that a trace names."""
    for kind, _, attributes, _ in trace[0]:
        if kind == "Tensorize":
            register(str(attributes[0]))


def register(name: str) -> bool:
    """Register the intrinsic of this name, if it is one of these. Return whether it is."""
    product = TileProduct.of(name)
    if product is None or not product.fits():
        return False
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, _described(product), _implemented(product))
    return True


def _described(product: TileProduct) -> PrimFunc:
    """What a kernel computes. A loop of one iteration has no variable of the block, as in what TVM compares it with."""
    extents = (product.rows, product.columns, product.chunks, _LANES)
    reduced = (product.high, product.wide, product.inner, product.lanes // product.word, product.word)
    factor = _ELEMENTS[product.size].factor
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        data, weight, sums = _operands(product)
        with T.sblock("root"):
            accesses(data, weight, sums)
            kinds = [*(T.axis.spatial for _ in extents), *(T.axis.reduce for _ in reduced)]
            axes = list(zip(kinds, (*extents, *reduced), strict=True))
            with T.grid(*(extent for _, extent in axes)) as loops, T.sblock("update"):
                bound = [
                    kind(extent, loop) if extent > 1 else 0 for (kind, extent), loop in zip(axes, loops, strict=True)
                ]
                y, x, chunk, lane, down, right, inner, word, byte = bound
                position = (
                    y * product.step_y + down * product.gap,
                    x * product.step_x + right,
                    inner,
                    word * product.word + byte,
                )
                one = factor(data[position])
                other = factor(weight[chunk, down, right, inner, word, lane, byte])
                T.reads(sums[y, x, chunk, lane], data[position], weight[chunk, down, right, inner, word, lane, byte])
                T.writes(sums[y, x, chunk, lane])
                T.buffer_store(sums, sums[y, x, chunk, lane] + one * other, [y, x, chunk, lane])
    return builder.get()


def _implemented(product: TileProduct) -> PrimFunc:
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        data, weight, sums = _operands(product)
        with T.sblock("root"):
            accesses(data, weight, sums)
            pointers = data.access_ptr("r"), weight.access_ptr("r"), sums.access_ptr("rw")
            T.evaluate(T.call_extern("int32", product.name, *pointers, T.cast(data.strides[0], "int64") * product.size))
    return builder.get()


def _operands(product: TileProduct) -> tuple[Buffer, Buffer, Buffer]:
    """The image, the weights and the sums. Rows of the image lie apart; what is in a row lies together."""
    pixel = product.inner * product.lanes
    words = (product.inner, product.lanes // product.word, _LANES, product.word)
    window = (product.chunks, product.high, product.wide, *words)
    sums = (product.rows, product.columns, product.chunks, _LANES)
    handles = [T.arg(name, T.handle()) for name in "abc"]
    strides = [T.int32(), pixel, product.lanes, 1]
    elements = _ELEMENTS[product.size]
    return (
        T.match_buffer(handles[0], _region(product), elements.data, offset_factor=1, strides=strides),
        T.match_buffer(handles[1], window, elements.weight, offset_factor=1),
        T.match_buffer(handles[2], sums, elements.sums, offset_factor=1),
    )


def _region(product: TileProduct) -> tuple[int, int, int, int]:
    """The part of the image that a tile depends on."""
    down = (product.rows - 1) * product.step_y + (product.high - 1) * product.gap + 1
    right = (product.columns - 1) * product.step_x + product.wide
    return down, right, product.inner, product.lanes


_SUMS = tuple(elements.sums for elements in _ELEMENTS.values())
_EXTERN = "tirx.call_extern"
_BEGIN = "_begin"
_FROM_ZERO = "_from_zero"
_END = "autotune_tiles_end"
_REQUEST = "i64 158, i64 4131, i64 18"  # arch_prctl, ARCH_REQ_XCOMP_PERM, the data of tiles
_REGISTERS = "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}"
_WRITE = "i64 1, i64 2"  # write, to standard error
_WRITE_REGISTERS = "={rax},{rax},{rdi},{rsi},{rdx},~{rcx},~{r11},~{memory}"
_REFUSED = (
    "autotune: the system refuses the tiles of AMX to this process, perhaps because a thread has a small alternate"
    " signal stack (sigaltstack): ask for them (arch_prctl, ARCH_REQ_XCOMP_PERM) before, or set one of 64 KiB"
)
_READY = f"""
@autotune_amx_ready = weak hidden global i32 0, align 4
@autotune_amx_refused = private constant [{len(_REFUSED) + 1} x i8] c"{_REFUSED}\\0A"
declare void @llvm.trap()
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbusd(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
define i32 @{_END}() {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
define internal void @autotune_amx_begin(ptr %configuration) alwaysinline {{
  %done = load atomic i32, ptr @autotune_amx_ready monotonic, align 4
  %first = icmp eq i32 %done, 0
  br i1 %first, label %ask, label %ready
ask:
  %error = call i64 asm sideeffect "syscall", "{_REGISTERS}"({_REQUEST})
  %granted = icmp eq i64 %error, 0
  br i1 %granted, label %remember, label %refused
refused:
  call i64 asm sideeffect "syscall", "{_WRITE_REGISTERS}"({_WRITE}, ptr @autotune_amx_refused, i64 {len(_REFUSED) + 1})
  call void @llvm.trap()
  unreachable
remember:
  store atomic i32 1, ptr @autotune_amx_ready monotonic, align 4
  br label %ready
ready:
  call void @llvm.x86.ldtilecfg(ptr %configuration)
  ret void
}}
"""


def with_tiles(module: IRModule) -> IRModule:
    """Add the code of the kernels that the functions of a module call.

    Args:
        module: What TVM's passes for lowering return.
    """
    return over_programs(module, _with_code)


def _with_code(function: PrimFunc) -> PrimFunc:
    products = _called_in(function.body)
    if not products:
        return function
    body = _configured(_without_zeros(function.body))
    return with_llvm_code(function, body, _READY + "".join(map(_kernel, products)))


def _without_zeros(statement: Stmt) -> Stmt:
    """Let kernels begin with sums of zero, in place of those that a loop has just set to zero."""
    match type(statement).__name__:
        case "SeqStmt":
            items = _begun([_without_zeros(item) for item in statement.seq])
            return tirx.SeqStmt(items) if len(items) > 1 else items[0]
        case "AttrStmt":
            return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, _without_zeros(statement.body))
        case "For":
            return _with_body(statement, _without_zeros(statement.body))
    return statement


def _begun(items: list[Stmt]) -> list[Stmt]:
    """Statements in a row, without those that set to zero what the next one adds up. Bindings may lie between."""
    statements: list[Stmt] = []
    for item in items:
        before = [index for index, earlier in enumerate(statements) if type(earlier).__name__ != "Bind"]
        if (call := _kernel_call(item)) is not None and before and _sets_to_zero(statements[before[-1]]):
            del statements[before[-1]]
            item = _renamed(call)
        statements.append(item)
    return statements


def _kernel_call(statement: Stmt) -> Call | None:
    """The call of a kernel that a statement is; None if it is another statement."""
    call: Call = getattr(statement, "value", None) if type(statement).__name__ == "Evaluate" else None
    if getattr(getattr(call, "op", None), "name", "") != _EXTERN:
        return None
    return call if TileProduct.of(str(getattr(call.args[0], "value", ""))) is not None else None


def _renamed(call: Call) -> Stmt:
    name, *operands = call.args
    return tirx.Evaluate(tirx.call_extern("int32", str(name.value) + _FROM_ZERO, *operands))


def _sets_to_zero(statement: Stmt) -> bool:
    """Whether a statement does nothing but store zeros of sums."""
    match type(statement).__name__:
        case "SeqStmt":
            return all(map(_sets_to_zero, statement.seq))
        case "For":
            return _sets_to_zero(statement.body)
        case "BufferStore":
            value = statement.value.value if isinstance(statement.value, tirx.Broadcast) else statement.value
            return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == 0 and value.ty.dtype in _SUMS
    return False


def _configured(statement: Stmt) -> Stmt:
    """Configure the tiles at the start of each iteration of a parallel loop, and free them at its end."""
    products = _called_in(statement)
    match type(statement).__name__:
        case "SeqStmt" if products:
            return tirx.SeqStmt([_configured(item) for item in statement.seq])
        case "AttrStmt" if products:
            return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, _configured(statement.body))
        case "For" if products and statement.kind == tirx.ForKind.PARALLEL:
            return _with_body(statement, _between(products[0], statement.body))
    return _between(products[0], statement) if products else statement


def _between(product: TileProduct, body: Stmt) -> Stmt:
    """A statement with the tiles of a kernel configured."""
    begin, end = (tirx.Evaluate(tirx.call_extern("int32", name)) for name in (product.name + _BEGIN, _END))
    return tirx.SeqStmt([begin, body, end])


def _with_body(loop: Loop, body: Stmt) -> Stmt:
    head = loop.loop_var, loop.min, loop.extent, loop.kind
    return tirx.For(*head, body, loop.thread_binding, loop.annotations)


@cache
def _kernel(product: TileProduct) -> str:
    """LLVM's code of a kernel: load the sums, go over the window, store the sums."""
    images = product.images
    chunks = product.chunks
    pixel = product.inner * product.lanes * product.size
    instruction = _ELEMENTS[product.size].instruction
    sums = [(image, chunk) for image in range(images) for chunk in range(chunks)]
    weights = [len(sums) + chunk for chunk in range(chunks)]
    data = [len(sums) + chunks + number for number in range(product.operands)]
    zeros = [f"  call void @llvm.x86.tilezero(i8 {number})" for number in range(len(sums))]
    offsets = [(image * product.pixels * chunks + chunk) * _BYTES for image, chunk in sums]
    loads = [_at(f"c{number}", "%c", offset) for number, offset in enumerate(offsets)]
    stores: list[str] = []
    for number in range(len(sums)):
        loads += [f"  call void @llvm.x86.tileloadd64(i8 {number}, ptr %c{number}, i64 {chunks * _BYTES})"]
        stores += [f"  call void @llvm.x86.tilestored64(i8 {number}, ptr %c{number}, i64 {chunks * _BYTES})"]
    body: list[str] = []
    for chunk in range(chunks):
        body += [_at(f"b{chunk}", "%weights", chunk * product.high * product.run * _LANES)]
        body += [f"  call void @llvm.x86.tileloadd64(i8 {weights[chunk]}, ptr %b{chunk}, i64 {_BYTES})"]
    across = images // product.rows
    for image in range(images):
        line, column = divmod(image, across)
        whole = data[:-1] if product.rest else data
        is_rest = product.rest > 0 and image == images - 1
        register = data[-1] if is_rest else whole[image % len(whole)]
        body += [f"  %line{image} = mul i64 %row, {line * product.step_y}"]
        body += [f"  %r{image} = getelementptr i8, ptr %pixels, i64 %line{image}"]
        body += [_at(f"a{image}", f"%r{image}", column * product.pixels * product.step_x * pixel)]
        body += [f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr %a{image}, i64 {product.step_x * pixel})"]
        for chunk in range(chunks):
            tiles = (sums.index((image, chunk)), register, weights[chunk])
            body += [f"  call void @llvm.x86.{instruction}({', '.join(f'i8 {tile}' for tile in tiles)})"]
    geometry = {"high": product.high, "gap": product.gap, "depth": product.depth}
    steps = {"weight_step": product.depth * _LANES, "steps": product.run // product.depth}
    texts = {"body": "\n".join(body), **geometry, **steps}
    ends = [_at(f"c{number}", "%c", offset) for number, offset in enumerate(offsets)] + stores
    return (
        _CONFIGURATION.format(name=product.name, begin=_BEGIN, bytes=_configuration(product, sums, weights, data))
        + _FUNCTION.format(name=product.name, start="\n".join(loads), end="\n".join(stores), **texts)
        + _FUNCTION.format(name=product.name + _FROM_ZERO, start="\n".join(zeros), end="\n".join(ends), **texts)
    )


_CONFIGURATION = """
@{name}_tiles = private constant [64 x i8] [{bytes}], align 64
define i32 @{name}{begin}() {{
  call void @autotune_amx_begin(ptr @{name}_tiles)
  ret i32 0
}}
"""
_FUNCTION = """
define i32 @{name}(ptr %a, ptr %b, ptr %c, i64 %row) {{
entry:
{start}
  %below = mul i64 %row, {gap}
  br label %line
line:
  %y = phi i64 [ 0, %entry ], [ %next_y, %line_end ]
  %first = phi ptr [ %a, %entry ], [ %next_first, %line_end ]
  %first_weights = phi ptr [ %b, %entry ], [ %next_weights, %line_end ]
  br label %step
step:
  %x = phi i64 [ 0, %line ], [ %next_x, %step ]
  %pixels = phi ptr [ %first, %line ], [ %next_pixels, %step ]
  %weights = phi ptr [ %first_weights, %line ], [ %next_weights, %step ]
{body}
  %next_pixels = getelementptr i8, ptr %pixels, i64 {depth}
  %next_weights = getelementptr i8, ptr %weights, i64 {weight_step}
  %next_x = add i64 %x, 1
  %more_x = icmp ult i64 %next_x, {steps}
  br i1 %more_x, label %step, label %line_end
line_end:
  %next_first = getelementptr i8, ptr %first, i64 %below
  %next_y = add i64 %y, 1
  %more_y = icmp ult i64 %next_y, {high}
  br i1 %more_y, label %line, label %end
end:
{end}
  ret i32 0
}}
"""


def _at(name: str, base: str, offset: int) -> str:
    return f"  %{name} = getelementptr i8, ptr {base}, i64 {offset}"


def _configuration(product: TileProduct, sums: list[tuple[int, int]], weights: list[int], data: list[int]) -> str:
    """The 64 bytes that say how many rows and bytes each tile has."""
    rest = product.rest or product.pixels  # of the last tile of pixels
    sizes = {
        number: (rest if image == product.images - 1 else product.pixels, _BYTES)
        for number, (image, _) in enumerate(sums)
    }
    sizes |= {number: (product.depth // _WORD, _BYTES) for number in weights}
    sizes |= {number: (rest if number == data[-1] else product.pixels, product.depth) for number in data}
    configuration = [1] + [0] * 63
    for tile, (rows, size) in sizes.items():
        configuration[16 + 2 * tile] = size
        configuration[48 + tile] = rows
    return ", ".join(f"i8 {item}" for item in configuration)


def _called_in(statement: Stmt) -> list[TileProduct]:
    """The kernels that a statement calls, in the order of their names."""
    names: set[str] = set()

    def look(call: Call) -> None:
        if getattr(call.op, "name", "") == _EXTERN:
            names.add(str(getattr(call.args[0], "value", "")).removesuffix(_FROM_ZERO))

    tvm_ffi.structural_walk(statement, ((relax.Call, look),))
    return [product for product in map(TileProduct.of, sorted(names)) if product is not None]
