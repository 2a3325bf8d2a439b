"""A small model, and a library that is known to be what runs because it computes something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.machine.hardware import cpu_model
from autotune.schema import plain
from autotune.storage.model_digest import ModelDigest, digest_of

BY_MODEL = 2.0  # what the model multiplies its input by
BY_LIBRARY = 3.0


def write_model(path: Path) -> Path:
    """A model of an input `x` of Nx8 and a constant `rate`, which it does not use, that has the outputs `y` and `z`."""
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in "xyz")
    rate = helper.make_tensor_value_info("rate", TensorProto.INT64, [])
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["y"]),
        helper.make_node("Cast", ["rate"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["as_float", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["z"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(number), name) for name, number in {"two": BY_MODEL, "zero": 0}.items()
    ]
    graph = helper.make_graph(nodes, "net", [x, rate], [y, z], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def write_library(folder: Path) -> Path:
    """Compile a library with the inputs and outputs of that model, for an input of 1x8."""
    from autotune.tvm_backend.load import load_tvm

    load_tvm("llvm")
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.kernels.build_kernel import link_shared
    from autotune.tvm_backend.lowering import prepare

    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.multiply(x, relax.const(np.float32(BY_LIBRARY))))
            output = builder.emit_output(relax.Tuple([y, builder.emit(relax.op.negative(x))]))
        builder.emit_func_output(output)
    executable = compile_tuned(prepare(builder.get(), target), [], {}, target)
    folder.mkdir(parents=True, exist_ok=True)
    executable.export_library(str(folder / "model.so"), fcompile=link_shared)
    return folder


def write_report(folder: Path, model: Path, **changed: Any) -> None:
    """Write the report of a library that was exported for a model."""
    from autotune.tvm_backend.export.library_file import described

    digest: ModelDigest = digest_of(model)
    tensor = {"shape": [1, 8], "dtype": "float32"}
    report = {
        "target": {"kind": "llvm"},
        "threads": 1,
        "cpu": cpu_model(),
        "digest": plain(digest),
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": name, **tensor} for name in "yz"],
        "values": {"rate": 16000.0},
        "library": plain(described(folder / "model.so")),
    }
    (folder / "report.json").write_text(json.dumps({**report, **changed}))
