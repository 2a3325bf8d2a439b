"""Keep the large weights of a library outside of TVM's virtual machine, so that they are read where they lie.

The machine's own constants are copied three times while a library is loaded: a process takes four times their size at
its peak, and twice afterwards. These weights are a section of the library instead, which the system maps and processes
share. A function of the library, `autotune_weight`, returns each as a tensor. Whenever the model runs, it is called
once for each of them, which takes less than a tenth of a microsecond.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from autotune.tvm_backend.expressions import bindings_of, is_tensor_constant, values_of
from autotune.tvm_backend.graph.rewrite import with_blocks, with_functions
from autotune.tvm_backend.isa.instruction_sets import architecture_of
from autotune.tvm_backend.isa.values import Architecture
from autotune.tvm_backend.linker import architecture
from autotune.tvm_backend.programs import llvm_object
from autotune.tvm_backend.types import Binding, DeviceArray, Expr, Function, IRModule, Var

LARGE_BYTES = 1 << 16
_ALIGNMENT = 64  # that kernels expect of tensors
_FUNCTION = "autotune_weight"
_CODES = {"i": 0, "u": 1, "f": 2}  # of element types, in DLPack
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class MappedWeights:
    """Weights that a library has in a section of its own, in the order of their numbers."""

    arrays: tuple[Array, ...]

    def objects(self, folder: Path, triple: str = "") -> list[str]:
        """Write the object files that a library with these weights is linked from, and return their paths.

        Args:
            folder: Where to write them.
            triple: What to compile for; empty for this machine.
        """
        if not self.arrays:
            return []
        paths = folder / "weight_bytes.o", folder / "weights.o"
        machine = architecture_of(architecture(triple))
        assert machine is not None
        _write_bytes(paths[0], self.arrays, machine)
        paths[1].write_bytes(llvm_object(_code(self.arrays), triple))
        return [str(path) for path in paths]


def map_weights(lowered: IRModule, triple: str = "") -> tuple[IRModule, MappedWeights]:
    """Take large weights out of a module.

    Args:
        lowered: What `finish` returned.
        triple: What it is compiled for; empty for this machine.

    Returns:
        The module that asks for them, and the weights. It has to be linked with their objects.
    """
    if architecture_of(architecture(triple)) is None:
        return lowered, MappedWeights(())
    numbers: dict[DeviceArray, int] = {}
    arrays: list[Array] = []
    module = with_functions(lowered, lambda function: _asking(function, numbers, arrays))
    return module, MappedWeights(tuple(arrays))


def _asking(function: Function, numbers: dict[DeviceArray, int], arrays: list[Array]) -> Function:
    """A function whose kernels get large weights from the library."""
    bindings = bindings_of(function)
    if not all(isinstance(binding, relax.VarBinding) for binding in bindings):
        return function
    weights: dict[int, Var] = {}
    asking: list[Binding] = []
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            large = [_number(expr, numbers, arrays) for expr in value.args]
            for number, expr in zip(large, value.args, strict=True):
                if number is not None and number not in weights:
                    weights[number] = relax.Var(f"weight{number}", expr.ty)
                    call = relax.Call(relax.ExternFunc(_FUNCTION), [relax.prim_value(number)], ty_args=[expr.ty])
                    asking.append(relax.VarBinding(weights[number], call))
            pairs = zip(value.args, large, strict=True)
            args = [expr if number is None else weights[number] for expr, number in pairs]
            binding = relax.VarBinding(binding.var, relax.Call(value.op, args, value.attrs, value.ty_args))
        asking.append(binding)
    return with_blocks(function, [relax.BindingBlock(asking)])


def _number(expr: Expr, numbers: dict[DeviceArray, int], arrays: list[Array]) -> int | None:
    """The number of a large weight, which it gets when it is seen first; None for any other expression."""
    if not is_tensor_constant(expr):
        return None
    if expr.value not in numbers:
        value = values_of(expr)
        plain = value.dtype.kind in _CODES and str(value.dtype) == str(expr.ty.dtype)  # not two elements in a byte
        if value.nbytes < LARGE_BYTES or not plain:
            return None
        numbers[expr.value] = len(arrays)
        arrays.append(value)
    return numbers[expr.value]


def _offsets(arrays: Sequence[Array]) -> list[int]:
    """Where each weight begins, and where the last one ends."""
    return list(accumulate((-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays), initial=0))


_LAYOUT = "{ ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64, ptr, ptr }"  # DLPack's DLManagedTensor
_CODE = """
@autotune_weight_bytes = external hidden constant [{size} x i8]
@handles = internal global [{count} x ptr] zeroinitializer
{extents}
@tensors = internal global [{count} x {layout}] [{tensors}]

declare i32 @TVMFFITensorFromDLPack(ptr, i32, i32, ptr)
declare i32 @TVMFFIObjectIncRef(ptr)

