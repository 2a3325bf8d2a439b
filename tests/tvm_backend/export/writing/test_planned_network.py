"""A lowered model is read as blocks with memory, and what cannot be read is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.errors import ModelError
from autotune.tvm_backend.export.writing.planned_network import read_network

Emit = Callable[[Any, Any, Any], Any]


@pytest.fixture(scope="module")
def lowered(target: Any) -> Callable[..., Any]:
    """Lowers a model of one input, as an export does, without tuning. `emit` gets relax, a builder and the input."""
    import tvm
    from tvm import relax

    from autotune.tvm_backend.lowering import finish, prepare

    def make(emit: Emit, shape: tuple[Any, ...] = (4, 8)) -> Any:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(shape, "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(emit(relax, builder, x))
            builder.emit_func_output(out)
        with tvm.transform.PassContext(opt_level=3):
            return finish(prepare(builder.get(), target), target)

    return make


def chain(relax: Any, builder: Any, x: Any) -> Any:
    """Four products that are not fused, with two constants, one of them used thrice, after a reshape."""
    ones = relax.const(np.ones((8, 8), "float32"))
    row = relax.const(np.ones((8, 8), "float32") / 2)
    x = builder.emit(relax.op.reshape(x, (4, 8)))
    for weight in (ones, row, ones, ones):
        x = builder.emit(relax.op.matmul(x, weight))
    return x


def test_a_network_has_a_block_for_each_kernel_and_a_weight_for_each_constant(lowered) -> None:
    network = read_network(lowered(chain, (32,)), 64)
    assert [block.kernel.rstrip("12") for block in network.blocks] == ["packed_matmul"] * 4 + ["reshape"]
    viewed = {view.name: view.viewed for view in network.views}
    read = [viewed.get(block.arguments[0], block.arguments[0]) for block in network.blocks]
    assert read == ["input0", *(block.arguments[-1] for block in network.blocks[:-1])]
    assert [weight.offset for weight in network.weights] == [64, 64 + 256]
    assert {float(value.flat[0]) for value in network.values} == {1.0, 0.5}
    assert network.outputs == (network.blocks[-1].arguments[-1],)
    assert network.views and all(view.shape == (4, 8) for view in network.views)


def test_buffers_share_memory_and_inputs_share_it_with_none(lowered) -> None:
    network = read_network(lowered(chain, (32,)), 64)
    assert len({item.offset for item in network.buffers}) < len(network.buffers) == 5
    assert network.inputs[0].offset not in {item.offset for item in network.buffers}
    assert network.arena_bytes == 3 * 128


def test_an_output_can_be_an_input_or_a_tuple(lowered) -> None:
    network = read_network(lowered(lambda relax, builder, x: relax.Tuple([builder.emit(relax.op.exp(x)), x])), 0)
    assert network.outputs == ("buffer0", "input0")


def test_the_parts_of_a_concatenation_and_its_slices_lie_in_it(lowered) -> None:
    def build(relax: Any, builder: Any, x: Any) -> Any:
        parts = [builder.emit(make(x)) for make in (relax.op.exp, relax.op.cos)]
        whole = builder.emit(relax.op.concat(parts, axis=1))
        sliced = builder.emit(relax.op.strided_slice(whole, [1], [1], [3]))
        return relax.Tuple([builder.emit(relax.op.sin(whole)), builder.emit(relax.op.tan(sliced))])

    network = read_network(lowered(build, (1, 2, 4, 8)), 0)
    places = {item.name: item.offset for item in (*network.inputs, *network.buffers)}
    read, written = zip(*(block.arguments for block in network.blocks), strict=True)
    assert len(network.blocks) == 4 and places[written[1]] == places[written[0]] + 2 * 4 * 8 * 4
    assert places[read[2]] == places[written[0]] and places[read[3]] == places[read[2]] + 4 * 8 * 4


def test_an_operator_that_calls_the_runtime_is_named(lowered) -> None:
    with pytest.raises(ModelError, match=r"cannot write .* calls tvm\.contrib\.sort.*; export it without --source"):
        read_network(lowered(lambda relax, builder, x: relax.op.argsort(x, axis=-1)), 0)


def test_an_open_size_is_refused(lowered, target) -> None:
    import tvm

    rows = tvm.tirx.Var("rows", "int64")
    with pytest.raises(ModelError, match="which is not fixed"):
        read_network(lowered(lambda relax, builder, x: relax.op.exp(x), (rows, 8)), 0)


def test_a_module_with_two_functions_is_refused_and_they_are_named(lowered) -> None:
    module = lowered(chain, (32,))
    main = module["main"]
    module["twice"] = main.with_attr("global_symbol", "twice")
    with pytest.raises(ModelError, match="it has the functions main, twice"):
        read_network(module, 0)
