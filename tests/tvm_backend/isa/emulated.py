"""Run networks on a CPU that this machine emulates: compiled here, written as C++ source, and linked statically."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.options import Precision
from autotune.tvm_backend.export.compilation import build_lowered, lower_tuned
from autotune.tvm_backend.export.runners import onnx_session
from autotune.tvm_backend.export.writing.source import Described, write_source
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.tasks import extract_tasks
from autotune.tvm_backend.target import instructions, tvm_target

_COMPILERS = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"
_EMULATOR = "qemu-aarch64"
_BUILD = "{} -O2 -c pool.c && {} -O2 -std=c++17 -pthread main.cpp network.cpp shim.cpp pool.o kernels.o -static -o main"
needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, (*_COMPILERS, _EMULATOR))), reason="no compiler for AArch64, or no emulator of it"
)


def relative_error(model: Path, folder: Path, features: Sequence[str], precision: Precision = "fp32") -> float:
    """Return by how much of the largest value an output differs at most from what ONNX Runtime puts out here.

    Args:
        model: The model, without tuning.
        folder: Where its source is written and built.
        features: Of the CPU, as LLVM names them.
        precision: In what it is computed.
    """
    read = read_model(model, {})
    session = onnx_session(model, 1)
    names = [item.name for item in session.get_outputs()]
    _write(read, folder / "source", [f"+{feature}" for feature in features], precision, names)
    rng = np.random.default_rng(3)
    feeds = {item.name: rng.standard_normal(item.shape).astype(item.dtype) for item in read.inputs}
    files = [folder / f"input{index}.bin" for index in range(len(feeds))]
    for file, values in zip(files, feeds.values(), strict=True):
        values.tofile(file)
    subprocess.run(_BUILD.format(*_COMPILERS), shell=True, check=True, cwd=folder / "source")
    words = [_EMULATOR, "-cpu", "max", folder / "source" / "main", *files]
    subprocess.run(words, check=True, cwd=folder, capture_output=True)
    errors = []
    for index, expected in enumerate(session.run(None, feeds)):
        result = np.fromfile(folder / f"output{index}.bin", expected.dtype).reshape(expected.shape)
        assert np.abs(expected).max() > 0, "a network that says nothing"
        errors.append(float(np.abs(result - expected).max() / np.abs(expected).max()))
    return max(errors)


def _write(read: Any, folder: Path, features: list[str], precision: Precision, outputs: list[str]) -> None:
    description = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": features, "num-cores": 2}
    target = tvm_target(description)
    prepared = prepare(read.module, target, precision=precision)
    lowered = lower_tuned(prepared, [task.program for task in extract_tasks(prepared, target)], {}, target)
    needed = instructions(description, integers=True, bfloat16=precision == "bf16")
    described = Described("net", read.inputs, outputs, 2, "0", instructions=needed)
    write_source(folder, lowered, build_lowered(lowered, target), described)


def mnemonics(folder: Path) -> set[str]:
    """Return the names of the instructions of the kernels that were written to a folder."""
    kernels = folder / "source" / "kernels.o"
    words = ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", kernels]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    lines = (line.partition(":\t")[2].split() for line in text.splitlines())
    return {words[0] for words in lines if words}
