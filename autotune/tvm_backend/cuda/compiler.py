"""Compile generated CUDA source to a cubin of the target's architecture, with NVRTC or nvcc, whichever is there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from autotune.errors import MachineProblem, one_line
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.cuda.pipeline_tiles import ATTENTION_MARK, MARK

Tool = Literal["nvrtc", "nvcc"]

_CHOICE = "TVM_CUDA_COMPILE_MODE"  # TVM's own variable: what the user sets there holds here
_CALLBACK = "tvm_callback_cuda_compile"
# TVM passes this to both compilers: powf of a negative base is NaN then, and tanhf is wrong by 5e-4.
_FAST_MATH = b"--use_fast_math"
_NO_FAST_MATH = "TVM_CUDA_NVCC_NO_FAST_MATH"
# TVM gathers eight numbers of 16 bits with `make_uint4`, which CUDA has for four numbers of 32 bits only.
EIGHT_HALVES = """\
template <typename Half>
static __device__ inline uint4 make_uint4(Half a, Half b, Half c, Half d, Half e, Half f, Half g, Half h) {
  static_assert(sizeof(Half) == 2, "eight numbers of 16 bits");
  union { uint4 packed; unsigned short lanes[8]; } both;
  const Half halves[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) both.lanes[i] = *reinterpret_cast<const unsigned short*>(&halves[i]);
  return both.packed;
}
"""
# Of bf16 and, as `autotune.tvm_backend.cuda.tf32` has TVM write them, of TF32.
_OUR_FRAGMENTS = ("16, 16, 16, nv_bfloat16", "16, 16, 8, half")
# Without a number of blocks ptxas may spill a register to make room for one block more than shared memory does.
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")
_PIPELINE = Path(__file__).with_name("pipeline.cuh")
_ATTENTION = Path(__file__).with_name("attention.cuh")
_FRAGMENTS = Path(__file__).with_name("fragments.cuh")
_INSTALL = "run: pip install 'autotune-tvm[cuda]', or install a CUDA toolkit and put its nvcc into PATH"


@dataclass(frozen=True)
class Compiler:
    """A compiler for CUDA that is installed, and its version as it says it."""

    tool: Tool
    version: str


@lru_cache(maxsize=1)
def find_compiler() -> Compiler:
    """NVRTC where it is complete, since it needs no C++ compiler; else nvcc.

    Raises:
        MachineProblem: there is neither, or the one that the user asked for is not there.
    """
    wanted = os.environ.get(_CHOICE, "").lower()
    if wanted not in ("", "nvrtc", "nvcc"):
        raise MachineProblem(f"{_CHOICE} is {wanted!r}; set it to nvrtc or nvcc, or not at all")
    missing = _nvrtc_problem() if wanted != "nvcc" else ""
    if wanted != "nvcc" and not missing:
        return Compiler("nvrtc", metadata.version("cuda-bindings"))
    if wanted != "nvrtc" and (path := runtime.nvcc()):
        return Compiler("nvcc", path)
    lacking = {"nvrtc": f"NVRTC cannot be used ({missing})", "nvcc": "there is no nvcc"}
    raise MachineProblem(f"{lacking.get(wanted, f'no CUDA compiler: no nvcc, and {missing}')}; {_INSTALL}")


def _nvrtc_problem() -> str:
    """What keeps NVRTC from being used; empty if nothing does."""
    try:
        from cuda.bindings import nvrtc

        code, *_ = nvrtc.nvrtcVersion()
    except ImportError:
        return "no cuda-bindings"
    except Exception as error:  # the bindings are there, and the library that they call is not
        return f"NVRTC does not load: {one_line(error)}"
    if int(code):
        return f"NVRTC fails: {code}"
    return "" if runtime.include_folders() else "no CUDA headers"


def completed(source: str) -> str:
    """Return CUDA source as TVM generates it, with what it takes for granted, and with what our schedules call."""
    if MARK in source:
        attention = _ATTENTION.read_text() if ATTENTION_MARK in source else ""
        return (
            EIGHT_HALVES + _PIPELINE.read_text() + attention + _LAUNCH_BOUNDS.sub(r"__launch_bounds__(\1, 1)", source)
        )
    if not any(mark in source for mark in _OUR_FRAGMENTS):
        return EIGHT_HALVES + source
    return EIGHT_HALVES + _FRAGMENTS.read_text() + source.replace("nvcuda::wmma::", "autotune::wmma::")


def compile_source(source: str, arch: str) -> bytes:
    """Compile CUDA source as TVM generates it, without fast math.

    Args:
        arch: such as `sm_90`.

    Returns:
        The cubin.

    Raises:
        MachineProblem: no compiler is there.
        RuntimeError: the compiler refuses the source.
    """
    from tvm.support import nvcc

    compiler = find_compiler()
    _lead_tvm(compiler)
    source = completed(source)
    suffix = arch.removeprefix("sm_")
    if compiler.tool == "nvrtc":
        options = [f"-I{folder}" for folder in runtime.include_folders()]
        with _exact_nvrtc():
            return bytes(nvcc.compile_cuda(source, "cubin", arch, options, compiler="nvrtc"))
    one = ["-gencode", f"arch=compute_{suffix},code=sm_{suffix}"]
    return bytes(nvcc.compile_cuda(source, "cubin", one, compiler="nvcc"))


@contextlib.contextmanager
def _exact_nvrtc() -> Iterator[None]:
    """Keep fast math from NVRTC: TVM's own variable does so for nvcc only."""
    from cuda.bindings import nvrtc

    compile_program = nvrtc.nvrtcCompileProgram

    def exactly(program: Any, _: int, options: list[bytes]) -> Any:
        kept = [option for option in options if option != _FAST_MATH]
        return compile_program(program, len(kept), kept)

    nvrtc.nvrtcCompileProgram = exactly
    try:
        yield
    finally:
        nvrtc.nvrtcCompileProgram = compile_program


def _lead_tvm(compiler: Compiler) -> None:
    """TVM looks for headers beside the `nvcc` in PATH, which may be a script, and calls it by name."""
    os.environ[_NO_FAST_MATH] = "1"
    root = runtime.headers_root()
    if root is not None:
        os.environ.setdefault("CUDA_PATH", str(root))
    if compiler.tool == "nvcc":
        folder = os.path.dirname(compiler.version)
        if folder not in os.environ.get("PATH", "").split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), folder)))


def install() -> None:
    """Have TVM compile what it generates with `compile_source`, for the arch of the target in scope."""
    import tvm_ffi

    tvm_ffi.register_global_func(_CALLBACK, _compile_for_current, override=True)


def _compile_for_current(source: Any) -> bytes:
    from tvm.target import Target

    target = Target.current(allow_none=True)
    arch = str(target.attrs.get("arch", "")) if target is not None else ""
    if not arch:
        raise RuntimeError("a build for CUDA outside of its target's scope: the architecture is not known")
    return compile_source(str(source), arch)
