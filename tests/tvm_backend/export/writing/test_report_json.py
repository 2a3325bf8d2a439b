"""What a report says of a library."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tvm import relax, te

from autotune.storage.paths import JobPaths
from autotune.storage.quantisation import Quantisation
from autotune.tvm_backend.export.model_facts import kernel_work
from autotune.tvm_backend.export.ready_library import KernelWork
from autotune.tvm_backend.export.timing.kernel_times import KernelTime
from autotune.tvm_backend.export.writing import report_json
from autotune.tvm_backend.export.writing.report_json import KernelLimits
from autotune.tvm_backend.expressions import constant_bytes, constant_places
from autotune.tvm_backend.kernels.roofline import Roofline


class TestWhatAKernelTakesAtLeast:
    def test_is_the_longer_of_its_arithmetic_and_of_its_bytes_from_beyond_the_caches(self):
        work = {
            "conv": (KernelWork("conv", gflop=0.1, bytes=10**6, rate=2.0, constants=10**5),),
            "dense": (KernelWork("dense", gflop=0.001, bytes=10**6, constants=10**6),),
            "copy": (KernelWork(None, gflop=0.0, bytes=10**6),),
        }
        limits = KernelLimits(work, Roofline(gflops=100.0, gb_per_s=10.0), cache_bytes=10**6)
        times = [KernelTime(name, 2, 3000.0) for name in work]
        least = [(item["name"], item["least_us"], item["bound"]) for item in limits.kernels(times)]
        assert least == [
            ("conv", pytest.approx(1000), "arithmetic"),
            ("dense", pytest.approx(200), "bandwidth"),
            ("copy", 0.0, "arithmetic"),
        ]

    def test_is_not_known_where_the_machine_was_not_measured(self):
        (item,) = KernelLimits({}, None).kernels([KernelTime("conv", 1, 9.0)])
        assert (item["least_us"], item["bound"]) == (None, None)

    def test_is_not_known_of_work_that_depends_on_values(self):
        work = {"attend": (KernelWork(None, gflop=9e9, bytes=10**9, fixed=False),)}
        (item,) = KernelLimits(work, Roofline(gflops=100.0, gb_per_s=10.0)).kernels([KernelTime("attend", 1, 9.0)])
        told = {name: item[name] for name in ("gflop", "bytes", "streamed", "least_us", "bound")}
        assert told == dict.fromkeys(told)
        assert (item["name"], item["us"]) == ("attend", 9.0)

    def test_counts_constants_and_activations_that_no_cache_holds(self, dense, target):
        constant, activations = 4 * 64 * 32, 4 * 8 * (64 + 32)
        (work,) = kernel_work(dense, {}, target)["dense"]
        assert work.bytes == constant + activations
        assert (work.streamed(activations), work.streamed(activations - 1)) == (constant, constant + activations)
        assert (constant_bytes(dense), constant_places(dense)) == (constant, {"dense": (1,)})

    def test_of_kernels_beside_each_other_is_that_of_all_of_them(self):
        parts = (KernelWork("a", 0.1, 10**6, 2.0, constants=10**5), KernelWork("b", 0.1, 10**6, 1.0, constants=10**5))
        limits = KernelLimits({"both": parts}, Roofline(gflops=100.0, gb_per_s=10.0), cache_bytes=10**6)
        (item,) = limits.kernels([KernelTime("both", 1, 3000.0)])
        assert (item["task"], item["gflop"], item["bytes"]) == (None, 0.2, 2 * 10**6)
        assert (item["streamed"], item["least_us"]) == (2 * 10**5, pytest.approx(1500))


def test_it_names_the_quantised_model_which_others_can_run():
    paths = JobPaths(Path("/work/jobs/0001-net"))
    calibrated, other = (SimpleNamespace(quantisation=told) for told in (Quantisation(8, 0.02, 0.5), None))
    assert report_json.quantised_model(paths, calibrated) == "/work/jobs/0001-net/model.onnx"
    assert report_json.quantised_model(paths, other) is None


@pytest.fixture
def dense():
    """A network of one product, 8 rows by 64 by 32, whose weights are a constant."""
    x, weights = (te.placeholder(shape, name=name) for name, shape in (("x", (8, 64)), ("w", (64, 32))))
    k = te.reduce_axis((0, 64), name="k")
    y = te.compute((8, 32), lambda i, j: te.sum(x[i, k] * weights[k, j], axis=k), name="y")
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType((8, 64), "float32"))
    with builder.function("main", [given]):
        name = builder.add_func(te.create_prim_func([x, weights, y]), "dense")
        constant = relax.const(np.ones((64, 32), "float32"))
        called = relax.call_tir(name, [given, constant], relax.TensorType((8, 32), "float32"))
        builder.emit_func_output(builder.emit(called))
    return builder.get()


@pytest.mark.parametrize("kernels", [["fused_add"], ["fused_add", "integer_table"]])
def test_kernels_of_bytes_that_are_no_tasks_need_their_instructions_too(target, kernels):
    spec = SimpleNamespace(
        activations="fp32",
        target={"kind": "llvm", "mcpu": "icelake-server", "num-cores": 2},
        tasks=(),
        precision="fp32",
    )
    named = report_json.required_instructions(spec, kernels)
    assert "avx512f" in named
    assert ("avx512vbmi" in named) == ("integer_table" in kernels)
