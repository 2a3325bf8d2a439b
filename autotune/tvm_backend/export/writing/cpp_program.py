"""Write the C++ program that runs an exported library with nothing but TVM's runtime.

`autotune.h`, `shapes.h`, the headers that check the machine, `main.cc` and `CMakeLists.txt` are the same for every
model. `model.h` describes the model. `autotune.h` is for programs of the user's own; `main.cc` is one. A language model
has `language.h` and `write.cc`, too, which write tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable

from autotune.options import InputSpec
from autotune.tvm_backend import isa
from autotune.tvm_backend.export.loadable import OpenDimensions
from autotune.tvm_backend.isa.instruction_sets import SETS

FOLDER = "cpp"
# Headers that the program of the C++ source has, too.
_PERMISSIONS = tuple(item.permission.header for item in SETS if item.permission is not None)
CHECKS = ("machine.h", *_PERMISSIONS)
STATIC = ("main.cc", "autotune.h", "shapes.h", *CHECKS, "CMakeLists.txt")
LANGUAGE = ("language.h", "write.cc")  # of a language model
HEADER = "model.h"
_HEADER = """\
// The inputs and outputs of the model {comment}. Made by autotune {version}.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace model {{

struct TensorInfo {{
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
  int64_t rows;  // of the table that it is an index into; 0 if it is none
  std::vector<std::string> dims = {{}};  // the name of each that is open; nothing where none is
}};

// A function of the library, for one set of shapes.
struct Entry {{
  std::string name;
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
}};

inline constexpr char kName[] = {name};
inline constexpr char kLibrary[] = {library};
inline constexpr uint64_t kLibraryBytes = {bytes};
inline constexpr char kInstructions[] = {instructions};  // that the CPU must have, as the kernel names them
inline constexpr int kThreads = {threads};
inline const std::vector<Entry> kEntries = {{{entries}
}};
inline const std::vector<TensorInfo>& kInputs = kEntries[0].inputs;
inline const std::vector<TensorInfo>& kOutputs = kEntries[0].outputs;
// The names of the dimensions that the library counts: it puts out their sizes after the outputs, as int64 scalars.
inline const std::vector<std::string> kCounts = {{{counts}}};
{end}
}}  // namespace model
"""


@dataclass(frozen=True)
class CppFunction:
    """A function of the library.

    Attributes:
        inputs: The inputs, in the order in which it takes them.
        outputs: The outputs, in the order in which it returns them.
        rows: For inputs that are indices, the number of rows of the table, by the name of the input.
    """

    name: str
    inputs: Sequence[InputSpec]
    outputs: Sequence[InputSpec]
    rows: Mapping[str, int] = field(default_factory=dict)
    padding: OpenDimensions = field(default_factory=OpenDimensions)


@dataclass(frozen=True)
class Library:
    """The exported library.

    Attributes:
        file: Its file name.
        bytes: Its size.
        threads: How many threads the model uses unless TVM_NUM_THREADS is set.
        instructions: What the CPU must have, as the kernel names it.
    """

    file: str
    bytes: int
    threads: int
    instructions: Sequence[str] = ()


def sources(
    name: str, library: Library, functions: Sequence[CppFunction], version: str, end: Sequence[int] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of the program: first the header, by which the rest is known as ours.

    Args:
        name: The name of the model, which the program prints.
        library: The exported library.
        functions: The functions of the library, one for each set of shapes.
        version: The version of autotune.
        end: The tokens that end a text of a language model; None for other models.

    Yields:
        The name and the content of each file.
    """
    header = _HEADER.format(
        comment=name,
        version=version,
        name=text_literal(name),
        library=text_literal(library.file),
        bytes=library.bytes,
        instructions=text_literal(" ".join(library.instructions)),
        threads=library.threads,
        entries="".join(map(_entry, functions)),
        counts=", ".join(text_literal(name) for function in functions[:1] for name in function.padding.counts),
        end="" if end is None else f"inline const std::vector<int32_t> kEnd = {{{', '.join(map(str, end))}}};\n",
    )
    yield HEADER, header.encode()
    for static in STATIC if end is None else (*STATIC, *LANGUAGE):
        yield static, (check(static) if static in CHECKS else files(__package__).joinpath("cpp", static)).read_bytes()


def check(name: str) -> Traversable:
    """Return one of the headers that check the machine."""
    return files(isa).joinpath(name) if name in _PERMISSIONS else files(__package__).joinpath("program", name)


def _entry(function: CppFunction) -> str:
    opened = function.padding
    inputs = [_tensor(item, function.rows, opened.inputs.get(item.name, ())) for item in function.inputs]
    output_dims = opened.outputs or ((),) * len(function.outputs)
    outputs = [_tensor(item, {}, dims) for item, dims in zip(function.outputs, output_dims, strict=True)]
    named = f"\n    {{{text_literal(function.name)}"
    return ",\n     ".join([named, *("{" + ",\n      ".join(tensors) + "}" for tensors in (inputs, outputs))]) + "},"


def _tensor(item: InputSpec, rows: Mapping[str, int], dims: Sequence[str]) -> str:
    shape = ", ".join(map(str, item.shape))
    named = f", {{{', '.join(map(text_literal, dims))}}}" if any(dims) else ""
    return f"{{{text_literal(item.name)}, {{{shape}}}, {text_literal(item.dtype)}, {rows.get(item.name, 0)}{named}}}"


def text_literal(value: str) -> str:
    """Return a C++ string literal of the UTF-8 of a text. What is not printable ASCII is written in octal digits."""
    return '"' + "".join(map(_character, value.encode())) + '"'


def _character(byte: int) -> str:
    character = chr(byte)
    if character in '"\\?':  # two question marks may begin a trigraph
        return f"\\{character}"
    return character if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
