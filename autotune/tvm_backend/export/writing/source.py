"""Write the folder with the C++ source of a network."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np

from autotune.errors import WorkerError
from autotune.network_plan.arena import ALIGNMENT, aligned
from autotune.options import InputSpec
from autotune.storage.trees import remove_tree
from autotune.tvm_backend.export.writing.cpp_program import CHECKS, check
from autotune.tvm_backend.export.writing.files import (
    KERNELS,
    NETWORK,
    POOL,
    SOURCE_HEADER,
    SOURCE_STATIC,
    SUMS,
    WEIGHTS,
    checksums,
)
from autotune.tvm_backend.export.writing.network_text import model_header, network_source
from autotune.tvm_backend.export.writing.planned_network import Network, read_network, refused
from autotune.tvm_backend.threads import pool
from autotune.tvm_backend.types import Executable, IRModule

# What shim.cpp and pool.c define.
SHIM = frozenset(
    {
        "TVMFFIErrorSetRaisedFromCStr",
        "TVMFFIErrorSetRaisedFromCStrParts",
        "__TVMBackendAllocWorkspace",
        "__TVMBackendFreeWorkspace",
        "__TVMBackendParallelLaunch",
    }
)
_BY_LINKER = frozenset({"_GLOBAL_OFFSET_TABLE_"})
_RUNTIME = "__TVM"  # begins the names of pointers that TVM's runtime would set
_HEADER = np.dtype([("", "V40"), ("sections", "<u8"), ("", "V12"), ("count", "<u2"), ("", "V2")])
_SECTION = np.dtype(
    [("name", "<u4"), ("type", "<u4"), ("", "V16"), ("offset", "<u8"), ("size", "<u8"), ("link", "<u4"), ("", "V20")]
)
_SYMBOL = np.dtype([("name", "<u4"), ("", "V2"), ("section", "<u2"), ("", "V16")])
_SYMBOL_TABLE = 2


@dataclass(frozen=True)
class Described:
    """What the program is told of the model besides the network.

    Attributes:
        inputs: The inputs, in the order of the model.
        outputs: The names of the outputs, in the order of the model.
        threads: How many threads a block uses.
        version: The version of autotune.
        rows: For inputs that are indices, the number of rows of the table, by the name of the input.
        instructions: What the CPU must have, as the kernel names it.
    """

    name: str
    inputs: Sequence[InputSpec]
    outputs: Sequence[str]
    threads: int
    version: str
    rows: Mapping[str, int] = field(default_factory=dict)
    instructions: Sequence[str] = ()


def write_source(folder: Path, lowered: IRModule, executable: Executable, model: Described) -> None:
    """Write the source of a network.

    Args:
        folder: The folder, which is made. What an earlier compilation wrote there is replaced.
        lowered: The module that the executable was built from.
        executable: The executable, whose kernels are written as an object file.
        model: What else the program is told.

    Raises:
        ModelError: The network has something that cannot be written. The message names it.
    """
    network = read_network(lowered, ALIGNMENT)
    if folder.exists():
        remove_tree(folder)
    folder.mkdir()
    _write_kernels(folder / KERNELS, executable)
    weights = _write_weights(folder / WEIGHTS, network)
    shapes = {item.name: item for item in (*network.inputs, *network.buffers, *network.views, *network.weights)}
    tensors = [shapes[name] for name in network.outputs]
    outputs = [InputSpec(name, item.shape, item.dtype) for name, item in zip(model.outputs, tensors, strict=True)]
    names = {
        item.name: f"the input {json.dumps(spec.name)}" for item, spec in zip(network.inputs, model.inputs, strict=True)
    }
    names |= {item.name: f"the output {json.dumps(name)}" for item, name in zip(tensors, model.outputs, strict=True)}
    texts = {
        SOURCE_HEADER: model_header(model.name, model.inputs, outputs, model.rows, model.instructions, model.version),
        NETWORK: network_source(model.name, network, names, model.threads, weights, model.version),
        **{name: _static(name) for name in SOURCE_STATIC},
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / SUMS).write_text(checksums(texts))


def _static(name: str) -> str:
    """Return the content of a file that is the same for every network."""
    if name in CHECKS:
        return check(name).read_text()
    folder = files(pool.__package__) if name == POOL else files(__package__).joinpath("program")
    return folder.joinpath(name).read_text()


def _write_kernels(path: Path, executable: Executable) -> None:
    libraries = list(executable.mod.imports)
    if len(libraries) != 1:
        raise refused("it has no kernels" if not libraries else "its kernels are in several libraries")
    libraries[0].write_to_file(str(path))
    if lacking := missing_functions(path):
        raise refused(f"its kernels call {', '.join(lacking)}")


def _write_weights(path: Path, network: Network) -> tuple[int, str]:
    """Write the weights, after an id by which the program knows them; return the size of the file and the id."""
    content = hashlib.sha256()
    with path.open("wb") as file:
        file.write(bytes(ALIGNMENT))
        for value in network.values:
            data = value.tobytes().ljust(aligned(value.nbytes), b"\0")
            content.update(data)
            file.write(data)
        size = file.tell()
        id = f"autotune weights {content.hexdigest()[:32]}"
        file.seek(0)
        file.write(id.encode())
    return size, id


def missing_functions(path: Path) -> list[str]:
    """Return the functions that an object file needs and that neither the shim nor the C library has.

    Raises:
        WorkerError: It is not an ELF object file for 64 bits.
    """
    c_library = ctypes.CDLL("libm.so.6")  # which finds the symbols of libc, too
    needed = sorted(set(_needed(path.read_bytes())) - SHIM - _BY_LINKER)
    return [name for name in needed if not hasattr(c_library, name)]


def _needed(data: bytes) -> Iterator[str]:
    """Yield the symbols that are not defined in an object, and those that TVM's runtime would set."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise WorkerError("the compiler wrote something else than an object file for 64 bits")
    header = np.frombuffer(data, _HEADER, 1)[0]
    sections = np.frombuffer(data, _SECTION, int(header["count"]), int(header["sections"]))
    for section in sections[sections["type"] == _SYMBOL_TABLE]:
        names = int(sections[section["link"]]["offset"])
        symbols = np.frombuffer(data, _SYMBOL, int(section["size"]) // _SYMBOL.itemsize, int(section["offset"]))
        for symbol in symbols[1:]:
            start = names + int(symbol["name"])
            name = data[start : data.index(b"\0", start)].decode()
            if name and (symbol["section"] == 0 or name.startswith(_RUNTIME)):
                yield name
