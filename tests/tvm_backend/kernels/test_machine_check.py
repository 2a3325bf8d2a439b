"""A machine that cannot do the work is told from one that can, and says what helps."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from autotune.errors import DiskProblem, MachineProblem
from autotune.tvm_backend.kernels import machine_check
from autotune.tvm_backend.kernels.machine_check import check_machine
from autotune.tvm_backend.load import load_tvm

GENERIC = {"kind": "llvm", "mcpu": "x86-64", "num-cores": 1}


@pytest.fixture(scope="module", autouse=True)
def tvm_loaded():
    load_tvm("llvm")


def test_this_machine_passes_and_no_file_is_left_behind(tmp_path, monkeypatch):
    from tvm.target import codegen

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    check_machine({**GENERIC, "mcpu": str(codegen.llvm_get_system_cpu())})
    check_machine({"kind": "cuda", "arch": "sm_90", "host": GENERIC})
    assert not list(tmp_path.iterdir()), "and nothing is left behind"


def test_without_a_linker_the_error_names_the_path(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MachineProblem, match=r"no linker in PATH \(/nowhere\); install binutils or gcc"):
        check_machine(GENERIC)


def test_a_linker_that_fails_is_quoted(tmp_path, monkeypatch):
    linker = tmp_path / "ld"
    linker.write_text("#!/bin/sh\necho 'ld: sick today' >&2\nexit 1\n")
    linker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(MachineProblem, match="nothing can be compiled here: .*/ld failed: ld: sick today"):
        check_machine(GENERIC)


def test_without_a_temporary_folder_the_error_says_which_to_make(tmp_path, monkeypatch):
    def nowhere() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(MachineProblem, match=r"no usable temporary folder \(No such file .*; make .*gone writable"):
        check_machine(GENERIC)


def test_a_full_disk_is_the_disks_problem(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(DiskProblem, match="no space left on device"):
        check_machine(GENERIC)


@pytest.mark.skipif("avx512_fp16" in Path("/proc/cpuinfo").read_text(), reason="this CPU has the instructions")
def test_a_target_with_instructions_that_this_cpu_lacks_cannot_run_here():
    with pytest.raises(MachineProblem, match="cannot run what is built for the CPU sapphirerapids .*SIGILL"):
        check_machine({**GENERIC, "mcpu": "sapphirerapids"})


def test_a_target_of_another_architecture_cannot_run_here():
    with pytest.raises(MachineProblem, match="cannot run what is built for the CPU cortex-a72|nothing can be compiled"):
        check_machine({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 1})


def test_a_good_kernel_that_fails_here_is_the_machines_problem(monkeypatch):
    monkeypatch.setattr(machine_check, "check_answers", lambda module, device: 1 / 0)
    with pytest.raises(MachineProblem, match="a kernel that is known to be good fails here"):
        check_machine(GENERIC)
