"""Run kernels under ThreadSanitizer, which finds races, or AddressSanitizer, which finds accesses out of bounds.

To the sanitizer, each thread of a block is a thread. Barriers, and what a warp does together, order the threads of a
block; nothing else does. Blocks run one after the other, so that a race between two of them is not seen. Variables in
shared memory have forbidden gaps between them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from .image import HEADER, HERE, LANGUAGE, half_instructions, precompile
from .translate import translate

Sanitizer = Literal["thread", "address"]
_DEFINES = {"thread": "-DCUDA_ON_CPU_TSAN", "address": "-DCUDA_ON_CPU_ASAN"}
_FLAGS = {
    "thread": ("-fsanitize=thread",),
    "address": ("-fsanitize=address,alignment", "-fsanitize-sections=cuda_shared"),
}
_ENVIRONMENT = {
    "TSAN_OPTIONS": "halt_on_error=0:report_signal_unsafe=0:exitcode=0",
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
}
_COMPLAINT = re.compile(r"^(?:SUMMARY: |ERROR: |.*runtime error: |a kernel failed).*$", re.MULTILINE)


def compile_parts(folder: Path, sanitizer: Sanitizer) -> None:
    """Compile what all programs of a sanitizer share into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["g++", *precompile(folder, *_kernel_options(sanitizer)), *LANGUAGE], check=True)
    for name in ("block", "harness"):
        options = ["-O2", "-g1", _DEFINES[sanitizer], "-c", str(HERE / f"{name}.cc"), "-o", str(folder / f"{name}.o")]
        subprocess.run(["g++", *LANGUAGE, *options], check=True)


def compile_program(source: str, parts: Path, sanitizer: Sanitizer, program: Path) -> None:
    """Compile CUDA C to a program that runs launches under a sanitizer.

    Raises:
        CalledProcessError: g++ refuses it.
    """
    text = program.with_suffix(".cc")
    text.write_text(f'#include "{HEADER}"\n{translate(source)}')
    objects = [str(parts / f"{name}.o") for name in ("block", "harness")]
    command = ["g++", *_kernel_options(sanitizer), f"-I{parts}", *LANGUAGE, "-rdynamic", "-o", str(program), str(text)]
    subprocess.run([*command, *objects, "-ldl"], check=True, capture_output=True)


def _kernel_options(sanitizer: Sanitizer) -> list[str]:
    return ["-O1", "-g1", *half_instructions(), *_FLAGS[sanitizer]]


def complaints(program: Path, launches: Path, *, seed: int | None = None, limit_s: float = 300) -> list[str]:
    """Run launches; return what the sanitizer says of them, each complaint once.

    Args:
        launches: As the stand-in writes them.
        seed: Of the order in which threads run, and of when asynchronous copies happen; None for one after the other.
    """
    fixed = (
        [tool, "-R"] if (tool := shutil.which("setarch")) else []
    )  # ThreadSanitizer needs addresses where it expects them
    environment = {**os.environ, **_ENVIRONMENT, **({} if seed is None else {"CUDA_ON_CPU_SEED": str(seed)})}
    environment.pop("LD_LIBRARY_PATH", None)
    command = [*fixed, str(program), str(launches)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment, check=False)
    lines = list(dict.fromkeys(_COMPLAINT.findall(done.stderr)))
    return lines or ([f"exit {done.returncode}: {done.stderr[-300:]}"] if done.returncode else [])
