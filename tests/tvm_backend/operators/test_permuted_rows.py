"""Permutations of the rows of heads move every element to its place."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.intrinsics.bfloat16 import rounded
from autotune.tvm_backend.operators.permuted_rows import Heads, pairs_shape, permuted_pairs_program, permuted_program

from ..quantised_nets import cpu_target

KEPT = ((2, 5, 3, 32), (0, 2, 1, 3))
EXCHANGED = ((2, 32, 3, 48), (0, 2, 3, 1))
CASES = {
    "rows kept": KEPT,
    "an odd number of rows and of heads": ((7, 5, 16), (1, 0, 2)),
    "an even number of rows": ((1, 6, 2, 16), (0, 2, 1, 3)),
    "one row": ((3, 1, 4, 16), (0, 2, 1, 3)),
    "exchanged": EXCHANGED,
    "exchanged before heads": ((3, 4, 16, 32), (0, 1, 3, 2)),
    "rows and heads to the end": ((2, 16, 3, 16), (0, 3, 1, 2)),
    "many": ((1, 128, 4, 64), (0, 2, 3, 1)),
}


def run(program, shape, result, dtype="float32"):
    """What a program makes of numbers of a shape."""
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    target = cpu_target("x86-64-v3", "avx2")
    module = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    output = tvm.runtime.tensor(np.zeros(result, dtype))
    built = tvm.tirx.build(module, target=target, pipeline=pipeline(target))
    built["main"](tvm.runtime.tensor(data), output)
    return data, output.numpy()


@pytest.mark.parametrize(("shape", "axes"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", ("float32", "uint16"))
def test_every_element_goes_to_its_place(shape, axes, dtype):
    heads = Heads.of(shape, axes)
    data, output = run(permuted_program(heads, dtype), heads.shape, heads.result, dtype)
    wanted = np.ascontiguousarray(data.reshape(shape).transpose(axes)).reshape(heads.result)
    np.testing.assert_array_equal(output, wanted if dtype == "float32" else rounded(wanted))


@pytest.mark.parametrize(("shape", "axes"), (((2, 6, 3, 32), (0, 2, 1, 3)), EXCHANGED), ids=("kept", "exchanged"))
def test_matrices_are_packed_as_weights(shape, axes):
    heads = Heads.of(shape, axes)
    data, output = run(permuted_pairs_program(heads), heads.shape, pairs_shape(heads), "uint16")
    *_, inner, columns = heads.result
    pairs = data.transpose(axes).reshape(-1, inner // 2, 2, columns // 16, 16)
    np.testing.assert_array_equal(output, rounded(pairs.transpose(0, 3, 1, 4, 2)).reshape(pairs_shape(heads)))


@pytest.mark.parametrize(
    ("shape", "axes"),
    (
        ((2, 5, 3, 24), (0, 2, 1, 3)),  # elements that are no whole vectors
        ((2, 24, 3, 32), (0, 2, 3, 1)),  # rows that are none
        ((2, 16, 16, 16), (1, 0, 2, 3)),  # images are moved
        ((2, 16, 16, 16), (0, 3, 2, 1)),  # heads between rows and elements
        ((16, 16), (1, 0)),
    ),
)
def test_what_is_none_of_these_permutations_stays(shape, axes):
    assert Heads.of(shape, axes) is None
