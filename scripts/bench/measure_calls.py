#!/usr/bin/env python
"""Measure what a call of a model costs besides its kernels: the model is compiled with kernels that do nothing.

    python scripts/bench/measure_calls.py models/mlp.onnx models/resnet18.onnx

A call is one from Python: inputs and outputs are copied, and TVM's virtual machine goes through its instructions. What
threads cost belongs to the kernels that run on them. Each time is the least of many, in microseconds. It takes some
seconds for each model, on an idle machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm
from tvm import relax, tirx

from autotune.tvm_backend.export.compilation import build_lowered
from autotune.tvm_backend.export.mapped_weights import map_weights
from autotune.tvm_backend.export.runners import Arrays, machine_runner
from autotune.tvm_backend.kernels.build_kernel import linking
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.lowering import finish, prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.programs import over_programs
from autotune.tvm_backend.types import IRModule, PrimFunc, Target

_TARGET = {"kind": "llvm", "num-cores": 1}
_REPEATS = 200
_CALLS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="ONNX files with fixed shapes")
    options = parser.parse_args()
    load_tvm("llvm")
    print("| model | kernels a call | us a call | us a call of TVM's virtual machine alone |")
    print("|---|---|---|---|")
    for model in options.models:
        print(row(model), flush=True)


def row(path: Path) -> str:
    """A line of the table."""
    target = tvm.target.Target(_TARGET)
    model = read_model(path, {})
    lowered = over_programs(finish(prepare(model.module, target), target), _empty)
    arrays = [np.zeros(item.shape, item.dtype) for item in model.inputs]
    call_us, machine_us = _times_us(lowered, target, arrays)
    return f"| {path.stem} | {kernel_calls(lowered)} | {call_us:.2f} | {machine_us:.2f} |"


def _empty(program: PrimFunc) -> PrimFunc:
    return program.with_body(tirx.Evaluate(tirx.IntImm("int32", 0)))


def kernel_calls(lowered: IRModule) -> int:
    """How many kernels a call of the model runs."""
    values = [binding.value for block in lowered["main"].body.blocks for binding in block.bindings]
    return sum(isinstance(getattr(value, "op", None), tvm.ir.GlobalVar) for value in values)


def _times_us(lowered: IRModule, target: Target, arrays: Arrays) -> tuple[float, float]:
    """The time of a call from Python, and without the copies of inputs and outputs."""
    module, weights = map_weights(lowered)
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "model.so"))
        objects = weights.objects(Path(folder))
        build_lowered(module, target).export_library(library, fcompile=linking(target, objects=objects))
        machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
        run = machine_runner(machine.module, None, arrays)
        return _least_us(run), _least_us(run.stay)


def _least_us(run: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(_REPEATS):
        began = time.perf_counter()
        for _ in range(_CALLS):
            run()
        least = min(least, (time.perf_counter() - began) / _CALLS)
    return least * 1e6


if __name__ == "__main__":
    main()
