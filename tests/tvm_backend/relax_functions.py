"""A function before and after a rewrite of its graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def function(build: Any, *shapes: tuple[Any, ...], name: str = "main") -> Any:
    """A module with a function that computes what `build(emit, *inputs)` makes of inputs of these shapes."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{index}", relax.TensorType(shape, "float32")) for index, shape in enumerate(shapes)]
    with builder.function(name, inputs):
        with builder.dataflow():
            made = build(builder.emit, *inputs)
            output = builder.emit_output(relax.Tuple(list(made)) if isinstance(made, tuple) else made)
        builder.emit_func_output(output)
    return builder.get()


def run(module: Any) -> Any:
    arrays = [
        np.random.default_rng(index).uniform(0.5, 1.5, [int(size) for size in param.ty.shape]).astype(np.float32)
        for index, param in enumerate(module["main"].params)
    ]
    machine = relax.VirtualMachine(relax.build(module, _TARGET), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def operators(module: Any) -> list[str]:
    """The operators of `main` in order, a tensor program by its name."""
    names = []
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                program = binding.value.op.name == "relax.call_tir"
                name = binding.value.args[0].name_hint if program else binding.value.op.name
                names.append(str(name).removeprefix("relax."))
    return names


def constant(*shape: int) -> Any:
    """A constant of a shape."""
    return relax.const(np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape).astype(np.float32))


@pytest.fixture
def const():
    """Constants by shape."""
    return constant


@pytest.fixture
def rewritten():
    """The operators of a function after a rewrite, which must not change what it computes."""

    def check(rewrite: Any, build: Any, *shapes: tuple[int, ...]) -> list[str]:
        before = function(build, *shapes)
        after = rewrite(before)
        output = run(after)
        wanted = run(before)
        assert output.shape == wanted.shape
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)
        return operators(after)

    return check
