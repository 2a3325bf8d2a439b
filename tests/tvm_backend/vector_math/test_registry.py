"""Elementary functions as arithmetic: right everywhere, and without the C library."""

from __future__ import annotations

import ctypes
import subprocess
from functools import lru_cache

import numpy as np
import pytest
from scipy import special

from autotune.tvm_backend.kernels.build_kernel import link_shared
from autotune.tvm_backend.vector_math import registry

_LANES = 16
_LIMITS = (88.722839, 88.72284, -87.33655, -103.97208, -103.97209, 89.415985, 89.416, 38.53184, 127.99999, -149.5)
_EDGES = (0.0, np.inf, np.nan, 1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38, 0.5, 1.0, 2.0, 3.0, 0.99999994)
# As in the register MXCSR.
_DENORMAL = 0x02
_UNDERFLOW = 0x10
_ALL_EXCEPTIONS = 0x3F
_LARGE = np.array([0.0, 1.0, 30.0, 200.0, 17000.0, 1e9, 3.4e38, np.inf], np.float32)
_LARGE = np.concatenate([_LARGE, -_LARGE])
_GROWING = ("exp", "exp2", "exp10", "sigmoid", "tanh", "erf", "sinh", "cosh")
_EXPONENTS = (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0, 2.5)
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


def kernel(function, arity, length, dtype="float32"):
    """An elementwise function with a vectorised loop."""
    import tvm
    from tvm import te

    inputs = [te.placeholder((length,), dtype, name=f"x{index}") for index in range(arity)]
    output = te.compute((length,), lambda i: function(*(item[i] for item in inputs)), name="y")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([*inputs, output])}))
    _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[-1], [None, _LANES])
    schedule.vectorize(inner)
    return schedule.mod["main"]


@pytest.fixture(scope="module")
def build(target):
    """A function that makes a library of kernels by name, and returns its path."""
    import tvm

    def make(folder, kernels):
        path = folder / "model.so"
        named = {name: program.with_attr("global_symbol", name) for name, program in kernels.items()}
        tvm.driver.build(tvm.IRModule(named), target=target).export_library(str(path), fcompile=link_shared)
        return path

    return make


@pytest.fixture(scope="module")
def singles(build, made_once):
    """A library of all functions: for many arguments by name, for a few with `few_` before it."""
    from tvm import tirx

    def power(exponent):
        return lambda value: tirx.pow(value, tirx.const(exponent, "float32"))

    def make(folder):
        kernels = {name: kernel(getattr(tirx, name), 1, len(_everywhere())) for name in _TRUE}
        kernels |= {f"few_{name}": kernel(getattr(tirx, name), 1, len(_LARGE)) for name in _GROWING}
        kernels |= {f"pow_{index}": kernel(power(item), 1, len(_bases())) for index, item in enumerate(_EXPONENTS)}
        kernels["pow"] = kernel(tirx.pow, 2, len(_pairs()[0]))
        build(folder, kernels)

    return made_once("elementary_functions", make) / "model.so"


@pytest.fixture(scope="module")
def halves(build, made_once):
    """A library of all functions on 64 numbers of half precision."""
    from tvm import tirx

    def make(folder):
        kernels = {name: kernel(getattr(tirx, name), 1, 64, "float16") for name in _TRUE}
        build(folder, kernels | {"pow": kernel(tirx.pow, 2, 64, "float16")})

    return made_once("elementary_functions_of_halves", make) / "model.so"


def call(library, name, *arrays):
    """What a kernel of a library computes."""
    import tvm

    output = tvm.runtime.empty(arrays[0].shape, str(arrays[0].dtype))
    tvm.runtime.load_module(str(library))[name](*map(tvm.runtime.tensor, arrays), output)
    return output.numpy()


@lru_cache
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
def test_a_function_is_right_for_floats_of_every_size(singles, name):
    function, units = _TRUE[name]
    x = _everywhere()
    values = call(singles, name, x)
    truth = function(x.astype(np.float64))
    _check(values, truth, units)
    zeros = (x == 0) & (truth == 0)
    assert np.array_equal(np.signbit(values[zeros]), np.signbit(truth[zeros]))


@pytest.mark.parametrize("name", _GROWING)
def test_large_arguments_make_no_denormals(singles, name):
    """An Intel CPU needs some 150 cycles for each vector in which an intermediate value is one."""
    import tvm

    main = tvm.runtime.load_module(str(singles))[f"few_{name}"]
    arguments = [tvm.runtime.tensor(_LARGE), tvm.runtime.empty(_LARGE.shape, "float32")]
    flags = ctypes.CDLL("libm.so.6")
    flags.feclearexcept(_ALL_EXCEPTIONS)
    main(*arguments)
    assert not flags.fetestexcept(_DENORMAL | _UNDERFLOW)


@lru_cache
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
def test_powers_are_right_for_all_kinds_of_bases_and_exponents(singles):
    x, y = _pairs()
    values = call(singles, "pow", x, y)
    truth = np.power(x.astype(np.float64), y.astype(np.float64))
    _check(values, truth, 1.0)
    zeros = truth == 0
    assert np.array_equal(np.signbit(values[zeros]), np.signbit(truth[zeros]))


def _bases():
    x = _everywhere()
    return x[~np.isneginf(x)][: (len(x) - _LANES) // _LANES * _LANES]  # there NumPy's root is not what C's powf says


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("index", range(len(_EXPONENTS)))
def test_powers_with_constant_exponents_are_right(singles, index):
    x = _bases()
    _check(call(singles, f"pow_{index}", x), np.power(x.astype(np.float64), _EXPONENTS[index]), 2.0)


def _undefined(library):
    done = subprocess.run([*_LIBRARY, str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("precision", ("singles", "halves"))
def test_a_library_of_all_functions_needs_none_of_the_c_library(request, precision):
    symbols = _undefined(request.getfixturevalue(precision))
    assert symbols, "nm finds some"
    assert {symbol for symbol in symbols if not symbol.startswith(("_", "TVM"))} <= {"memcpy"}, "a power of one"


@pytest.mark.parametrize("name", ("erf", "sin", "log1p"))
def test_half_precision_is_computed_in_single_precision(halves, name):
    x = np.linspace(-0.75, 8, 64).astype(np.float16)
    assert np.allclose(call(halves, name, x), _TRUE[name][0](x.astype(np.float64)), atol=6e-4, rtol=6e-4)


def test_double_precision_stays_with_the_c_library(build, tmp_path):
    from tvm import tirx

    x = np.linspace(-20, 20, 1024)
    library = build(tmp_path, {"main": kernel(tirx.exp, 1, 1024, "float64")})
    assert np.allclose(call(library, "main", x), np.exp(x), rtol=1e-15)


def test_code_that_is_to_be_independent_calls_the_c_library(build, tmp_path):
    from tvm import tirx

    kernels = {"main": kernel(tirx.exp, 1, 64)}
    with registry.library_functions():
        assert "expf" in _undefined(build(tmp_path, kernels))
    registry.register()  # once more, which changes nothing
    assert "expf" not in _undefined(build(tmp_path, kernels))
