"""Inline assembly of PTX as C++: each `asm` statement becomes calls to what `ptx.h` and `block.h` have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_STATEMENT = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'"([^"]*)"\s*\(')
_GUARD = re.compile(r"@(!?)(%?\w+)\s+")
_TYPES = {"f16": "__half", "bf16": "__nv_bfloat16", "tf32": "float", "s8": "signed char", "u8": "unsigned char"}
_SUMS = {"f32": "float", "f16": "__half", "s32": "int"}


class UnknownPtx(Exception):
    """Assembly that is not known here."""


@dataclass(frozen=True)
class _Call:
    """An instruction: its opcode in parts, and its operands, each a list of C++ expressions."""

    parts: tuple[str, ...]
    operands: tuple[tuple[str, ...], ...]


def translate(source: str) -> str:
    """Return CUDA C without its inline assembly.

    Raises:
        UnknownPtx: An instruction is not known.
    """
    done: list[str] = []
    position = 0
    while match := _STATEMENT.search(source, position):
        end = _closing(source, match.end() - 1)
        done += [source[position : match.start()], _statement(source[match.end() : end])]
        position = source.index(";", end) + 1
    return "".join([*done, source[position:]])


def _closing(text: str, opening: int) -> int:
    """The index of the bracket that closes the one at `opening`; brackets in strings do not count."""
    depth = 0
    index = opening
    while True:
        if string := _STRING.match(text, index):
            index = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if not depth:
            return index
        index += 1


def _statement(inside: str) -> str:
    template, rest = _template(inside)
    operands = _operands(rest)
    text = re.sub(r"//[^\n]*|[{}]\s*$|^\s*\{", "", template.strip())
    return "{ " + " ".join(_instruction(line.strip(), operands) for line in text.split(";") if line.strip()) + " }"


def _template(inside: str) -> tuple[str, str]:
    """The assembly, whose strings are joined, and what follows it."""
    template = ""
    index = 0
    while match := re.compile(r"\s*" + _STRING.pattern).match(inside, index):
        template += match[1].replace("\\n", "\n").replace("\\t", " ")
        index = match.end()
    return template, inside[index:]


def _operands(text: str) -> list[str]:
    operands = []
    index = 0
    while match := _OPERAND.search(text, index):
        end = _closing(text, match.end() - 1)
        operands.append(f"({text[match.end() : end]})")
        index = end + 1
    return operands


def _instruction(text: str, values: Sequence[str]) -> str:
    guard = ""
    if match := _GUARD.match(text):
        guard = f"if ({match[1]}{match[2].lstrip('%')}) "
        text = text[match.end() :]
    opcode, _, rest = text.partition(" ")
    if opcode == ".reg":
        kind, _, names = rest.strip().partition(" ")
        return f"{'bool' if kind == '.pred' else 'unsigned'} {names.replace('%', '')};"
    if "{" in opcode:  # TVM leaves no space
        opcode, brace, more = text.partition("{")
        rest = brace + more
    call = _Call(tuple(opcode.strip().replace("::", ".").split(".")), _arguments(rest, values))
    return f"{guard}{_meaning(call)};"


def _arguments(text: str, values: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Operands are separated by commas; those in braces are several registers."""
    groups = re.findall(r"\{([^}]*)\}|\[([^\]]*)\]|([^,{}\[\]\s]+)", text)
    return tuple(tuple(_value(word, values) for word in "".join(group).split(",")) for group in groups)


def _value(word: str, values: Sequence[str]) -> str:
    word = word.strip()
    if match := re.fullmatch(r"%(\d+)", word):
        return values[int(match[1])]
    return word.replace("%", "")


def _meaning(call: _Call) -> str:
    for prefix, make in _INSTRUCTIONS.items():
        if call.parts[: len(prefix)] == prefix:
            return make(call)
    raise UnknownPtx(f"an instruction of PTX that is not known here: {'.'.join(call.parts)}")


def _copy_async(call: _Call) -> str:
    (to,), (source,), (size,), *used = call.operands
    taken = used[0][0] if used else size
    return f"cuda_on_cpu::copy_async(cuda_on_cpu::shared_pointer{to}, {source}, {taken}, {size} - {taken})"


def _matrices(call: _Call) -> str:
    registers, (address,) = call.operands
    transposed = "true" if "trans" in call.parts else "false"
    return f"cuda_on_cpu::load_matrices<{transposed}>({address}, {', '.join(registers)})"


def _product(call: _Call) -> str:
    shape = next((part for part in call.parts if re.fullmatch(r"m16n8k\d+", part)), "")
    result, a, b, c = call.parts[-4:]
    if not shape or (a, b) != (a, a) or a not in _TYPES or result not in _SUMS or c != result:
        raise UnknownPtx(f"a shape or a type of mma that is not known here: {'.'.join(call.parts)}")
    into, *rest = call.operands
    pointers = "{" + ", ".join(f"&{name}" for name in into) + "}"
    types = f"{shape.partition('k')[2]}, {_TYPES[a]}, {_SUMS[result]}"
    groups = ", ".join("{" + ", ".join(group) + "}" for group in rest)
    return f"cuda_on_cpu::multiply_matrices<{types}>({pointers}, {groups})"


def _store(call: _Call) -> str:
    (address,), words = call.operands
    return f"cuda_on_cpu::store_shared({address}, {', '.join(words)})"


def _load(call: _Call) -> str:
    (into,), (address,) = call.operands
    return f"cuda_on_cpu::load_shared({address}, {into})"


def _round(call: _Call) -> str:
    (into,), (value,) = call.operands
    return f"{into} = cuda_on_cpu::to_bits(nvcuda::wmma::__float_to_tf32({value}))"


def _equal(call: _Call) -> str:
    (into,), (left,), (right,) = call.operands
    return f"{into} = {left} == {right}"


# What instructions mean, by the parts that their names begin with.
_INSTRUCTIONS: dict[tuple[str, ...], Callable[[_Call], str]] = {
    ("cp", "async", "commit_group"): lambda call: "cuda_on_cpu::commit_group()",
    ("cp", "async", "wait_all"): lambda call: "cuda_on_cpu::commit_group(), cuda_on_cpu::wait_group(0)",
    ("cp", "async", "wait_group"): lambda call: f"cuda_on_cpu::wait_group({call.operands[0][0]})",
    ("cp", "async", "ca", "shared", "global"): _copy_async,
    ("cp", "async", "cg", "shared", "global"): _copy_async,
    ("ldmatrix", "sync", "aligned"): _matrices,
    ("mma", "sync", "aligned"): _product,
    ("setp", "eq"): _equal,
    ("setp", "ne"): lambda call: _equal(call).replace("==", "!="),
    ("st", "shared"): _store,
    ("ld", "shared", "b32"): _load,
    ("cvt", "rna", "tf32", "f32"): _round,
}
