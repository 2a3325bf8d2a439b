"""Products look their results up in the tables behind them, and the model computes what it did, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.export.compilation import build_lowered, lower_tuned
from autotune.tvm_backend.graph.joined_tables import TABLE
from autotune.tvm_backend.isa.available import byte_table
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.tasks import extract_programs

from ..quantised_nets import Network, here, quantised, written  # noqa: F401

_RNG = np.random.default_rng(3)


@pytest.fixture
def with_tables(here: Any) -> Any:  # noqa: F811
    if byte_table(here) is None:
        pytest.skip("this CPU has no instructions for tables")
    return here


def swish(net: Network, value: str) -> str:
    return net.add("Mul", net.add("Sigmoid", value), value)


def tables_of(lowered: Any) -> list[str]:
    return [name.name_hint for name in lowered.functions if name.name_hint.startswith(TABLE)]


def run(executable: Any, *arrays: Any) -> Any:
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize(("channels", "height", "width"), [(16, 7, 7), (40, 9, 5), (64, 12, 12), (96, 3, 2)])
def test_a_product_looks_its_results_up(
    quantised: Any,  # noqa: F811
    with_tables: Any,
    monkeypatch: pytest.MonkeyPatch,
    channels: int,
    height: int,
    width: int,
) -> None:
    net = Network((2, 16, height, width))
    swish(net, net.conv(16, channels, pads=[1, 1, 1, 1]))
    swish(net, net.conv(channels, channels, 1))
    net.conv(channels, 32, 1)
    prepared = prepare(read_model(quantised(net), {}).module, with_tables)
    programs = list(extract_programs(prepared, with_tables).values())
    data = _RNG.standard_normal((2, 16, height, width)).astype(np.float32)
    lowered = lower_tuned(prepared, programs, {}, with_tables)
    assert not tables_of(lowered)
    joined = run(build_lowered(lowered, with_tables), data)
    monkeypatch.setattr("autotune.tvm_backend.export.compilation.join_tables", lambda module, target: module)
    apart = lower_tuned(prepared, programs, {}, with_tables)
    assert tables_of(apart)
    np.testing.assert_array_equal(joined, run(build_lowered(apart, with_tables), data))


def test_a_result_that_something_else_reads_stays(quantised: Any, with_tables: Any) -> None:  # noqa: F811
    net = Network((1, 16, 6, 6))
    value = net.conv(16, 16, 1)
    looked_up = net.conv(16, 16, 1, of=swish(net, value))
    net.add("Concat", looked_up, net.conv(16, 32, 1, of=value), axis=1)
    prepared = prepare(read_model(quantised(net), {}).module, with_tables)
    lowered = lower_tuned(prepared, list(extract_programs(prepared, with_tables).values()), {}, with_tables)
    assert tables_of(lowered)


def test_a_product_with_a_table_in_some_of_its_calls_stays(quantised: Any, with_tables: Any) -> None:  # noqa: F811
    net = Network((1, 16, 6, 6))
    net.conv(16, 16, 1, of=net.conv(16, 16, 1, of=swish(net, net.conv(16, 16, 1))))
    prepared = prepare(read_model(quantised(net), {}).module, with_tables)
    lowered = lower_tuned(prepared, list(extract_programs(prepared, with_tables).values()), {}, with_tables)
    assert tables_of(lowered)