define i32 @__tvm_ffi_{function}(ptr %self, ptr %arguments, i32 %count, ptr %result) nounwind {{
entry:
  %made = alloca ptr, align 8
  %argument = getelementptr i8, ptr %arguments, i64 8
  %number = load i64, ptr %argument, align 8
  %place = getelementptr [{count} x ptr], ptr @handles, i64 0, i64 %number
  %old = load atomic ptr, ptr %place acquire, align 8
  %is_there = icmp ne ptr %old, null
  br i1 %is_there, label %give, label %make
make:
  %tensor = getelementptr [{count} x {layout}], ptr @tensors, i64 0, i64 %number
  %failed = call i32 @TVMFFITensorFromDLPack(ptr %tensor, i32 {alignment}, i32 1, ptr %made)
  %has_failed = icmp ne i32 %failed, 0
  br i1 %has_failed, label %fail, label %keep
keep:
  %new = load ptr, ptr %made, align 8
  store atomic ptr %new, ptr %place release, align 8
  br label %give
give:
  %handle = phi ptr [ %old, %entry ], [ %new, %keep ]
  %counted = call i32 @TVMFFIObjectIncRef(ptr %handle)
  store i32 70, ptr %result, align 8
  %padding = getelementptr i8, ptr %result, i64 4
  store i32 0, ptr %padding, align 4
  %value = getelementptr i8, ptr %result, i64 8
  store ptr %handle, ptr %value, align 8
  ret i32 0
fail:
  ret i32 %failed
}}
"""  # 70 is the type of a tensor in TVM's interface


def _code(arrays: Sequence[Array]) -> str:
    """The function that returns a weight by its number, in LLVM's language."""
    *places, size = _offsets(arrays)
    return _CODE.format(
        size=size,
        count=len(arrays),
        layout=_LAYOUT,
        extents="\n".join(_extents(number, array) for number, array in enumerate(arrays)),
        tensors=", ".join(_tensor(number, *pair) for number, pair in enumerate(zip(arrays, places, strict=True))),
        function=_FUNCTION,
        alignment=_ALIGNMENT,
    )


def _extents(number: int, array: Array) -> str:
    """The shape and the strides of a weight."""
    strides = [prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
    return "\n".join(
        f"@{name}{number} = internal constant [{array.ndim} x i64] [{', '.join(f'i64 {item}' for item in values)}]"
        for name, values in (("shape", array.shape), ("strides", strides))
    )


def _tensor(number: int, array: Array, offset: int) -> str:
    """A weight as DLPack describes it."""
    data = f"ptr getelementptr (i8, ptr @autotune_weight_bytes, i64 {offset})"
    kind = f"i8 {_CODES[array.dtype.kind]}, i8 {8 * array.dtype.itemsize}, i16 1"
    extents = f"ptr @shape{number}, ptr @strides{number}"
    return f"{_LAYOUT} {{ {data}, i32 1, i32 0, i32 {array.ndim}, {kind}, {extents}, i64 0, ptr null, ptr null }}"


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_NAMES = b"\0autotune_weight_bytes\0"
_SECTION_NAMES = b"\0.lrodata\0.symtab\0.strtab\0.shstrtab\0.note.GNU-stack\0"
_LOADED = 0x2


def _write_bytes(path: Path, arrays: Sequence[Array], machine: Architecture) -> None:
    """Write weights as an object file: a section with one symbol, as the ELF specification lays files out.

    TVM's compiler would take the bytes as text, at three times their size, and linkers that take a binary file as it is
    do not align it.
    """
    *places, size = _offsets(arrays)
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(1, 0x11, 2, 1, 0, size)  # global, an object, hidden
    tails = [symbols, _SYMBOL_NAMES, _SECTION_NAMES]
    starts = list(accumulate(map(len, tails), initial=_ALIGNMENT + size))
    flags = _LOADED | machine.large_data
    rows = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 1, flags, 0, _ALIGNMENT, size, 0, 0, _ALIGNMENT, 0),
        (10, 2, 0, 0, starts[0], len(symbols), 3, 1, 8, _SYMBOL.size),
        (18, 3, 0, 0, starts[1], len(_SYMBOL_NAMES), 0, 0, 1, 0),
        (26, 3, 0, 0, starts[2], len(_SECTION_NAMES), 0, 0, 1, 0),
        (36, 1, 0, 0, starts[3], 0, 0, 0, 1, 0),  # no stack has to be executable
    ]
    identity = b"\x7fELF\x02\x01\x01"  # of 64 bits, the lowest byte first
    table = -(-starts[3] // 8) * 8
    header = _HEADER.pack(identity, 1, machine.elf, 1, 0, 0, table, 0, _HEADER.size, 0, 0, _SECTION.size, len(rows), 4)
    with path.open("wb") as file:
        file.write(header)
        for array, place in zip(arrays, places, strict=True):
            file.seek(_ALIGNMENT + place)
            file.write(np.ascontiguousarray(array).data)
        file.seek(starts[0])
        file.write(b"".join(tails))
        file.seek(table)
        file.write(b"".join(_SECTION.pack(*row) for row in rows))
