"""Each instruction set says of itself what the engines, the reports and the programs of exports rely on."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import pytest
from tvm.s_tir import TensorIntrin

from autotune.tvm_backend import isa
from autotune.tvm_backend.intrinsics import dots
from autotune.tvm_backend.isa import instruction_sets
from autotune.tvm_backend.isa.instruction_sets import ARCHITECTURES, SETS, architecture_of, max_operations, permissions
from autotune.tvm_backend.isa.values import LANES, InstructionSet

by_set = pytest.mark.parametrize("instructions", SETS, ids=lambda item: item.features[0].llvm)


def test_a_process_that_reads_the_sets_loads_no_tvm():
    loaded = "print(sorted({'tvm', 'numpy', 'onnx'} & set(sys.modules)))"
    code = f"import sys, {instruction_sets.__name__}; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@by_set
def test_a_kernel_asks_for_features_that_a_report_names(instructions: InstructionSet):
    """Otherwise a library would be loaded by a CPU on which its first call ends the process."""
    every = {
        feature.llvm for item in SETS for feature in item.features if item.architecture == instructions.architecture
    }
    own = {feature.llvm: feature.kernels for feature in instructions.features}
    for dot in instructions.dots:
        assert {*dot.features} <= every
        assert all(dot.elements in own[name] for name in dot.features if own.get(name))
    for kernel in (instructions.depthwise, instructions.byte_table):
        assert kernel is None or {*kernel.features} <= every
    for elements, name in (instructions.tiles.features if instructions.tiles else {}).items():
        assert elements in own[name]


@by_set
def test_sums_of_an_intrinsic_fill_the_channels_that_lie_together(target, instructions: InstructionSet):
    dots.register()
    for dot in instructions.dots:
        assert LANES % dot.lanes == 0
        assert dot.registers >= LANES // dot.lanes
        assert TensorIntrin.get(dot.name) is not None


@by_set
def test_a_set_is_of_an_architecture_that_is_listed(instructions: InstructionSet):
    assert instructions.architecture in {item.name for item in ARCHITECTURES}


@pytest.mark.parametrize(
    ("triple", "name"),
    [("x86_64-pc-linux-gnu", "x86_64"), ("arm64-apple-darwin", "aarch64"), ("aarch64-linux-gnu", "aarch64")],
)
def test_a_triple_begins_with_its_architecture_or_with_another_name_of_it(triple: str, name: str):
    architecture = architecture_of(triple)
    assert architecture is not None
    assert architecture.name == name


def test_an_architecture_that_is_not_listed_is_none_of_the_others():
    assert architecture_of("riscv64-linux-gnu") is None


def test_only_a_library_with_tiles_needs_a_permission_and_its_programs_can_ask_for_it():
    assert list(permissions(["avx512_vnni", "i8mm"])) == []
    (permission,) = permissions(["avx2", "amx_tile"])
    assert "namespace amx" in files(isa).joinpath(permission.header).read_text()


def test_a_cpu_with_tiles_does_the_most_operations():
    assert max_operations(["sse4_2", "amx_tile"]) > max_operations(["sse4_2", "avx2"]) == max_operations([])
