"""Operators that join tensors element by element: ONNX Runtime computes the same, and nothing is stacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from autotune.tvm_backend.export.compilation import compile_untuned
from autotune.tvm_backend.models.onnx.read import read_model

_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})


def joined(tmp_path: Path, kind: str, *inputs: Any) -> tuple[Path, dict[str, Any]]:
    """A file with one operator, and its inputs. What is in a list is a constant."""
    constants = [numpy_helper.from_array(item[0], f"c{at}") for at, item in enumerate(inputs) if isinstance(item, list)]
    given = {f"x{at}": item for at, item in enumerate(inputs) if not isinstance(item, list)}
    names = [f"c{at}" if isinstance(item, list) else f"x{at}" for at, item in enumerate(inputs)]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(item.dtype), item.shape)
        for name, item in given.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"])], "g", values, [onnx.ValueInfoProto(name="y")], constants
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx", given


def check(path: Path, given: dict[str, Any]) -> str:
    """Compare with ONNX Runtime; return the imported module as text."""
    import onnxruntime

    module = read_model(path, {}).module
    machine = relax.VirtualMachine(compile_untuned(module, _TARGET), tvm.cpu())
    output = machine["main"](*map(tvm.runtime.tensor, given.values())).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = session.run(None, given)[0]
    assert output.shape == wanted.shape
    np.testing.assert_allclose(output, wanted, rtol=1e-6)
    return str(module)


def numbers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["Max", "Mean", "Min", "Sum"])
def test_tensors_that_broadcast_are_joined_without_a_stack(tmp_path: Path, kind: str) -> None:
    text = check(*joined(tmp_path, kind, numbers(2, 3, 4), numbers(3, 1), [numbers(1, 1, 1, 1)], numbers(4)))
    assert "stack" not in text
    assert "broadcast_to" not in text


@pytest.mark.parametrize("kind", ["Max", "Mean", "Min", "Sum"])
def test_the_result_of_a_single_tensor_is_that_tensor(tmp_path: Path, kind: str) -> None:
    check(*joined(tmp_path, kind, numbers(2, 3)))


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_integers(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    check(*joined(tmp_path, kind, rng.integers(-9, 9, (2, 3)), rng.integers(-9, 9, (1, 3)), [np.array(1)]))
