"""Run schedules for CUDA through OpenCL on the CPU: a second opinion on what `check_schedules.py` says is right.

    pip install pyopencl pocl-binary-distribution
    python scripts/gpu/check_opencl.py --schedules 20

TVM writes OpenCL C for the same random schedules, and PoCL compiles and runs it: neither the header that gives CUDA C
its meaning on a CPU nor g++ has a part in it. Only in fp32: tensor cores, `cp.async` and shuffles of a warp are CUDA's.
In their place are plain copies and sums in shared memory. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pyopencl as cl
from check_schedules import cuda_target, program_of, schedules
from checked_tasks import TENSOR_CORES, tasks

AXES = "xyz"


@dataclass(frozen=True)
class Kernel:
    """A kernel in OpenCL: the names and sizes in bytes of its buffers, and its threads in a block and in all blocks."""

    name: str
    buffers: Mapping[str, int]
    block: tuple[int, ...]
    threads: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = [name for name in tasks() if name.rpartition("_")[2] not in TENSOR_CORES and name != "elementwise"]
    parser.add_argument("kinds", nargs="*", default=kinds, help="kinds of tasks; all in fp32 by default")
    parser.add_argument("--schedules", type=int, default=3, help="of each kind (default: 3)")
    given = parser.parse_args()
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("cuda", ())
    problems = list[str]()
    print("| task | schedules | right | seconds |\n|---|---:|---:|---:|")
    for kind in given.kinds:
        begun = time.monotonic()
        outcomes = list(check(kind, given.schedules))
        print(f"| {kind} | {len(outcomes)} | {outcomes.count('')} | {time.monotonic() - begun:.0f} |")
        problems += [f"{kind}: {problem}" for problem in outcomes if problem]
    sys.exit("\n".join(problems) or 0)


def check(kind: str, count: int) -> Iterator[str]:
    """Compare random schedules of a task with the task without one, and say of each what is wrong, if anything is."""
    import tvm

    from autotune.tvm_backend.kernels import verify

    description, target = cuda_target()
    program = program_of(kind)
    verifier = verify.Verifier(verify.compute(program, description["host"]), tvm.cpu(0))
    names = [f"{parameter.name}_ptr" for parameter in program["main"].params]
    context = cl.create_some_context(interactive=False)
    for scheduled in schedules(program, target, count, ""):
        try:
            verifier.check(runner(context, names, *compiled(scheduled, description["host"])))
            yield ""
        except (verify.WrongResult, cl.Error) as error:
            yield str(error)


def compiled(scheduled: Any, host: Mapping[str, Any]) -> tuple[str, list[Kernel]]:
    """Return the source in OpenCL of a scheduled program, and its kernels in the order in which they run."""
    import tvm
    import tvm_ffi

    target = tvm.target.Target({"kind": "opencl", "host": host})
    name = "target.build.opencl"
    build = tvm_ffi.get_global_func(name)
    made = list[tuple[Any, Any]]()

    def noted(module: Any, target: Any) -> Any:
        made.append((module, build(module, target)))
        return made[-1][1]

    tvm_ffi.register_global_func(name, noted, override=True)
    try:
        with target:
            tvm.tirx.build(scheduled, target=target)
    finally:
        tvm_ffi.register_global_func(name, build, override=True)
    ((module, library),) = made
    functions = sorted(module.functions.items(), key=lambda item: (len(item[0].name_hint), item[0].name_hint))
    return library.inspect_source(), [kernel(name.name_hint, function) for name, function in functions]


def kernel(name: str, function: Any) -> Kernel:
    """Return what a launch has to know of a kernel."""
    import tvm_ffi
    from tvm import tirx

    extents = dict[str, int]()
    sizes = dict[str, int]()

    def note_extent(item: Any) -> None:
        if item.attr_key == "thread_extent":
            extents[item.node.thread_tag] = int(item.value)

    def note_size(item: Any) -> None:
        element = item.buffer.dtype
        sizes[item.data.name] = prod(map(int, item.buffer.shape)) * element.bits // 8

    tvm_ffi.structural_walk(function.body, ((tirx.AttrStmt, note_extent), (tirx.DeclBuffer, note_size)))
    block = tuple(extents.get(f"threadIdx.{axis}", 1) for axis in AXES)
    blocks = (extents.get(f"blockIdx.{axis}", 1) for axis in AXES)
    threads = tuple(one * other for one, other in zip(block, blocks, strict=True))
    return Kernel(name, {item.name: sizes[item.name] for item in function.params}, block, threads)


def runner(context: Any, names: Sequence[str], source: str, kernels: Sequence[Kernel]) -> Callable[..., None]:
    """Return what runs the kernels on tensors of the CPU, which have these names in them."""
    program = cl.Program(context, source).build()
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags

    def run(*tensors: Any) -> None:
        arrays = dict(zip(names, map(np.from_dlpack, tensors), strict=True))
        buffers = {
            name: cl.Buffer(context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=array)
            for name, array in arrays.items()
        }
        for item in kernels:
            for name, size in item.buffers.items():
                if name not in buffers:
                    buffers[name] = cl.Buffer(context, flags.READ_WRITE, size)
            launched = getattr(program, item.name)
            launched(queue, item.threads, item.block, *(buffers[name] for name in item.buffers))
        for name, array in arrays.items():
            cl.enqueue_copy(queue, array, buffers[name])
        queue.finish()

    return run


if __name__ == "__main__":
    main()
