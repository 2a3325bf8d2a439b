"""What a kernel may leave in its arguments."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te

from autotune.errors import WrongResult
from autotune.tvm_backend.kernels.verify import Reference, Verifier, compute, load, save

INF = np.inf
NAN = np.nan
RIGHT = [1, INF, NAN]


@pytest.fixture
def check():
    """Checks a kernel that leaves these values, where `RIGHT` is right."""
    verifier = Verifier(Reference((("float32", (3,)),), {0: np.float32(RIGHT)}), tvm.cpu())
    return lambda values: verifier.check(lambda argument: argument.copyfrom(np.float32(values)))


@pytest.mark.parametrize("values", [[1, -INF, NAN], [1, NAN, INF], [1, INF, INF], [NAN, INF, NAN], [1, INF, 2]])
def test_an_infinity_or_nan_that_the_reference_lacks_is_wrong(check, values):
    check(RIGHT)
    with pytest.raises(WrongResult, match="infinities and NaNs"):
        check(values)


def test_inputs_by_which_a_table_is_read_are_zero(target, as_program):
    table, places = te.placeholder((4,), name="table"), te.placeholder((3,), "int32", name="places")
    read = te.compute((3,), lambda i: table[places[i]] * places[i], name="read")
    (result,) = compute(as_program(table, places, read), dict(target.export())).outputs.values()
    assert result.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", "bfloat16"])
def test_a_reference_is_read_as_it_was_written(tmp_path, dtype):
    outputs = np.array([0, 1, 1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    save(tmp_path / "reference.npz", Reference(((dtype, (3,)), (dtype, (3,))), {1: outputs}))
    read = load(tmp_path / "reference.npz")
    assert read.args == ((dtype, (3,)), (dtype, (3,)))
    assert read.outputs[1].dtype == outputs.dtype
    assert np.array_equal(read.outputs[1], outputs)
