#!/usr/bin/env python
"""Compile the known good kernel for each architecture with each compiler, and say what it takes.

python scripts/gpu/compilers.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")


def _try(tool: str) -> None:
    from autotune.errors import MachineProblem
    from autotune.tvm_backend.kernels.gpu_probe import check_build
    from autotune.tvm_backend.load import load_tvm

    load_tvm("cuda")
    for arch in ARCHS:
        started = time.perf_counter()
        try:
            compiler = check_build({"kind": "cuda", "arch": arch, "host": {"kind": "llvm"}}).compiler
        except MachineProblem as problem:
            print(f"{tool} {arch}: {problem}")
        else:
            print(f"{tool} ({compiler.version}) {arch}: a cubin in {time.perf_counter() - started:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _try(sys.argv[1])
    else:
        for tool in ("nvrtc", "nvcc"):
            environment = {**os.environ, "TVM_CUDA_COMPILE_MODE": tool}
            subprocess.run([sys.executable, __file__, tool], env=environment, check=True)
