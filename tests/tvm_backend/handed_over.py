"""Networks compiled as an export compiles them: as a library, and as the source of a program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from autotune.options import InputSpec, Precision
from autotune.tvm_backend.export.compilation import build_lowered, lower_tuned
from autotune.tvm_backend.export.host_tensors import tensors_of
from autotune.tvm_backend.export.mapped_weights import map_weights
from autotune.tvm_backend.export.writing.source import Described, write_source
from autotune.tvm_backend.kernels.build_kernel import linking
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.tasks import extract_tasks

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Network:
    """A network that was lowered for a target, with its inputs and the number of its outputs."""

    lowered: Any
    target: Any
    inputs: tuple[InputSpec, ...]
    outputs: int

    def library(self, folder: Path) -> Path:
        """Write the library, with its weights in a section of their own."""
        path = folder / "model.so"
        module, weights = map_weights(self.lowered, "")
        objects = weights.objects(folder, "")
        build_lowered(module, self.target).export_library(str(path), fcompile=linking(self.target, objects=objects))
        return path

    def source(self, folder: Path) -> Path:
        """Write the source of the program."""
        names = [f"output{index}" for index in range(self.outputs)]
        described = Described("network", self.inputs, names, 2, "0")
        write_source(folder / "source", self.lowered, build_lowered(self.lowered, self.target), described)
        return folder / "source"


def lowered(path: Path, target: Any, precision: Precision = "fp32") -> Network:
    """Read a model and lower it without trials."""
    model = read_model(path, {})
    prepared = prepare(model.module, target, precision=precision)
    programs = [task.program for task in extract_tasks(prepared, target)]
    outputs = len(onnx.load(path, load_external_data=False).graph.output)
    return Network(lower_tuned(prepared, programs, {}, target), target, tuple(model.inputs), outputs)


def machine(library: Path) -> Any:
    """Load a library."""
    import tvm
    from tvm import relax

    return relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())


def outputs_of(returned: Any) -> list[Array]:
    """Copy what a function of a virtual machine returned."""
    return [np.array(tensor.numpy()) for tensor in tensors_of(returned)]


def built(source: Path) -> Path:
    """Compile and link a program, as its CMakeLists.txt says it is done without CMake."""
    words = ["-O1", "-std=c++17", "-pthread", "main.cpp", "network.cpp", "shim.cpp", "pool.o", "kernels.o"]
    for command in (["gcc", "-O1", "-c", "pool.c"], ["g++", *words, "-o", "main"]):
        done = subprocess.run(command, cwd=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return source / "main"


def outputs_of_program(program: Path, folder: Path, inputs: list[Array], like: list[Array]) -> list[Array]:
    """Run a program on inputs, and read its outputs, which have the shapes and types of others."""
    files = [folder / f"input{index}.bin" for index in range(len(inputs))]
    for file, array in zip(files, inputs, strict=True):
        file.write_bytes(array.tobytes())
    done = subprocess.run([program, *files], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    read = [np.frombuffer((folder / f"output{index}.bin").read_bytes(), item.dtype) for index, item in enumerate(like)]
    return [array.reshape(item.shape) for array, item in zip(read, like, strict=True)]
