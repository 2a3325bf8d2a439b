"""The linker for the CPU of a board, and a clear reason where there is none; what it leaves out of a library."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import MachineProblem
from autotune.tvm_backend import linker
from autotune.tvm_backend.kernels import machine_check
from autotune.tvm_backend.kernels.build_kernel import link_shared

ARM: dict[str, Any] = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 4}
X86: dict[str, Any] = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v2", "num-cores": 1}
_MACHINE = {"aarch64": 183, "x86_64": 62}  # of the header of an ELF file


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ((), None),
        (("ld", "gcc"), None),
        (("clang",), None),
        (("clang", "ld.lld"), ["ld.lld"]),
        (("zig",), ["zig", "cc", "-target", "aarch64-linux-gnu", "-nostdlib"]),
        (("zig", "aarch64-linux-gnu-gcc"), ["aarch64-linux-gnu-gcc", "-nostdlib"]),
        (("aarch64-linux-gnu-ld", "ld.lld"), ["aarch64-linux-gnu-ld"]),
    ],
)
def test_the_best_linker_for_another_cpu_is_taken(
    tools: tuple[str, ...], expected: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, *tools)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert linker.linker_for("aarch64-linux-gnu") == expected


def test_this_machine_has_its_own_linker() -> None:
    here = [linker.find_linker()]
    assert linker.linker_for("") == here == linker.linker_for(f"{linker.architecture('')}-linux-gnu")


def test_without_a_linker_for_a_board_the_error_names_those_that_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineProblem, match="for cortex-a76: there is no linker for aarch64 in PATH; "):
        machine_check.check_cross_build(ARM)


@pytest.mark.parametrize("target", [ARM, X86], ids=["aarch64", "x86_64"])
def test_a_library_is_of_the_cpu_of_the_board(target: dict[str, Any], tmp_path: Path) -> None:
    arch = linker.architecture(target["mtriple"])
    if linker.linker_for(target["mtriple"]) is None:
        pytest.skip(f"NO LINKER for {arch}")
    machine_check.build_probe(target, tmp_path / "probe.so")
    assert struct.unpack_from("<H", (tmp_path / "probe.so").read_bytes(), 18)[0] == _MACHINE[arch]


@pytest.mark.parametrize("tool", ["ld", "gcc"])
def test_a_library_has_the_names_of_its_functions_and_no_debug_information(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(tool) is None or shutil.which("gcc") is None:
        pytest.skip(f"NO {tool} in PATH")
    source = tmp_path / "kernel.c"
    source.write_text("static int sevenfold(int x) { return 7 * x; }\nint (*kernel)(int) = sevenfold;\n")
    compiled = tmp_path / "kernel.o"
    subprocess.run(["gcc", "-g", "-fPIC", "-c", source, "-o", compiled], check=True)
    assert b".debug_info" in compiled.read_bytes()
    monkeypatch.setattr(linker, "LINKERS", (tool,))
    link_shared(str(tmp_path / "kernel.so"), str(compiled))
    library = (tmp_path / "kernel.so").read_bytes()
    assert b"sevenfold" in library and b".debug_info" not in library


def test_an_unknown_cpu_is_a_problem_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(MachineProblem, match="nothing can be compiled here"):
        machine_check.check_cross_build({**ARM, "mtriple": "pdp11-dec-unix"})
