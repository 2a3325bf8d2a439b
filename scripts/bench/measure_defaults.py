#!/usr/bin/env python
"""How fast are kernels without a trial, beside ONNX Runtime, for each operator at sizes that networks have?

    python scripts/bench/measure_defaults.py                      # all, some six minutes on two CPUs
    python scripts/bench/measure_defaults.py Softmax "ReduceMax"  # those whose names begin so

An operator is imported as `submit` does, and compiled as `export` does where no task has a trial. It is timed beside
ONNX Runtime in one process, by turns, with the same inputs and as many threads. A call that takes more than ten seconds
is ended. The machine need not be idle: what is looked for is a factor of five.

The columns: our time and ONNX Runtime's, both the least of the turns, and their ratio. The worst comes first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from real_operators import Operator, operators

from autotune.errors import one_line
from autotune.options import InputSpec
from autotune.tvm_backend.load import load_tvm

LIMIT_S = 120.0  # of compilation and all turns
TURNS = 7
TURN_S = 0.02
MIN_RUNS = 3
LONGEST = 90
MOST = 5.0
MAX_ERROR = 1e-3


@dataclass(frozen=True)
class Times:
    """The times of an operator in microseconds; why there are none."""

    ours_us: float = 0.0
    theirs_us: float = 0.0
    reason: str = ""

    @property
    def ratio(self) -> float:
        """How many times ONNX Runtime's time; infinite where the operator could not be timed."""
        return float("inf") if self.reason else self.ours_us / self.theirs_us


def main() -> None:
    """Time the operators, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names (default: all)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs")
    options = parser.parse_args()
    load_tvm("llvm")
    chosen = [item for item in operators() if not options.names or item.name.startswith(tuple(options.names))]
    rows = {}
    for operator in chosen:
        rows[operator.name] = isolated(operator, options.threads)
        print(operator.name, rows[operator.name], file=sys.stderr, flush=True)
    print(table(rows))


def table(rows: dict[str, Times]) -> str:
    """The table in Markdown, the worst first."""
    lines = ["| operator | untuned us | ONNX Runtime us | ratio |", "|---|---|---|---|"]
    for name, times in sorted(rows.items(), key=lambda item: -item[1].ratio):
        if times.reason:
            lines.append(f"| {name} | {times.reason} | | |")
        else:
            lines.append(f"| {name} | {times.ours_us:.0f} | {times.theirs_us:.0f} | {times.ratio:.2f} |")
    timed = [times.ratio for times in rows.values() if not times.reason]
    above = sum(ratio > MOST for ratio in timed)
    return "\n".join([*lines, "", f"{above} of {len(timed)} above {MOST:g}, {len(rows) - len(timed)} not timed"])


def isolated(operator: Operator, threads: int) -> Times:
    """Time an operator in a process of its own, which a slow kernel cannot keep."""
    near, far = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(operator, threads, far), daemon=True)
    process.start()
    far.close()
    try:
        times = near.recv() if near.poll(LIMIT_S) else Times(reason=f"took more than {LIMIT_S:g} s")
    except EOFError:
        process.join()
        times = Times(reason=f"the process died ({process.exitcode})")
    process.kill()
    process.join()
    return times


def child(operator: Operator, threads: int, answers: Connection) -> None:
    """Time an operator, and send its times."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.environ["TVM_NUM_THREADS"] = str(threads)
    try:
        answers.send(timed(operator, threads))
    except Exception as error:  # importer, compiler and runtimes raise anything
        answers.send(Times(reason=f"{type(error).__name__}: {one_line(error)[-LONGEST:]}"))


def timed(operator: Operator, threads: int) -> Times:
    """Time an operator by turns."""
    model = operator.model()
    arrays = operator.arrays()
    ours = library(model, arrays, threads)
    theirs = session(model, arrays, threads)
    check(ours(), theirs())
    turns = [(once(ours), once(theirs)) for _ in range(TURNS)]
    return Times(*(1e6 * min(times) for times in zip(*turns, strict=True)))


def check(ours: Any, theirs: list[Any]) -> None:
    """Check that both compute the same.

    Raises:
        ValueError: They do not.
    """
    from autotune.tvm_backend.export.host_tensors import host_arrays
    from autotune.tvm_backend.export.verification.accuracy import largest_error

    error = largest_error(host_arrays(ours), theirs)
    if not error <= MAX_ERROR:
        raise ValueError(f"differs by {error:.2g}")


def once(run: Callable[[], Any]) -> float:
    """The least seconds of a run, of those in a fiftieth of a second, and of three at least."""
    run()
    runs: list[float] = []
    while len(runs) < MIN_RUNS or sum(runs) < TURN_S:
        began = time.perf_counter()
        run()
        runs.append(time.perf_counter() - began)
    return min(runs)


def library(model: onnx.ModelProto, arrays: list[Any], threads: int) -> Callable[[], Any]:
    """The operator as it is exported without trials."""
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.models.onnx.read import read_model
    from autotune.tvm_backend.search.tasks import extract_programs
    from autotune.tvm_backend.target import resolve_target, tvm_target

    inputs = {f"x{place}": InputSpec(f"x{place}", value.shape, "") for place, value in enumerate(arrays)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, str(path))
        module = read_model(path, inputs).module
        target = tvm_target(resolve_target("llvm", threads=threads).description)
        prepared = prepare(module, target)
        built = Path(folder) / "model.so"
        compile_tuned(prepared, extract_programs(prepared, target).values(), {}, target).export_library(str(built))
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(built)), tvm.cpu())
    tensors = [tvm.runtime.tensor(np.asarray(value)) for value in arrays]
    main = machine["main"]
    return lambda: main(*tensors)


def session(model: onnx.ModelProto, arrays: list[Any], threads: int) -> Callable[[], Any]:
    """The operator in ONNX Runtime."""
    from autotune.tvm_backend.export.runners import onnx_session

    loaded = onnx_session(model.SerializeToString(), threads)
    feed = {f"x{place}": value for place, value in enumerate(arrays)}
    return lambda: loaded.run(None, feed)


if __name__ == "__main__":
    main()
