#!/usr/bin/env python
"""Compile random schedules to cubins, and say how many have which instructions of the GPU. Needs no GPU.

    pip install nvidia-cuda-nvdisasm                # or put an `nvdisasm` into PATH
    python scripts/gpu/count_instructions.py product_fp16 few_rows_fp16 convolution_fp16 --schedules 70

The source says what a kernel asks for, and the instructions what ptxas made of it: `mma.sync` becomes `HMMA.16816`,
which has 16 terms of fp16 and bf16, `HMMA.1688` with 8 of TF32, or `IMMA.16832` with 32 of int8. `LDSM` is `ldmatrix`,
and `LDGSTS` an asynchronous copy. The kinds of tasks are those of checked_tasks.py. TVM_CUDA_COMPILE_MODE chooses
between NVRTC, the default here, and nvcc.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from check_schedules import build, cuda_target, mark_of, program_of, schedules

INSTRUCTIONS = ("HMMA.16816", "HMMA.1688", "IMMA.16832", "LDSM", "LDGSTS", "FFMA")


@dataclass
class Count:
    """How many schedules were compiled and refused, and how many of the former have each instruction."""

    compiled: int = 0
    refusals: list[str] = field(default_factory=list)
    having: Counter[str] = field(default_factory=Counter)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=["product_fp16"], metavar="KIND", help="default: product_fp16")
    parser.add_argument("--schedules", type=int, default=20, help="of each kind (default: 20)")
    given = parser.parse_args()
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvrtc")
    disassembler = find_disassembler()
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("cuda", ())
    refusals = list[str]()
    print(f"| task | compiled | refused | {' | '.join(INSTRUCTIONS)} |\n|---|{'---:|' * (2 + len(INSTRUCTIONS))}")
    for kind in given.kinds:
        done = count(kind, given.schedules, disassembler)
        cells = (done.compiled, len(done.refusals), *(done.having[name] for name in INSTRUCTIONS))
        print(f"| {kind} | {' | '.join(map(str, cells))} |", flush=True)
        refusals += [f"{kind}: {problem}" for problem in done.refusals]
    sys.exit("\n".join(refusals) or 0)


def find_disassembler() -> str:
    """Return the path of `nvdisasm`: the one in PATH, or that of a wheel."""
    beside = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/**/nvdisasm")
    path = shutil.which("nvdisasm") or next(map(str, beside), None)
    return path or sys.exit("there is no nvdisasm in PATH; run: pip install nvidia-cuda-nvdisasm")


def count(kind: str, wanted: int, disassembler: str) -> Count:
    """Compile random schedules of a kind of task."""
    from autotune.errors import one_line

    _, target = cuda_target()
    program = program_of(kind)
    done = Count()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        for scheduled in schedules(program, target, wanted, mark_of(kind)):
            try:
                _, code = build(scheduled, target, library)
            except RuntimeError as error:
                done.refusals.append(one_line(error))
                continue
            done.compiled += 1
            done.having.update(instructions(code, disassembler))
    return done


def instructions(code: bytes, disassembler: str) -> set[str]:
    """Return which of the instructions are in a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        listing = subprocess.run([disassembler, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return {name for name in INSTRUCTIONS if re.search(rf"\b{re.escape(name)}\b", listing)}


if __name__ == "__main__":
    main()
