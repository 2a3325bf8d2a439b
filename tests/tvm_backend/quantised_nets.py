"""Small networks in ONNX, quantised as users quantise them, and what the product makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from tvm import relax

from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.export.runners import onnx_session
from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.tasks import extract_tasks

_CPUS = {
    "x86-64-v3": "avx2",
    "alderlake": "avx_vnni",
    "cascadelake": "avx512_vnni",
    "icelake-server": "avx512vbmi",
    "sapphirerapids": "amx_int8",
}


_BEST = next((name for name in reversed(_CPUS) if _CPUS[name] in cpu_flags()), None)
_QUICK = ("x86-64-v3", _BEST)  # words of 16 bits, and bytes


@pytest.fixture(params=[pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in _CPUS])
def cpu(request, target):
    """One kind of CPU after the other, of those whose instructions this one has."""
    return cpu_target(request.param, _CPUS[request.param])


def cpu_target(name: str, flag: str) -> Any:
    """The target of a kind of CPU, if this one has the instructions that it is wanted for."""
    if flag not in cpu_flags():
        pytest.skip(f"this CPU lacks {flag}")
    return tvm.target.Target({"kind": "llvm", "mcpu": name, "num-cores": 2})


@pytest.fixture
def here(target):
    """The kind of CPU with the most instructions of those that this one has."""
    if _BEST is None:
        pytest.skip("this CPU has no instructions for bytes")
    return tvm.target.Target({"kind": "llvm", "mcpu": _BEST, "num-cores": 2})


class Network:
    """A network under construction. Each method adds a layer to the last value."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0, *, opset: int = 17) -> None:
        self.opset = opset
        self.shape = shape
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.last = "input"

    def constant(self, value: Any) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def constant_of(self, dtype: int, value: Any) -> str:
        """A constant of a type that NumPy lacks."""
        name = f"constant{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, dtype, value.shape, value.flatten().tolist()))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.last = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [self.last], self.last, **attributes))
        return self.last

    def requantised(self, scale: float = 0.02, zero: int = 128) -> str:
        """Make bytes of the last value, and floats of them again."""
        quantity = (self.constant(np.float32(scale)), self.constant(np.uint8(zero)))
        return self.add("DequantizeLinear", self.add("QuantizeLinear", self.last, *quantity), *quantity)

    def conv_of_bytes(self, image: str, *weight: int, **window: Any) -> str:
        """Add a convolution of an image whose weights are bytes of a shape."""
        numbers = self.constant(self.rng.integers(-64, 64, weight, np.int8))
        scale = self.constant(np.float32(0.005))
        floats = self.add("DequantizeLinear", numbers, scale, self.constant(np.int8(0)))
        return self.add("Conv", image, floats, **window)

    def conv(self, inner: int, outer: int, kernel: int = 3, *, of: str = "", group: int = 1, **window: Any) -> str:
        weight = self.rng.standard_normal((outer, inner // group, kernel, kernel)) / np.sqrt(inner / group) / kernel
        bias = self.rng.standard_normal(outer) * 0.1
        operands = (self.constant(item.astype(np.float32)) for item in (weight, bias))
        return self.add("Conv", of or self.last, *operands, group=group, **window)

    def gemm(self, inner: int, outer: int) -> str:
        weight = self.rng.standard_normal((outer, inner)) / np.sqrt(inner)
        bias = self.rng.standard_normal(outer)
        operands = (self.constant(item.astype(np.float32)) for item in (weight, bias))
        return self.add("Gemm", self.last, *operands, transB=1)

    def matmul(self, inner: int, outer: int) -> str:
        weight = self.rng.standard_normal((inner, outer)) / np.sqrt(inner)
        return self.add("MatMul", self.last, self.constant(weight.astype(np.float32)))

    def matmul_of(self, numbers: Any, scale: float, zero: int = 0) -> str:
        """Add a product of the last value with integers of a scale and a zero point."""
        rows = self.last
        operands = (numbers, np.float32(scale), numbers.dtype.type(zero))
        return self.add("MatMul", rows, self.add("DequantizeLinear", *map(self.constant, operands)))

    def images_and_rows(self) -> None:
        """Add two blocks of ConvNeXt: a convolution by channels, products of pixels, a sum with the image before."""
        image = self.conv(32, 48, 1)
        for _ in range(2):
            self.conv(48, 48, pads=[1, 1, 1, 1], group=48)
            self.add("Transpose", self.last, perm=[0, 2, 3, 1])
            self.matmul(48, 64)
            self.add("Relu", self.last)
            self.matmul(64, 48)
            self.add("Transpose", self.last, perm=[0, 3, 1, 2])
            image = self.add("Add", self.last, image)

    def model(self) -> onnx.ModelProto:
        data = helper.make_tensor_value_info("input", TensorProto.FLOAT, self.shape)
        result = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [data], [result], self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class _Calibration(CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(1)
        self._left = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]

    def get_next(self) -> Any:
        return {"input": self._left.pop()} if self._left else None


@pytest.fixture
def quantised(tmp_path, written):
    """A function that writes a network quantised by ONNX Runtime, and returns the path."""

    def write(
        network: Network,
        *,
        activations: QuantType = QuantType.QUInt8,
        weights: QuantType = QuantType.QInt8,
        per_channel: bool = True,
        format: QuantFormat = QuantFormat.QDQ,
        without: Sequence[str] = (),
    ) -> Path:
        result = tmp_path / "quantised.onnx"
        quantize_static(
            written(network),
            result,
            _Calibration(network.shape),
            quant_format=format,
            per_channel=per_channel,
            activation_type=activations,
            weight_type=weights,
            nodes_to_exclude=list(without),
        )
        return result

    return write


@pytest.fixture
def quantised_dynamically(tmp_path, written):
    """A function that writes a network whose products ONNX Runtime quantises as they run, and returns the path."""

    def write(network: Network, *, per_channel: bool = True) -> Path:
        result = tmp_path / "dynamic.onnx"
        quantize_dynamic(written(network), result, weight_type=QuantType.QInt8, per_channel=per_channel)
        return result

    return write


@pytest.fixture
def written(tmp_path):
    """A function that writes a network as it is, and returns the path."""

    def write(network: Network) -> Path:
        path = tmp_path / "written.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(network.model()), path)
        return path

    return write


class Outcome(NamedTuple):
    """What the product makes of a model.

    Attributes:
        prepared: Its module.
        kernels: The names of its tasks, without numbers.
        share: The share of the output that differs from ONNX Runtime's.
        error: By how much of the largest value it differs at most.
    """

    prepared: Any
    kernels: list[str]
    share: float
    error: float


def outcome(path: Path, target: Any, *data: Any) -> Outcome:
    """Compile a model, and compare what it puts out with what ONNX Runtime does.

    Args:
        path: The model.
        target: What it is compiled for.
        data: The values of its inputs; drawn, if there are none.
    """
    model = read_model(path, {})
    prepared = prepare(model.module, target)
    tasks = extract_tasks(prepared, target)
    rng = np.random.default_rng(2)
    arrays = data or tuple(rng.standard_normal(spec.shape).astype(np.float32) for spec in model.inputs)
    result = computed(prepared, [task.program for task in tasks], target, *arrays)
    names = [spec.name for spec in model.inputs]
    (expected,) = onnx_session(path, 1).run(None, dict(zip(names, arrays, strict=True)))
    assert result.shape == expected.shape
    assert len(np.unique(expected)) > 1 or expected.size == 1, "a network that says nothing"
    kernels = sorted(task.spec.name.rstrip("0123456789_") for task in tasks)
    largest = np.abs(result.astype(np.float32) - expected).max()
    return Outcome(prepared, kernels, float((result != expected).mean()), float(largest / np.abs(expected).max()))


def computed(prepared: Any, programs: Sequence[Any], target: Any, *arrays: Any) -> Any:
    """The output of a prepared module, compiled without tuning."""
    machine = relax.VirtualMachine(compile_tuned(prepared, programs, {}, target), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
