"""Exports read and write nothing outside of their tensors: neither those that they are given nor those between."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import tvm

from autotune.tvm_backend.export.writing import files
from autotune.tvm_backend.target import resolve_target, tvm_target
from tests.tvm_backend.guarded import ends_well, guarded
from tests.tvm_backend.handed_over import Array, built, lowered, machine, outputs_of, outputs_of_program
from tests.tvm_backend.handed_over import Network as Lowered

from ..quantised_nets import Network, quantised, written

__all__ = ["quantised", "written"]  # fixtures
Precision = Literal["fp32", "bf16", "int8"]


@dataclass(frozen=True)
class Case:
    """A network by the function that adds its layers, the shape of its input, and the precision of its export."""

    layers: Callable[[Network], object]
    shape: tuple[int, ...]
    precision: Precision

    def __str__(self) -> str:
        return f"{self.layers.__name__}-{'x'.join(map(str, self.shape))}-{self.precision}"


def few_channels(net: Network) -> None:
    inner = net.shape[1]
    net.add("Add", net.conv(inner, inner, 3, pads=[1, 1, 1, 1]), "input")


def beginning(net: Network) -> None:
    net.conv(3, 32, 7, strides=[2, 2], pads=[3, 3, 3, 3])
    net.add("MaxPool", net.add("Relu", net.last), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.conv(32, 32, 3, pads=[1, 1, 1, 1])


def by_channel(net: Network) -> None:
    net.conv(3, 24, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    net.conv(24, 24, 5, pads=[2, 2, 2, 2], group=24)
    net.conv(24, 24, 3, pads=[2, 2, 2, 2], dilations=[2, 2], group=24)
    net.conv(24, 7, 1)


def groups(net: Network) -> None:
    net.conv(24, 36, 3, pads=[1, 1, 1, 1], group=3)
    net.conv(36, 20, 1, group=2)


def without_padding(net: Network) -> None:
    net.conv(3, 8, 3)
    net.conv(8, 8, 3)
    net.conv(8, 5, 3, strides=[2, 2])


def side_by_side(net: Network) -> None:
    parts = [net.conv(3, 16, size, of="input", pads=[size // 2] * 4) for size in (1, 3)]
    net.add("Concat", *parts, axis=1)
    net.conv(32, 33, 1)
    net.add("AveragePool", net.last, kernel_shape=[3, 3], strides=[2, 2])


def gated(net: Network) -> None:
    image = net.conv(3, 16, 3, pads=[1, 1, 1, 1])
    net.add("GlobalAveragePool", image)
    net.conv(16, 4, 1)
    net.conv(4, 16, 1)
    net.add("Mul", image, net.add("Sigmoid", net.last))


def rows(net: Network) -> None:
    net.matmul(24, 40)
    net.add("Relu", net.last)
    net.matmul(40, 17)
    net.add("Softmax", net.last)


def images_and_rows(net: Network) -> None:
    net.images_and_rows()


RISKIEST = (
    Case(few_channels, (1, 3, 16, 16), "int8"),
    Case(by_channel, (1, 3, 13, 16), "bf16"),
    Case(beginning, (1, 3, 32, 32), "fp32"),
)
OTHERS = (
    Case(few_channels, (1, 4, 8, 8), "int8"),
    Case(few_channels, (1, 1, 16, 16), "int8"),
    Case(few_channels, (1, 3, 16, 16), "bf16"),
    Case(few_channels, (2, 3, 7, 9), "fp32"),
    Case(beginning, (1, 3, 32, 32), "int8"),
    Case(beginning, (1, 3, 29, 31), "bf16"),
    Case(by_channel, (1, 3, 32, 32), "int8"),
    Case(by_channel, (1, 3, 29, 31), "fp32"),
    Case(groups, (1, 24, 8, 8), "int8"),
    Case(groups, (1, 24, 7, 7), "bf16"),
    Case(without_padding, (2, 3, 17, 16), "int8"),
    Case(without_padding, (1, 3, 16, 16), "bf16"),
    Case(side_by_side, (1, 3, 16, 16), "int8"),
    Case(side_by_side, (1, 3, 16, 16), "fp32"),
    Case(gated, (1, 3, 16, 16), "int8"),
    Case(gated, (1, 3, 16, 16), "bf16"),
    Case(rows, (8, 24), "int8"),
    Case(rows, (8, 24), "fp32"),
    Case(images_and_rows, (1, 32, 8, 8), "int8"),
    Case(images_and_rows, (1, 32, 7, 7), "bf16"),
)


@pytest.fixture
def lowered_case(target, quantised, tmp_path):
    """A network as it was lowered for this CPU, and values of its input."""

    def make(case: Case) -> tuple[Lowered, Array]:
        net = Network(case.shape)
        case.layers(net)
        path = tmp_path / "floats.onnx"
        if case.precision == "int8":
            path = quantised(net)
        else:
            onnx.save(onnx.shape_inference.infer_shapes(net.model()), path)
        here = tvm_target(resolve_target("llvm", 2).description)
        network = lowered(path, here, "bf16" if case.precision == "bf16" else "fp32")
        return network, net.rng.standard_normal(case.shape).astype(np.float32)

    return make


def stays_inside(library: Path, kernels: frozenset[str], data: Array) -> bool:
    """Whether an export computes the same on a guarded input, and its kernels run on guarded tensors."""
    model = machine(library)
    expected = outputs_of(model["main"](tvm.runtime.tensor(data)))
    computed = outputs_of(model["main"](tvm.runtime.from_dlpack(guarded(data))))
    called = []

    def instrument(kernel: Any, name: str, before: bool, _returned: object, *arguments: Any) -> None:
        if before and name in kernels:
            called.append(name)
            kernel(*(tvm.runtime.from_dlpack(guarded(tensor.numpy())) for tensor in arguments))

    model.set_instrument(instrument)
    model["main"](tvm.runtime.tensor(data))
    same = [np.array_equal(*pair) for pair in zip(computed, expected, strict=True)]
    return all(same) and bool(called)


def check_library(network: Lowered, data: Array, folder: Path) -> None:
    functions = network.lowered.functions.items()
    kernels = frozenset(name.name_hint for name, item in functions if isinstance(item, tvm.tirx.PrimFunc))
    library = network.library(folder)
    assert ends_well(lambda: stays_inside(library, kernels, data))


_GUARDED = """\
#include <sys/mman.h>
#include <cstdlib>
#include "shim.h"

