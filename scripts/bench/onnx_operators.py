#!/usr/bin/env python
"""Say which of ONNX's own single-operator tests import and agree with the results that they come with.

    python scripts/bench/onnx_operators.py                  # all: ten minutes or more
    python scripts/bench/onnx_operators.py lstm qlinear     # those with one of these words in their name
    python scripts/bench/onnx_operators.py --report         # what was found before
    python scripts/bench/onnx_operators.py --report --before build/operators-before.jsonl

A test is a model of one operator, inputs and expected outputs (`onnx.backend.test`). It is imported as `submit` does
it, and compiled as `export` does it without trials. A test that fails is tried again with the inputs that set a shape
or an axis given as constants, as `submit --value` does; it counts apart. Tests of the functions that an operator is
defined by ("_expanded") are left out. Results are kept in a file, and a test that has one is not run again.

The second count leaves out what no network for a CPU has, whether it passes or not: types with fewer than eight bits
and floats of eight, which no CPU computes with; strings; sequences and optional values; operators that train or draw
random numbers; models without inputs; trees; files of images.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from autotune.errors import one_line
from autotune.options import InputSpec
from autotune.tvm_backend.load import load_tvm

LIMIT_S = 60
LONGEST = 160
# Inputs by their names in ONNX's schemas.
PARAMETERS = frozenset(
    {
        "K",
        "axes",
        "axis",
        "block_shape",
        "condition",
        "constant_value",
        "depth",
        "dft_length",
        "ends",
        "frame_length",
        "frame_step",
    }
    | {"image_shape", "k", "max_output_boxes_per_class"}
    | {"output_shape", "pads", "ratio", "repeats", "roi", "scales", "shape", "size", "sizes", "split", "starts"}
    | {"steps", "training_mode", "values"}
)
NARROW = frozenset(
    value
    for name, value in TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2"))
)
NO_NETWORKS = {"Bernoulli": "random numbers", "ImageDecoder": "files of images", "TreeEnsemble": "trees"}
WHOLE = frozenset({"ConstantOfShape", "Range"})  # all of their inputs set a shape


def main() -> None:
    options = parse()
    results = read(options.results)
    if not options.report:
        load_tvm("llvm")
        for case in cases(options.words):
            if case.name not in results:
                results[case.name] = run(case)
                with options.results.open("a") as file:
                    file.write(json.dumps({"name": case.name, **asdict(results[case.name])}) + "\n")
    report(results, read(options.before) if options.before else {}, options.words)


@dataclass(frozen=True)
class Result:
    """Why a test fails, or an empty reason; the inputs that were given as constants for that; what `beyond` says."""

    reason: str
    given: tuple[str, ...] = ()
    beyond: str = ""


def run(case: Any) -> Result:
    """Try a test as it is and, if it fails, with its parameters as constants."""
    reason = isolated(case, ())
    given = parameters(case) if reason else ()
    again = isolated(case, given) if given else reason
    return Result(again, () if again else given, beyond(case.model))


def beyond(model: Any) -> str:
    """What of a model no network for a CPU has; empty if there is nothing."""
    graph = model.graph
    values = [item.type for part in (graph.input, graph.output, graph.value_info) for item in part]
    if any(kind.WhichOneof("value") != "tensor_type" for kind in values):
        return "sequences and optional values"
    types = {kind.tensor_type.elem_type for kind in values}
    if types & NARROW:
        return "numbers of 2, 4 and 8 bits"
    if TensorProto.STRING in types:
        return "strings"
    if not graph.input:
        return "models without inputs"
    kinds = {node.op_type for node in graph.node}
    named = next((what for kind, what in NO_NETWORKS.items() if kind in kinds), "")
    return "operators that train" if any(map(_trains, graph.node)) else named


def _trains(node: Any) -> bool:
    """Whether an operator is an optimiser, or normalises by the batch as in training."""
    modes = [bool(item.i) for item in node.attribute if item.name == "training_mode"]
    drops = node.op_type == "Dropout" and len(node.input) > 2  # its third input says whether it trains
    return node.domain == "ai.onnx.preview.training" or any(modes) or drops


def parameters(case: Any) -> tuple[str, ...]:
    """The inputs that set a shape, an axis or a mode, as the operator's schema calls them."""
    import onnx

    (node,) = case.model.graph.node if len(case.model.graph.node) == 1 else (None,)
    if node is None or not onnx.defs.has(node.op_type, domain=node.domain):
        return ()
    formal = [item.name for item in onnx.defs.get_schema(node.op_type, domain=node.domain).inputs]
    given = zip(node.input, formal, strict=False)
    ranks = {item.name: len(item.type.tensor_type.shape.dim) for item in case.model.graph.input}
    whole = node.op_type in WHOLE
    return tuple(name for name, role in given if (whole or role in PARAMETERS) and ranks.get(name, 2) < 2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="parts of names (default: all tests)")
    parser.add_argument("--results", type=Path, default=Path("build/operators.jsonl"), help="where results are kept")
    parser.add_argument("--before", type=Path, help="results of an earlier version, to compare with")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    return options


