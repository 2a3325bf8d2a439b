"""Elementary functions as arithmetic: right everywhere, and without the C library."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from scipy import special

from autotune.tvm_backend.kernels.compile import link_shared
from autotune.tvm_backend.vector_math import registry

_LANES = 16
_LIMITS = (88.722839, 88.72284, -87.33655, -103.97208, -103.97209, 89.415985, 89.416, 38.53184, 127.99999, -149.5)
_EDGES = (0.0, np.inf, np.nan, 1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38, 0.5, 1.0, 2.0, 3.0, 0.99999994)
# As in the register MXCSR.
_DENORMAL = 0x02
_UNDERFLOW = 0x10
_ALL_EXCEPTIONS = 0x3F
_LIBRARY = ("nm", "-D", "--undefined-only")

# Of each function the true values, and how many units in the last place ours may be off.
_TRUE = {
    "exp": (np.exp, 1.5),
    "exp2": (np.exp2, 1.5),
    "exp10": (special.exp10, 1.5),
    "tanh": (np.tanh, 2.5),
    "sigmoid": (special.expit, 2.5),
    "erf": (special.erf, 6.0),
    "sinh": (np.sinh, 2.5),
    "cosh": (np.cosh, 2.0),
    "log": (np.log, 1.0),
    "log2": (np.log2, 2.0),
    "log10": (np.log10, 2.0),
    "log1p": (np.log1p, 2.5),
    "asinh": (np.arcsinh, 3.0),
    "acosh": (np.arccosh, 3.0),
    "atanh": (np.arctanh, 3.0),
    "sin": (np.sin, 2.0),
    "cos": (np.cos, 2.0),
    "tan": (np.tan, 4.0),
    "asin": (np.arcsin, 2.0),
    "acos": (np.arccos, 2.0),
    "atan": (np.arctan, 2.0),
}


@pytest.fixture(scope="module")
def build(target, tmp_path_factory):
    """A library of an elementwise function with vectorised loops, and its path."""
    import tvm
    from tvm import te

    def make(function, arity, length, dtype="float32"):
        inputs = [te.placeholder((length,), dtype, name=f"x{index}") for index in range(arity)]
        output = te.compute((length,), lambda i: function(*(item[i] for item in inputs)), name="y")
        schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([*inputs, output])}))
        _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[-1], [None, _LANES])
        schedule.vectorize(inner)
        path = tmp_path_factory.mktemp("library") / "model.so"
        tvm.driver.build(schedule.mod, target=target).export_library(str(path), fcompile=link_shared)
        return path

    return make


@pytest.fixture(scope="module")
def run(build):
    """The values of an elementwise function, computed by a library of vectorised loops."""
    import tvm

    def values(function, *arrays):
        dtype = str(arrays[0].dtype)
        length = len(arrays[0])
        main = tvm.runtime.load_module(str(build(function, len(arrays), length, dtype)))["main"]
        output = tvm.runtime.empty((length,), dtype)
        main(*map(tvm.runtime.tensor, arrays), output)
        return output.numpy()

    return values


def _everywhere():
    """Floats of all signs and exponents, more of them around zero, and those at which something changes."""
    sampled = np.arange(0, 2**32, 1 << 13, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [np.linspace(-size, size, 40_001, dtype=np.float32) for size in (1.5, 12, 110)]
    single = np.array([*_LIMITS, *_EDGES, *(-value for value in _EDGES)], np.float32)
    floats = np.concatenate([sampled, *dense, single])
    return np.concatenate([floats, np.zeros(-len(floats) % _LANES, np.float32)])


def _check(values, truth, units):
    """Every value within so many units in the last place, infinities and what is not a number included."""
    nearest = truth.astype(np.float32)
    assert np.array_equal(np.isnan(values), np.isnan(nearest))
    infinite = np.isinf(nearest)
    assert np.array_equal(values[infinite], nearest[infinite])
    finite = np.isfinite(nearest)
    unit = np.spacing(np.abs(nearest[finite])).astype(np.float64)
    assert (np.abs(values[finite].astype(np.float64) - truth[finite]) / unit).max() <= units


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", _TRUE)
def test_a_function_is_right_for_floats_of_every_size(run, name):
    from tvm import tirx

    function, units = _TRUE[name]
    x = _everywhere()
    values = run(getattr(tirx, name), x)
    truth = function(x.astype(np.float64))
    _check(values, truth, units)
    zeros = (x == 0) & (truth == 0)
    assert np.array_equal(np.signbit(values[zeros]), np.signbit(truth[zeros]))


@pytest.mark.parametrize("name", ("exp", "exp2", "exp10", "sigmoid", "tanh", "erf", "sinh", "cosh"))
def test_large_arguments_make_no_denormals(build, name):
    """An Intel CPU needs some 150 cycles for each vector in which an intermediate value is one."""
    import tvm
    from tvm import tirx

    x = np.array([0.0, 1.0, 30.0, 200.0, 17000.0, 1e9, 3.4e38, np.inf], np.float32)
    x = np.concatenate([x, -x])
    main = tvm.runtime.load_module(str(build(getattr(tirx, name), 1, len(x))))["main"]
    arguments = [tvm.runtime.tensor(x), tvm.runtime.empty(x.shape, "float32")]
    flags = ctypes.CDLL("libm.so.6")
    flags.feclearexcept(_ALL_EXCEPTIONS)
    main(*arguments)
    assert not flags.fetestexcept(_DENORMAL | _UNDERFLOW)


def _pairs():
    """Bases and exponents: every pair of special ones, and random ones with powers in the range of float32."""
    special_ones = np.array(
        [*_EDGES, *(-value for value in _EDGES), 4.0, -4.0, 1.5, -1.5, 16777215, 16777216, 8388607.5, 1e-10], np.float32
    )
    x, y = (grid.ravel() for grid in np.meshgrid(special_ones, special_ones))
    rng = np.random.default_rng(1)
    bases = np.exp(rng.uniform(-100, 88, 100_000)).astype(np.float32)
    exponents = (rng.uniform(-110, 95, len(bases)) / np.log(bases)).astype(np.float32)
    length = (len(x) + len(bases)) // _LANES * _LANES
    return np.concatenate([x, bases])[:length], np.concatenate([y, exponents])[:length]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_are_right_for_all_kinds_of_bases_and_exponents(run):
    from tvm import tirx

    x, y = _pairs()
    values = run(tirx.pow, x, y)
    truth = np.power(x.astype(np.float64), y.astype(np.float64))
    _check(values, truth, 1.0)
    zeros = truth == 0
    assert np.array_equal(np.signbit(values[zeros]), np.signbit(truth[zeros]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("exponent", (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0, 2.5))
def test_powers_with_constant_exponents_are_right(run, exponent):
    from tvm import tirx

    x = _everywhere()
    x = x[~np.isneginf(x)][: (len(x) - _LANES) // _LANES * _LANES]  # there NumPy's root is not what C's powf says
    values = run(lambda value: tirx.pow(value, tirx.const(exponent, "float32")), x)
    _check(values, np.power(x.astype(np.float64), exponent), 2.0)


def _undefined(library):
    done = subprocess.run([*_LIBRARY, str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("name", [*_TRUE, "pow"])
@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_the_library_needs_no_function_of_the_c_library(build, name, dtype):
    from tvm import tirx

    library = build(getattr(tirx, name), 2 if name == "pow" else 1, 64, dtype)
    assert not {symbol for symbol in _undefined(library) if not symbol.startswith(("_", "TVM"))}


def test_half_precision_is_computed_in_single_precision(run):
    from tvm import tirx

    x = np.linspace(-8, 8, 1024).astype(np.float16)
    assert np.allclose(run(tirx.erf, x), special.erf(x.astype(np.float64)), atol=6e-4)


def test_double_precision_stays_with_the_c_library(run):
    from tvm import tirx

    x = np.linspace(-20, 20, 1024)
    assert np.allclose(run(tirx.exp, x), np.exp(x), rtol=1e-15)


def test_code_that_is_to_be_independent_calls_the_c_library(build):
    from tvm import tirx

    with registry.library_functions():
        library = build(tirx.exp, 1, 64)
    assert "expf" in _undefined(library)
    assert "expf" not in _undefined(build(tirx.exp, 1, 64))


def test_registering_again_changes_nothing(build):
    from tvm import tirx

    registry.register()
    registry.register()
    assert "expf" not in _undefined(build(tirx.exp, 1, 64))