static void* guarded(Type type, std::initializer_list<int64_t> shape) {
  size_t bytes = type.bits / 8;
  for (int64_t size : shape) bytes *= size;
  const size_t page = 4096, room = (bytes + 63) / 64 * 64, pages = (room + page - 1) / page * page;
  void* all = mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED || mprotect(static_cast<char*>(all) + pages, page, PROT_NONE) != 0) std::abort();
  return static_cast<char*>(all) + pages - room;
}
"""
_BUFFER = re.compile(r"Tensor (\w+) = arena\.at\(\d+, (\w+), (\{[\d, ]+\})\);")


def with_guarded_buffers(text: str) -> str:
    """The text of network.cpp, with its input, its output and what lies between in memory of their own."""
    changed, count = _BUFFER.subn(r"Tensor \1{guarded(\2, \3), \2, \3};", text)
    assert count >= 2
    return _GUARDED + changed


def check_program(network: Lowered, data: Array, folder: Path) -> None:
    expected = outputs_of(machine(network.library(folder))["main"](tvm.runtime.tensor(data)))
    source = network.source(folder)
    text = source / files.NETWORK
    text.write_text(with_guarded_buffers(text.read_text()))
    for computed, wanted in zip(outputs_of_program(built(source), folder, [data], expected), expected, strict=True):
        np.testing.assert_array_equal(computed, wanted)


def overruns() -> Iterator[Callable[[], object]]:
    array = guarded(np.zeros(16, np.float32))
    behind = np.lib.stride_tricks.as_strided(array, (17,))
    before = np.lib.stride_tricks.as_strided(guarded(np.zeros(1024, np.float32))[::-1], (1025,), (-4,))
    yield lambda: behind[16]
    yield lambda: before[1024]


def test_one_number_beyond_a_guarded_tensor_or_before_it_ends_the_process() -> None:
    assert ends_well(lambda: guarded(np.arange(5)).tolist() == [0, 1, 2, 3, 4])
    assert not any(ends_well(lambda read=read: read() == 0) for read in overruns())


@pytest.mark.parametrize("case", RISKIEST, ids=str)
def test_an_export_stays_inside_its_tensors(lowered_case, tmp_path, case):
    check_library(*lowered_case(case), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_any_export_stays_inside_its_tensors(lowered_case, tmp_path, case):
    check_library(*lowered_case(case), tmp_path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("case", RISKIEST[:1], ids=str)
def test_a_program_stays_inside_its_buffers(lowered_case, tmp_path, case):
    check_program(*lowered_case(case), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("case", (*RISKIEST[1:], *OTHERS[:8]), ids=str)
def test_any_program_stays_inside_its_buffers(lowered_case, tmp_path, case):
    check_program(*lowered_case(case), tmp_path)