def cases(words: list[str]) -> Iterator[Any]:
    """The tests with data, in order of their names."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = collect_testcases(None)
    for case in sorted(every, key=lambda case: str(case.name)):
        if case.data_sets and "_expanded" not in case.name and wanted(case.name, words):
            yield case


def wanted(name: str, words: list[str]) -> bool:
    return not words or any(word in name for word in words)


def isolated(case: Any, given: tuple[str, ...]) -> str:
    """Why a test fails, or nothing where it passes; in a process of its own, as a wrong program may end it.

    Args:
        given: The inputs that are constants.
    """
    near, far = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(case, given, far), daemon=True)
    process.start()
    far.close()
    try:
        reason = str(near.recv()) if near.poll(LIMIT_S) else f"took more than {LIMIT_S} s"
    except EOFError:
        process.join()
        reason = f"the process died ({process.exitcode})"
    process.kill()
    process.join()
    return reason


def child(case: Any, given: tuple[str, ...], answers: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        answers.send(check(case, given))
    except Exception as error:  # importer and compiler raise anything
        answers.send(f"{type(error).__name__}: {one_line(error)[-LONGEST:]}")


def check(case: Any, given: tuple[str, ...]) -> str:
    """Import, compile, run and compare one test."""
    import onnx
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.host_tensors import tensors_of
    from autotune.tvm_backend.export.padding import cut, split_counts
    from autotune.tvm_backend.models.onnx.counted import NO_COUNTS, counted_outputs
    from autotune.tvm_backend.models.onnx.read import read_model

    if any(isinstance(value, (list, dict, tuple)) or value is None for part in case.data_sets[0] for value in part):
        return "not tensors"
    values, expected = ([array(value) for value in part] for part in case.data_sets[0])
    names = [item.name for item in case.model.graph.input]
    arrays = dict(zip(names, values, strict=True))
    constants = {name: arrays.pop(name).astype(float).tolist() for name in given}
    inputs = {name: InputSpec(name, value.shape, "") for name, value in arrays.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(case.model, str(path))
        model = read_model(path, inputs, values=constants)
    machine = relax.VirtualMachine(compiled(model.module), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(value) for value in arrays.values()))
    counted = counted_outputs(model.rewritten) if model.rewritten is not None else NO_COUNTS
    outputs, counts = split_counts([item.numpy() for item in tensors_of(result)], counted.names)
    if counts:
        outputs = [cut(output, dims, counts) for output, dims in zip(outputs, counted.dims, strict=True)]
    for output, truth in zip(outputs, expected, strict=True):
        if output.shape != truth.shape or output.dtype != truth.dtype:
            return f"gives {output.dtype} {output.shape}, not {truth.dtype} {truth.shape}"
        np.testing.assert_allclose(output, truth, rtol=case.rtol, atol=case.atol)
    return ""


def compiled(module: Any) -> Any:
    """Compile an imported model as `export` does when no task has a trial."""
    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks
    from autotune.tvm_backend.target import resolve_target, tvm_target

    target = tvm_target(resolve_target("llvm", threads=1).description)
    prepared = prepare(module, target)
    return compile_tuned(prepared, [task.program for task in extract_tasks(prepared, target)], {}, target)


def array(value: Any) -> Any:
    import onnx

    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def read(path: Path) -> dict[str, Result]:
    """The results of a file by the name of the test."""
    lines = path.read_text().splitlines() if path.exists() else []
    items = map(json.loads, lines)
    return {
        item["name"]: Result(item["reason"], tuple(item.get("given", ())), item.get("beyond", "")) for item in items
    }


def report(results: dict[str, Result], before: dict[str, Result], words: list[str]) -> None:
    """Print the share that passes, what changed, and the reasons of the others, the commonest first."""
    shown = {name: result.reason for name, result in results.items() if wanted(name, words)}
    given = sum(bool(results[name].given) for name in shown)
    print(f"{sum(not reason for reason in shown.values())} of {len(shown)} tests import and agree", end="")
    print(f", {given} of them with inputs that set a shape or an axis given as constants")
    share(shown, results)
    if before:
        both = [name for name in shown if name in before]
        gained = [name for name in both if before[name].reason and not shown[name]]
        lost = [name for name in both if not before[name].reason and shown[name]]
        failed = sum(bool(before[name].reason) for name in both)
        print(f"before: {len(both) - failed} of {len(both)}; of the {failed} that failed {len(gained)} pass now")
        print("\n".join(f"passed before: {name}: {shown[name]}" for name in lost))
    groups = collections.defaultdict(list)
    for name, reason in shown.items():
        if reason:
            groups[reason[:LONGEST]].append(name.removeprefix("test_"))
    for reason, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4}  {reason}\n      {' '.join(names)}")


def share(shown: dict[str, str], results: dict[str, Result]) -> None:
    """Print what the tests are that no network for a CPU has, and which share of the others passes."""
    counts = collections.Counter(results[name].beyond for name in shown)
    passing = sum(not reason for name, reason in shown.items() if not results[name].beyond)
    left_out = ", ".join(f"{count} {beyond}" for beyond, count in counts.most_common() if beyond)
    print(f"{passing} of {counts['']} ({passing / max(counts[''], 1):.1%}) without {left_out or 'any left out'}")


if __name__ == "__main__":
    sys.exit(main())
