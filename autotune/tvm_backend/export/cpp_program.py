"""The C++ program that `export` writes beside the library: it loads and runs the model with TVM's runtime alone.

`main.cc` and `CMakeLists.txt` are the same for every model. What differs is in `model.h`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files

from autotune.storage.formats import InputSpec

FOLDER = "cpp"
STATIC = ("main.cc", "CMakeLists.txt")
HEADER = "model.h"
_HEADER = """\
// What the model {comment} takes and gives. Made by autotune {version}.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace model {{

struct TensorInfo {{
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
}};

inline constexpr char kName[] = {name};
inline constexpr char kLibrary[] = {library};
inline constexpr int kThreads = {threads};
inline const std::vector<TensorInfo> kInputs = {{{inputs}}};
inline const std::vector<TensorInfo> kOutputs = {{{outputs}}};

}}  // namespace model
"""


def sources(
    name: str, library: str, threads: int, inputs: Sequence[InputSpec], outputs: Sequence[InputSpec], version: str
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of the program: first the header, by which the rest is known as ours.

    Args:
        name: what the program prints.
        library: the file name of the exported library.
        threads: threads that the model runs on unless TVM_NUM_THREADS says otherwise.
        inputs, outputs: tensors in the order in which the compiled function takes and gives them.
        version: the version of autotune.
    """
    header = _HEADER.format(
        comment=name,
        version=version,
        name=_text(name),
        library=_text(library),
        threads=threads,
        inputs=_tensors(inputs),
        outputs=_tensors(outputs),
    )
    yield HEADER, header.encode()
    for static in STATIC:
        yield static, files(__package__).joinpath("cpp", static).read_bytes()


def _tensors(tensors: Sequence[InputSpec]) -> str:
    rows = (
        f"\n    {{{_text(item.name)}, {{{', '.join(map(str, item.shape))}}}, {_text(item.dtype)}}}," for item in tensors
    )
    return "".join(rows)


def _text(value: str) -> str:
    """A string literal of C++. JSON escapes quotes, backslashes and control characters as C++ does."""
    return json.dumps(value)
