"""However a product is tiled, its results are looked up once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from autotune import strategies
from autotune.strategies import samplers
from autotune.tvm_backend.codegen.result_tables import with_table
from autotune.tvm_backend.intrinsics.amx_and_vector_tiles import OUT
from autotune.tvm_backend.isa.available import byte_table
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Request, propose
from autotune.tvm_backend.search.tasks import extract_programs

from ..quantised_nets import Network, here, quantised, written  # noqa: F401

_RNG = np.random.default_rng(5)
_LIMITS = np.array([100, 0, 255], np.float32)


def arguments_of(program: Any) -> list[Any]:
    """Bytes, weights, a zero point, scales, biases, limits, and a place for the result."""
    shapes = [[int(size) for size in item.ty.shape] for item in program.params]
    data, weight, point, scale, bias, _, result = shapes
    return [
        _RNG.integers(0, 255, data, np.uint8),
        _RNG.integers(-100, 100, weight, np.int8),
        _RNG.integers(0, 255, point, np.uint8),
        (_RNG.random(scale) * 1e-3).astype(np.float32),
        _RNG.integers(-1000, 1000, bias, np.int32),
        _LIMITS,
        np.zeros(result, np.uint8),
    ]


def test_results_of_any_schedule_are_looked_up(quantised: Any, here: Any, tmp_path: Path) -> None:  # noqa: F811
    instructions = byte_table(here)
    if instructions is None:
        pytest.skip("this CPU has no instructions for tables")
    net = Network((1, 16, 10, 10))
    net.conv(16, 96, pads=[1, 1, 1, 1])
    prepared = prepare(read_model(quantised(net), {}).module, here)
    programs = extract_programs(prepared, here).values()
    program = next(item for item in programs if OUT in str(item))
    request = Request((), (), 6, None, 1)
    proposal = propose(Knobs(program, here), strategies.get("random"), samplers.make("greedy", 0.0, True), request)
    assert proposal.candidates
    table = _RNG.permutation(256).astype(np.uint8)
    for number, candidate in enumerate(replay(proposal.candidates, program, here)):
        plain = candidate.sch.mod["main"]
        joined = with_table(plain, instructions)
        assert joined is not None
        arguments = arguments_of(plain)
        results = []
        for name, function in (("plain", plain), ("joined", joined)):
            library = tmp_path / f"{name}{number}.so"
            build_library(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), here, library)
            *operands, result = map(tvm.runtime.tensor, arguments)
            more = [] if name == "plain" else [tvm.runtime.tensor(table)]
            tvm.runtime.load_module(str(library))["main"](*operands, *more, result)
            results.append(result.numpy())
        np.testing.assert_array_equal(table[results[0]], results[1])
