"""The tile of a recurrent layer fits into registers, and its threads have enough to do."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.operators.recurrent.layer import RecurrentLayer, activations
from autotune.tvm_backend.operators.recurrent.tile import tile_for


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("registers", [(16, 32), (8, 16), (4, 32), (4, 16)])
def test_the_sums_of_a_chosen_tile_fit_into_registers_and_divide_the_layer(registers, kind):
    for batch, hidden in [(1, 4), (1, 160), (3, 48), (8, 4), (8, 160)]:
        layer = RecurrentLayer(kind, 5, batch, hidden, (False,), activations(kind, 1, (), (), ()))
        tile = tile_for(layer, registers)
        assert tile.chains * tile.sequences * tile.vectors * layer.gates < registers[1]
        assert layer.padded % tile.width == 0
        assert batch % tile.sequences == 0


def test_both_directions_run_side_by_side_and_a_large_one_by_blocks():
    def threads(hidden, reverse):
        functions = activations("LSTM", len(reverse), (), (), ())
        return tile_for(RecurrentLayer("LSTM", 50, 1, hidden, reverse, functions), (16, 32)).threads

    assert threads(256, (False, True)) == "sequences"
    assert threads(256, (False,)) == "blocks"
    assert threads(8, (False,)) == ""


@pytest.mark.parametrize(
    ("hidden", "cores", "runs"), [(256, 1, 1), (256, 2, 2), (256, 3, 2), (320, 2, 5), (512, 16, 8)]
)
def test_blocks_are_divided_so_that_all_threads_have_as_much_to_do_as_one_by_one(hidden, cores, runs):
    layer = RecurrentLayer("LSTM", 50, 1, hidden, (False,), activations("LSTM", 1, (), (), ()))
    assert tile_for(layer, (16, 32), cores).runs == runs
