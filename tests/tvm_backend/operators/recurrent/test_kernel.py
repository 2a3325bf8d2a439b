"""The program of a recurrent layer computes the same with every tile."""

from __future__ import annotations

import numpy as np
import pytest

from ...recurrent_nets import drawn


@pytest.fixture(scope="module")
def outputs(target):
    """Returns what a layer of 20 hidden units, or of so many, puts out with a tile."""
    import tvm

    from autotune.tvm_backend.codegen.lowering_passes import pipeline
    from autotune.tvm_backend.operators.recurrent.kernel import recurrent_kernel

    def run(layer, tile):
        program = recurrent_kernel(layer, tile).with_attr("global_symbol", "main")
        with target:
            built = tvm.tirx.build(tvm.IRModule({"main": program}), target=target, pipeline=pipeline(target))
        directions = layer.directions
        padded = layer.padded
        gates = layer.gates
        plain = drawn(1, directions, padded, layer.hidden, gates)
        blocks = plain.reshape(directions, padded // tile.width, tile.width, layer.hidden, gates)
        given = [drawn(0, layer.steps, layer.batch, directions, gates, padded), blocks.transpose(0, 1, 3, 4, 2)]
        given += [drawn(2 + index, *layer.state_shape) for index in range(layer.states)]
        given += [drawn(4, directions, padded)] if layer.late_reset else []
        made = [np.zeros(shape, np.float32) for shape in (layer.outputs_shape, *[layer.state_shape] * layer.states)]
        arrays = [tvm.runtime.tensor(np.ascontiguousarray(item)) for item in (*given, *made)]
        built["main"](*arrays)
        return [item.numpy() for item in arrays[len(given) :]]

    return run


TILES = [
    (8, 2, 1, 1, ""),
    (8, 1, 2, 2, "sequences"),
    (4, 4, 4, 1, "blocks"),
    (16, 1, 1, 3, "blocks"),
    (4, 1, 2, 1, "blocks", 2),
]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "late GRU", "RNN"])
def test_any_tile_computes_what_single_elements_do(outputs, kind):
    from autotune.tvm_backend.operators.recurrent.layer import RecurrentLayer, activations
    from autotune.tvm_backend.operators.recurrent.tile import PLAIN, Tile

    name = kind.split()[-1]
    functions = activations(name, 2, (), (), ())
    layer = RecurrentLayer(name, 5, 4, 20, (False, True), functions, late_reset=kind.startswith("late"))
    truths = outputs(layer, PLAIN)
    assert all(truth.any() for truth in truths)
    for tile in TILES:
        for output, truth in zip(outputs(layer, Tile(*tile)), truths, strict=True):
            np.testing.assert_allclose(output, truth, rtol=1e-4, atol=1e-5, err_msg=str(tile))


def test_a_step_reads_the_blocks_of_weights_in_the_opposite_order_of_the_step_before():
    from autotune.tvm_backend.operators.recurrent.kernel import back_and_forth

    orders = [[int(back_and_forth(step, block, 4)) for block in range(4)] for step in range(4)]
    assert orders == [[0, 1, 2, 3], [3, 2, 1, 0]] * 2
