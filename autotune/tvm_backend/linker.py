"""Find the linker, which turns object files into libraries, for this machine or for the CPU of a board."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from autotune.tvm_backend.isa.instruction_sets import architecture_of

LINKERS = ("ld", "gcc", "cc", "clang")
_HERE = platform.machine()


def find_linker() -> str | None:
    """Return the path of the first linker in PATH; None if there is none there."""
    return next(filter(None, map(shutil.which, LINKERS)), None)


def architecture(triple: str) -> str:
    """Return the architecture of a target's triple, such as `aarch64` of `aarch64-linux-gnu`. Empty: that here."""
    listed = architecture_of(triple or _HERE)
    return listed.name if listed is not None else triple.partition("-")[0] or _HERE


def cross_linkers(arch: str) -> list[list[str]]:
    """Return the commands that link for another architecture, without their arguments, the best first."""
    triple = f"{arch}-linux-gnu"
    return [
        [f"{triple}-ld"],
        [f"{triple}-gcc", "-nostdlib"],
        ["ld.lld"],
        ["clang", f"--target={triple}", "-fuse-ld=lld", "-nostdlib"],
        ["zig", "cc", "-target", triple, "-nostdlib"],
    ]


def linker_for(triple: str) -> list[str] | None:
    """Return the command that links for a target, without its arguments; None if none is in PATH."""
    arch = architecture(triple)
    if arch == architecture(""):
        linker = find_linker()
        return [linker] if linker else None
    return next((command for command in cross_linkers(arch) if all(map(shutil.which, _tools(command)))), None)


def no_debug_sections(command: Sequence[str]) -> str:
    """Return the option with which a linker leaves debug information out: nobody steps through generated code.

    The names of kernels stay, for profilers; only zig drops these, too.
    """
    return "-S" if Path(command[0]).name.endswith(("ld", "ld.lld")) else "-Wl,-S"


def _tools(command: list[str]) -> list[str]:
    """Return the programs that a command needs."""
    return [command[0], *(["ld.lld"] if "-fuse-ld=lld" in command else [])]
