"""Inputs that are drawn make sense for the model, and old jobs draw what they drew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.options import InputSpec
from autotune.tvm_backend.export.drawn_inputs import draw
from autotune.tvm_backend.models.hints import NO_HINTS, Hints

IDS = InputSpec("ids", (4, 64), "int64")
IMAGE = InputSpec("x", (1, 3, 64, 64), "float32")


def one(item: InputSpec, hints: Hints = NO_HINTS) -> Any:
    return draw([item], 1, hints)[0]


def tables(**rows: int) -> Hints:
    return Hints(rows, rows, ())


def ranged(low: float, high: float) -> Hints:
    return Hints({}, {}, (), ranges={"x": (low, high)})


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (2, 1, 28, 28), (1, 224, 224, 3)])
def test_an_image_is_within_0_and_1(shape):
    array = one(InputSpec("x", shape, "float32"))
    assert array.dtype == np.float32 and array.shape == shape
    assert 0 <= array.min() < 0.2 and 0.8 < array.max() <= 1


def test_a_picture_is_smooth_and_no_two_neighbours_are_equal():
    steps = np.abs(np.diff(one(IMAGE).astype(float)))
    assert np.median(steps) < 0.1 < steps.max(), "there are edges"
    assert (steps == 0).mean() < 0.1, "what is cut off at 0 and 1"


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-2.1, 2.6)])
def test_a_picture_fills_the_range_that_the_graph_expects(low, high):
    array = one(IMAGE, ranged(low, high))
    assert low <= array.min() < low + 0.2 * (high - low) and high - 0.2 * (high - low) < array.max() <= high


def test_a_picture_of_bytes_uses_them_all():
    assert one(InputSpec("x", (1, 32, 32, 3), "uint8")).max() > 200


@pytest.mark.parametrize("shape", [(1, 128, 64), (1, 16, 32, 32), (400,), (1, 3, 4, 4), (1, 2048)])
def test_what_is_no_image_is_normal(shape):
    array = one(InputSpec("x", shape, "float32"))
    assert array.min() < -1 and 0.8 < array.std() < 1.2


@pytest.mark.parametrize(("name", "shape"), [("audio", (1, 512)), ("wave", (1, 1, 800)), ("input_1", (1, 43844, 1))])
def test_a_sound_is_seen_by_its_name_or_its_length(name, shape):
    array = one(InputSpec(name, shape, "float32")).ravel()
    assert np.abs(array).max() <= 1
    assert np.abs(np.diff(array)).mean() < np.abs(array).mean(), "noise changes as much as it is large"


def test_a_sound_is_seen_by_the_graph():
    hints = Hints({}, {}, (), sounds=frozenset({"x"}))
    frames = one(InputSpec("x", (32, 576), "float32"), hints)
    assert np.abs(frames).max() <= 1 and not np.array_equal(frames[0], frames[1])


def test_other_numbers_lie_in_the_range_that_is_known():
    array = one(InputSpec("x", (10, 100), "float32"), ranged(2.0, 4.0))
    assert 2 <= array.min() < 2.5 and 3.5 < array.max() <= 4


def test_a_bound_has_its_value():
    assert one(InputSpec("x", (), "float32"), ranged(7.0, 7.0)) == 7


def test_a_scalar_is_an_array_without_dimensions():
    assert one(InputSpec("x", (), "float32")).shape == ()


def test_an_index_is_within_its_table_and_uses_it():
    assert set(np.unique(one(IDS, tables(ids=2)))) == {0, 1}
    assert one(IDS, tables(ids=30_000)).max() > 10_000


def test_an_integer_of_unknown_use_is_small():
    assert 8 < one(IDS).max() < 16


@pytest.mark.parametrize("dtype", ["int64", "bool", "float32"])
def test_a_mask_lets_everything_through(dtype):
    array = one(InputSpec("attention_mask", (1, 8), dtype))
    assert array.dtype == dtype and (array == 1).all()


@pytest.mark.parametrize("version", [1, 2])
def test_the_same_seed_draws_the_same(version):
    inputs = [IDS, IMAGE, InputSpec("audio", (1, 4000), "float32")]
    first, again, other = (draw(inputs, seed, NO_HINTS, version) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_first_version_draws_what_it_always_drew():
    inputs = [IMAGE, InputSpec("audio", (1, 4000), "float32"), IDS]
    hints = Hints({"ids": 50}, {}, (), {"x": (0.0, 255.0)}, frozenset({"audio"}))
    image, audio, ids = draw(inputs, 2026, hints, 1)
    rng = np.random.default_rng(2026)
    assert np.array_equal(image, rng.random(IMAGE.shape).astype(np.float32))
    assert np.array_equal(audio, rng.standard_normal((1, 4000)).astype(np.float32))
    assert np.array_equal(ids, rng.integers(0, 50, IDS.shape))
