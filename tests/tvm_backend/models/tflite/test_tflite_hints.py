"""What operators say of inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autotune.tvm_backend.models.hints import tflite_hints
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer


def test_indices_have_the_rows_of_the_smallest_table(network: Any, tmp_path: Path) -> None:
    ids = network.input("ids", 1, 5, dtype=np.int32)
    more = network.input("more", 5, dtype=np.int32)
    x = network.input("x", 7, 3)
    table = network.constant(np.ones((11, 4), np.float32))
    other = network.constant(np.ones((2, 9), np.float32))
    flat = network.add("RESHAPE", ids, shape=(5,), dtype=np.int32)
    lookups = [
        network.add("GATHER", table, flat, shape=(5, 4), kind="GatherOptions", axis=0),
        network.add("GATHER", other, flat, shape=(2, 5), kind="GatherOptions", axis=1),
        network.add("EMBEDDING_LOOKUP", more, table, shape=(5, 4)),
        network.add("GATHER", x, more, shape=(5, 3), kind="GatherOptions", axis=0),
    ]
    assert tflite_hints(Flatbuffer(network.write(tmp_path / "m", *lookups))).vocabularies == {"ids": 9, "more": 11}


def test_a_column_of_an_input_is_a_part_of_it(network: Any, tmp_path: Path) -> None:
    pairs = network.input("pairs", 5, 2, dtype=np.int32)
    begin, size = (network.constant(np.array(item, np.int32)) for item in ((0, 1), (5, 1)))
    column = network.add("SLICE", pairs, begin, size, shape=(5, 1), dtype=np.int32)
    table = network.constant(np.ones((11, 4), np.float32))
    made = network.add("GATHER", table, column, shape=(5, 1, 4), kind="GatherOptions", axis=0)
    hints = tflite_hints(Flatbuffer(network.write(tmp_path / "m", made)))
    assert hints.vocabularies == {"pairs": 11}
    assert hints.rows == {}


def test_outputs_of_sigmoids_and_softmaxes_are_probabilities(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    sure = network.add("LOGISTIC", x, shape=(4,))
    seen = network.add("RESHAPE", network.add("SOFTMAX", x, shape=(4,)), shape=(2, 2))
    outputs = (sure, x, seen, network.add("EXP", sure, shape=(4,)))
    hints = tflite_hints(Flatbuffer(network.write(tmp_path / "m", *outputs)))
    assert hints.probabilities == (True, False, True, False)
