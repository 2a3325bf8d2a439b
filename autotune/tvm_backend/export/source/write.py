"""Write the folder with the C++ source of a network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from autotune.storage.formats import InputSpec
from autotune.tvm_backend.export.source.arena import ALIGNMENT, aligned
from autotune.tvm_backend.export.source.folder import HEADER, KERNELS, NETWORK, STATIC, SUMS, WEIGHTS, checksums
from autotune.tvm_backend.export.source.network import Network, read_network, refused
from autotune.tvm_backend.export.source.object_file import missing
from autotune.tvm_backend.export.source.program_text import model_header, network_source


@dataclass(frozen=True)
class Described:
    """What the program is told of the model besides the network.

    Attributes:
        name: The name of the model.
        inputs: The inputs, in the order of the model.
        outputs: The names of the outputs, in the order of the model.
        threads: How many threads a block uses.
        version: The version of autotune.
        rows: For inputs that are indices, the number of rows of the table, by the name of the input.
    """

    name: str
    inputs: Sequence[InputSpec]
    outputs: Sequence[str]
    threads: int
    version: str
    rows: Mapping[str, int] = field(default_factory=dict)


def write_source(folder: Path, lowered: Any, executable: Any, model: Described) -> None:
    """Write the source of a network.

    Args:
        folder: The folder, which is made.
        lowered: The module that the executable was built from.
        executable: The executable, whose kernels are written as an object file.
        model: What else the program is told.

    Raises:
        ModelError: The network has something that cannot be written. The message names it.
    """
    network = read_network(lowered, ALIGNMENT)
    folder.mkdir()
    _write_kernels(folder / KERNELS, executable)
    weights = _write_weights(folder / WEIGHTS, network)
    shapes = {item.name: item for item in (*network.inputs, *network.buffers, *network.views, *network.weights)}
    found = [shapes[name] for name in network.outputs]
    outputs = [InputSpec(name, item.shape, item.dtype) for name, item in zip(model.outputs, found, strict=True)]
    names = {
        item.name: f"the input {json.dumps(spec.name)}" for item, spec in zip(network.inputs, model.inputs, strict=True)
    }
    names |= {item.name: f"the output {json.dumps(name)}" for item, name in zip(found, model.outputs, strict=True)}
    texts = {
        HEADER: model_header(model.name, model.inputs, outputs, model.rows, model.version),
        NETWORK: network_source(model.name, network, names, model.threads, weights, model.version),
        **{name: files(__package__).joinpath("program", name).read_text() for name in STATIC},
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / SUMS).write_text(checksums(texts))


def _write_kernels(path: Path, executable: Any) -> None:
    libraries = list(executable.mod.imports)
    if len(libraries) != 1:
        raise refused("it has no kernels" if not libraries else "its kernels are in several libraries")
    libraries[0].write_to_file(str(path))
    if lacking := missing(path):
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
