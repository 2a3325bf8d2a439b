"""Compile one scheduled tensor program to a shared library."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import tvm
from tvm.ir.transform import PassContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import Workload
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from autotune.errors import DamagedFile, WorkerError
from autotune.processes.children import is_refusal, refused
from autotune.storage.formats import Candidate, Trial
from autotune.tvm_backend.codegen.lowering_passes import object_pipeline, pipeline
from autotune.tvm_backend.codegen.row_vectors import module_to_compile
from autotune.tvm_backend.kernels.cache_state import READER, reader
from autotune.tvm_backend.linker import architecture, cross_linkers, linker_for, no_debug_sections
from autotune.tvm_backend.search.design_space import plain_args
from autotune.tvm_backend.target import resolve_target, tvm_target
from autotune.tvm_backend.threads.pool import pool_object
from autotune.tvm_backend.types import IRModule, PrimFunc, RuntimeModule, Target

_ANY_NUMBER = {"num-cores": 1}  # of CPUs: the code is the same
_OPT_LEVEL = 2  # TVM's own default
_HALVES = {"float16", "bfloat16"}
_NOT_ON_GPUS = ["s_tir.LowerAsyncDMA"]


def build_candidate(item: Candidate | Trial, program: IRModule, target: Target, path: Path) -> None:
    """Replay the trace of a candidate and compile its kernel.

    Args:
        item: The candidate, or its trial.
        program: The tensor program of its task.
        path: The library to write.

    Raises:
        DamagedFile: Its arguments are not those of the kernel.
        Exception: Whatever `module_to_compile` and `build_library` raise.
    """
    scheduled = module_to_compile(item, Workload(program), target)
    if item.args != plain_args(ArgInfo.from_entry_func(scheduled, remove_preproc=True)):
        raise DamagedFile(f"the arguments of candidate {item.hash} are not those of its kernel")
    build_library(scheduled, target, path)


def build_library(scheduled: IRModule, target: Target, path: Path) -> None:
    """Compile a scheduled program and write a library that TVM's `load_module` can load.

    If the schedule repacks weights, the library takes them packed, so that only the kernel itself is timed. On CPUs the
    kernel does not check its arguments: that takes 6 ns of a run, and a tenth of the time of a build.

    Raises:
        Exception: Whatever TVM's lowering or code generation raises.
    """
    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(scheduled)
    compiled = _compiled(module, target, checked=target.kind.name != "llvm")
    if target.kind.name != "llvm":
        compiled.export_library(str(path), fcompile=linking(target))
        return
    with _object_file() as kernel, _object_file(reader_object(target)) as reading:
        compiled.write_to_file(kernel)
        linking(target, objects=[reading])(str(path), [kernel])


@contextmanager
def _object_file(content: bytes = b"") -> Iterator[str]:
    """Yield the path of an object file, which is removed afterwards. To remove a folder takes as long as to link."""
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(content)
        file.flush()
        yield file.name


def compile_once() -> None:
    """Compile what every library for the CPUs of this machine brings along, so that it is there.

    TVM and LLVM also make and load things when they first compile, which takes a fifth of the time of a kernel. A
    process that forks others, each of which compiles a few kernels, does so before.

    Raises:
        OSError: There is no room for the object file.
    """
    pool_object()
    reader_object(tvm_target(resolve_target("llvm", threads=1).description))


def reader_object(target: Target) -> bytes:
    """Return the program of `reader` as an object file, which is compiled once for each kind of CPU in a process.

    Args:
        target: The target, a CPU.

    Raises:
        OSError: There is no room for the object file.
    """
    return _reader_object(str(tvm.target.Target({**target.export(), **_ANY_NUMBER})))


@lru_cache(maxsize=4)
def _reader_object(target: str) -> bytes:
    with _object_file() as path:
        compile_object(READER, reader(), tvm.target.Target(target), Path(path))
        return Path(path).read_bytes()


def compile_object(name: str, program: PrimFunc, target: Target, path: Path) -> None:
    """Compile a scheduled program to an object file that can be linked to others.

    Args:
        name: The name of the function.
        target: The target, a CPU.
        path: The object file to write.

    Raises:
        Exception: Whatever TVM's lowering or code generation raises.
    """
    _compiled(tvm.IRModule({name: program}), target, object_pipeline(target)).write_to_file(str(path))


def _compiled(module: IRModule, target: Target, passes: str = "", *, checked: bool = True) -> RuntimeModule:
    with (
        target,
        lowering(module, target, checked=checked),
    ):  # without the target TVM would compile CUDA for the GPU that is here
        return tvm.tirx.build(module, target=target, pipeline=passes or pipeline(target))


def lowering(module: IRModule, target: Target, *, checked: bool = True) -> PassContext:
    """Return the context of passes in which a module is compiled.

    On GPUs, copies that a schedule makes asynchronous are: without the option TVM copies synchronously, and commits
    empty groups. With it TVM also looks for copies that Hexagon's DMA could make, and CUDA has no name for those: it
    would take the copies of a single thread for such.

    Of a kernel that sums products of fp16 or bf16 in fp32, TVM's StorageRewrite lets the sums have the shared memory of
    the operands, and then TVM refuses the types. So it is left out where there is either.

    Args:
        checked: Whether the kernels check their arguments when they are called.
    """
    functions = [item for item in module.functions.values() if isinstance(item, tvm.tirx.PrimFunc)]
    dtypes = {str(getattr(parameter.ty, "dtype", "")) for item in functions for parameter in item.params}
    on_gpu = target.kind.name == "cuda"
    config = {
        "tirx.use_async_copy": on_gpu,
        "tirx.disable_storage_rewrite": on_gpu and bool(_HALVES & dtypes),
        "tirx.disable_assert": not checked,
    }
    return PassContext(opt_level=_OPT_LEVEL, config=config, disabled_pass=_NOT_ON_GPUS if on_gpu else None)


def linking(target: Target, *, pool: bool = True, objects: Sequence[str] = ()) -> Callable[..., None]:
    """Return a function that links object files of a target to a shared library.

    Args:
        pool: Whether a library for the CPUs of this machine brings our thread pool along. All others run on that of
            TVM's runtime, which `autotune.tvm_backend.kernels.time_on_board` configures on boards.
        objects: Other object files that belong to the library.
    """
    triple = str(target.attrs.get("mtriple") or "")
    has_pool = pool and target.kind.name == "llvm" and not triple

    def link(output: str, compiled: Sequence[str], *_: object, **__: object) -> None:
        if not has_pool:
            return link_shared(output, [*compiled, *objects], triple=triple)
        with _object_file(pool_object()) as threads:
            link_shared(output, [*compiled, *objects, threads], triple=triple)

    return link


def link_shared(output: str, objects: Sequence[str] | str, *_: object, triple: str = "", **__: object) -> None:
    """Link object files to a shared library.

    It calls the linker directly, which takes 3 ms. A compiler driver takes 20 ms or more.

    Args:
        output: The library to write.
        triple: What they were compiled for; empty for this machine.

    Raises:
        WorkerError: There is no linker, or it failed.
        ProcessRefused: The system starts no more processes.
    """
    files = [objects] if isinstance(objects, str) else list(objects)
    linker = _linker(triple)
    command = [*linker, "-shared", no_debug_sections(linker), "-o", output, *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        if is_refusal(error):
            raise refused(error) from error
        raise WorkerError(f"cannot run the linker {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise WorkerError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")


def _linker(triple: str) -> list[str]:
    if command := linker_for(triple):
        return command
    arch = architecture(triple)
    path = os.environ.get("PATH", "")
    if arch != architecture(""):
        tools = ", ".join(command[0] for command in cross_linkers(arch))
        raise WorkerError(f"there is no linker for {arch} in PATH; install one of {tools}")
    raise WorkerError(
        f"no linker in PATH ({path}); install binutils or gcc, or start the daemon with a PATH that has ld"
    )
