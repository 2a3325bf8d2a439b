"""Test whether this machine can build for a GPU, and whether a GPU works, with a kernel that is known to be good.

It is compiled where a job for CUDA is served, and launched where one is measured. What goes wrong here is the fault
of the machine or of the GPU, never a candidate's, so no trial is spent on it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from autotune.errors import DamagedFile, MachineProblem
from autotune.machine.gpus import CudaDevice, GpuCounters
from autotune.processes.children import ItemResult
from autotune.processes.isolate import isolated_call
from autotune.tvm_backend.cuda import compiler, cubin, runtime
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.kernels.machine_check import probe_folder
from autotune.tvm_backend.types import Device, IRModule

NAME = "autotune_probe"
_ELEMENTS = 1024
_THREADS = 128
_LAUNCHES = 100
_BUILD_LIMIT_S = 120.0
_RUN_LIMIT_S = 60.0
_ARGUMENTS = (("float32", (_ELEMENTS,)),) * 2
_MIB = 2**20
_PTX = b".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry autotune_start() { ret; }\n"
_Shapes = Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True)
class Probed:
    """What was found to work: the compiler, and how long a launch of the kernel took; None where none was made."""

    compiler: compiler.Compiler
    launch_us: float | None = None


def check_build(description: Mapping[str, Any]) -> Probed:
    """Compile the known good kernel for a target, to machine code of the very architecture that the target names.

    Raises:
        MachineProblem: it did not work. Says why and what helps.
    """
    with probe_folder() as folder:
        return Probed(_build(description, Path(folder) / "probe.so"))


def check_gpu(
    description: Mapping[str, Any], gpu: CudaDevice, *, arguments: _Shapes = (), answers: bool = True
) -> Probed:
    """Compile the kernel for a target and launch it on a GPU, in processes that may die of it.

    Args:
        arguments: dtype and dimensions of tensors that must fit into its memory: those of a task.
        answers: whether what it computes is looked at.

    Raises:
        MachineProblem: it did not work, or the memory is taken. Says why and what helps.
    """
    _check_mode(gpu)
    with probe_folder() as folder:
        library = Path(folder) / "probe.so"
        used = _build(description, library)
        outcome = isolated_call(lambda: _launch(gpu, library, arguments, answers), limit_s=_RUN_LIMIT_S)
        if outcome.kind != "ok":
            raise MachineProblem(_reason(gpu, outcome))
        return Probed(used, float(outcome.value))


def start(device: Device) -> None:
    """Make the context of this process, and load a first module. On some machines that takes seconds.

    The module is PTX, which the driver compiles in a millisecond: NVRTC would take a second, in which nobody could
    measure.

    Raises:
        MachineProblem: The driver refuses the module. The context is there all the same.
    """
    tvm.runtime.empty((1,), "uint8", device)
    device.sync()
    if status := ctypes.CDLL(runtime.DRIVER).cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), _PTX):
        raise MachineProblem(f"the driver loads no PTX: error {status}")


def _check_mode(gpu: CudaDevice) -> None:
    """Refuse a GPU for one process: an export has a context while it starts processes that need theirs."""
    counters = GpuCounters.open(gpu.uuid)
    mode = counters.restricted() if counters else ""
    if mode:
        raise MachineProblem(
            f"cuda:{gpu.index} ({gpu.name}) is in compute mode {mode}, and autotune needs several processes on it; "
            f"run: nvidia-smi -i {gpu.index} -c DEFAULT"
        )


def _build(description: Mapping[str, Any], library: Path) -> compiler.Compiler:
    runtime.load()
    used = compiler.find_compiler()
    outcome = isolated_call(lambda: _compile(dict(description), library), limit_s=_BUILD_LIMIT_S)
    if outcome.kind != "ok":
        raise MachineProblem(f"nothing can be compiled for CUDA here: {used.tool} failed: {outcome.reason}")
    return used


def _compile(description: dict[str, Any], library: Path) -> None:
    build_library(_program(), tvm.target.Target(description), library)
    wanted = str(description["arch"])
    data = library.read_bytes()
    archs = {cubin_of_kernel.arch for cubin_of_kernel in cubin.find(data)}
    if archs != {wanted}:
        raise DamagedFile(f"asked for {wanted}, it made {', '.join(sorted(archs)) or 'no machine code'}")


def _program() -> IRModule:
    x = te.placeholder((_ELEMENTS,), "float32", name="x")
    y = te.compute((_ELEMENTS,), lambda i: x[i] * 3.0 + 1.0, name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", NAME)
    schedule = s_tir.Schedule(tvm.IRModule({NAME: function}))
    schedule.work_on(NAME)
    blocks, threads = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, _THREADS])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    return schedule.mod


def _launch(gpu: CudaDevice, library: Path, arguments: _Shapes, answers: bool) -> float:
    """Microseconds of a launch among many."""
    gpu.take()
    device = tvm.cuda(0)
    if not device.exist:
        raise MachineProblem("CUDA does not show it")
    _check_memory(device, [*arguments, *_ARGUMENTS])
    module = tvm.runtime.load_module(str(library))
    x = np.linspace(0, 1, _ELEMENTS, dtype="float32")
    tensors = [tvm.runtime.tensor(array, device=device) for array in (x, np.zeros_like(x))]
    module[NAME](*tensors)
    device.sync()
    if answers and not np.allclose(tensors[1].numpy(), x * 3 + 1, rtol=1e-5):
        raise MachineProblem("its results are wrong")
    timed = module.time_evaluator(NAME, device, number=_LAUNCHES, repeat=1)(*tensors)
    return float(timed.results[0]) * 1e6


def _check_memory(device: Device, arguments: _Shapes) -> None:
    try:
        kept = [tvm.runtime.empty(tuple(dims), dtype, device) for dtype, dims in arguments]
        device.sync()
        del kept
    except Exception as error:  # TVM raises several kinds
        if "out of memory" not in str(error):
            raise
        free = tvm.get_global_func("runtime.GetCudaFreeMemory", allow_missing=True)
        wanted = sum(math.prod(dims) * np.dtype(dtype).itemsize for dtype, dims in arguments)
        said = str(free()) if free is not None else ""
        raise MachineProblem(
            f"its memory is full: {wanted / _MIB:.0f} MiB are needed{said and f' ({said.strip()})'}; end what uses it"
        ) from error


def _reason(gpu: CudaDevice, outcome: ItemResult) -> str:
    name = f"cuda:{gpu.index} ({gpu.name})"
    said = outcome.reason.removeprefix("MachineProblem: ")
    if outcome.kind == "timeout":
        return f"{name} does not answer: a tiny kernel ran for {_RUN_LIMIT_S:g} s; look at it with nvidia-smi"
    return f"a kernel that is known to be good fails on {name}: {said}; look at it with nvidia-smi"
