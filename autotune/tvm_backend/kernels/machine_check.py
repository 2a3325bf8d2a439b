"""Test whether this machine or a board can tune for a target: compile, link and run a kernel that is known to be good.

The test is made before the first stage for a target, and when many candidates fail in the same way. If it fails, the
machine or the target is at fault and no candidate is, so no trial is spent on it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from autotune.errors import BoardProblem, MachineProblem, WorkerError, disk_problem
from autotune.machine.boards import Lent
from autotune.processes.children import ItemResult
from autotune.processes.isolate import isolated_call
from autotune.storage.scratch import scratch_folder, temporary_folder
from autotune.tvm_backend.kernels.build_kernel import linking
from autotune.tvm_backend.kernels.time_on_board import close_session, open_session
from autotune.tvm_backend.types import Device, IRModule, RuntimeModule

_LIMIT_S = 60.0
_BOARD_LIMIT_S = 30.0
_ELEMENTS = 64
_LANES = 16
_STEPS = ("compile", "load", "run")


def check_machine(description: Mapping[str, Any]) -> None:
    """Compile, link, load and run the test kernel for the CPU of a target, in an isolated process.

    Args:
        description: The target. For a GPU target, the CPU is that of its host.

    Raises:
        MachineProblem: The test failed. The message says why and what to do.
        DiskProblem: The disk of the temporary folder is full.
    """
    cpu = dict(description if description["kind"] == "llvm" else description.get("host", {"kind": "llvm"}))
    with probe_folder() as folder:
        note = Path(folder) / "step"
        outcome = isolated_call(lambda: _probe(cpu, note), limit_s=_LIMIT_S)
        if outcome.kind != "ok":
            raise MachineProblem(_reason(cpu, outcome, _step(note)))


def check_cross_build(description: Mapping[str, Any]) -> None:
    """Compile and link the test kernel for the CPU of a board, which this machine need not be able to run.

    Raises:
        MachineProblem: It did not work. The message says why.
        DiskProblem: The disk of the temporary folder is full.
    """
    with probe_folder() as folder:
        library = Path(folder) / "probe.so"
        outcome = isolated_call(lambda: build_probe(description, library), limit_s=_LIMIT_S)
        if outcome.kind != "ok":
            raise MachineProblem(f"nothing can be compiled here for {_cpu_name(description)}: {said_by(outcome)}")


def check_board(description: Mapping[str, Any], lent: Lent) -> None:
    """Compile the test kernel for a board, and run it there, in a process that may hang.

    Raises:
        BoardProblem: It did not work. The message names the board and says why.
        MachineProblem, DiskProblem: There is no folder for temporary files here, or its disk is full.
    """
    with probe_folder() as folder:
        library = Path(folder) / "probe.so"
        build_probe(description, library)
        outcome = isolated_call(lambda: _run_on_board(lent, library), limit_s=_BOARD_LIMIT_S)
    if outcome.kind != "ok":
        raise BoardProblem(f"a kernel that is known to be good fails on the board at {lent}: {said_by(outcome)}")


def _run_on_board(lent: Lent, library: Path) -> None:
    session = open_session(lent, _BOARD_LIMIT_S, threads=1)
    try:
        session.upload(str(library))
        check_answers(session.load_module(library.name), session.cpu(0))
    finally:
        close_session(session)


def said_by(outcome: ItemResult) -> str:
    """Return why a test kernel failed, without the name of our own error."""
    return outcome.reason.removeprefix(f"{WorkerError.__name__}: ")


def _cpu_name(description: Mapping[str, Any]) -> str:
    return str(description.get("mcpu") or description.get("mtriple") or "the target")


def build_probe(description: Mapping[str, Any], library: Path) -> None:
    """Compile and link the test kernel."""
    target = tvm.target.Target(dict(description))
    tvm.driver.build(_program(), target=target).export_library(str(library), fcompile=linking(target))


def probe_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder for a test kernel.

    Raises:
        MachineProblem: There is no folder for temporary files.
        DiskProblem: Its disk is full.
    """
    folder = temporary_folder()
    try:
        return scratch_folder("probe", folder)
    except OSError as error:
        raise disk_problem("write to", error.filename or folder, error) from error


def _probe(description: Mapping[str, Any], note: Path) -> None:
    """Compile, load and run the test kernel.

    Each step is written to `note` before it starts, because a process that dies cannot report where.
    """
    note.write_text(_STEPS[0])
    library = note.with_name("probe.so")
    build_probe(description, library)
    note.write_text(_STEPS[1])
    module = tvm.runtime.load_module(str(library))
    note.write_text(_STEPS[2])
    check_answers(module, tvm.cpu(0))


def _program() -> IRModule:
    """Return a program with vector arithmetic on floats, half floats and integers.

    For these a compiler uses the newer instruction sets of a CPU.
    """
    x = te.placeholder((_ELEMENTS,), "float32", name="x")
    n = te.placeholder((_ELEMENTS,), "int32", name="n")
    roots = te.compute((_ELEMENTS,), lambda i: te.sqrt(te.max(x[i] * x[i] + x[i], 0.0)), name="roots")
    bits = te.compute((_ELEMENTS,), lambda i: te.popcount(n[i] * n[i]), name="bits")
    half = te.compute((_ELEMENTS,), lambda i: x[i].astype("float16"), name="half")
    short = te.compute((_ELEMENTS,), lambda i: half[i] * half[i] + half[i], name="short")
    schedule = s_tir.Schedule(te.create_prim_func([x, n, roots, bits, short]))
    for name in ("roots", "bits", "half", "short"):
        (loop,) = schedule.get_loops(schedule.get_sblock(name))
        _, lanes = schedule.split(loop, [None, _LANES])
        schedule.vectorize(lanes)
    return schedule.mod


def check_answers(module: RuntimeModule, device: Device) -> None:
    """Run the test kernel on a device, and check what it computes.

    Raises:
        WorkerError: Its results are wrong.
    """
    x = np.linspace(0, 4, _ELEMENTS, dtype="float32")
    n = np.arange(_ELEMENTS, dtype="int32")
    outputs = [np.zeros(_ELEMENTS, dtype) for dtype in ("float32", "int32", "float16")]
    tensors = [tvm.runtime.tensor(value, device=device) for value in (x, n, *outputs)]
    module["main"](*tensors)
    roots, bits, short = (tensor.numpy() for tensor in tensors[2:])
    right = np.allclose(roots, np.sqrt(x * x + x), rtol=1e-4)
    right = right and np.allclose(short.astype("float32"), x * x + x, rtol=1e-2)
    if not right or bits.tolist() != [bin(value * value).count("1") for value in n.tolist()]:
        raise WorkerError("its results are wrong")


def _step(note: Path) -> str:
    try:
        return note.read_text()
    except OSError:
        return _STEPS[0]


def _reason(target: Mapping[str, Any], outcome: ItemResult, step: str) -> str:
    """Return why the test failed and what to do."""
    said = said_by(outcome)
    if outcome.kind in ("memory", "timeout"):
        return f"a small test kernel cannot be run here ({said}); end other programs on this machine"
    if step == "compile":
        return f"nothing can be compiled here: {said}"
    foreign = "SIGILL" in said or step == "load"
    cpu = f"the CPU {target.get('mcpu', 'of the target')}"
    if foreign:
        return f"this machine cannot run what is built for {cpu} ({said}); tune on such a machine, or submit for llvm"
    return f"a kernel that is known to be good fails here ({said}); check this machine and its TVM"
