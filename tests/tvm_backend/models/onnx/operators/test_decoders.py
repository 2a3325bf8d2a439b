"""The operators of decoders of ONNX Runtime's own domain become others that compute what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from autotune.errors import ModelError
from autotune.tvm_backend.models.onnx.operators.lower import is_lowered, lower

MS = "com.microsoft"
RANDOM = np.random.default_rng(0)
HEADS, SHARED, SIZE = 4, 2, 32
HALF = SIZE // 2


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def angles(half: int = HALF) -> tuple[Any, Any]:
    turned = np.outer(np.arange(32), RANDOM.standard_normal(half)).astype(np.float32)
    return np.cos(turned), np.sin(turned)


def attention(steps: int, past: int, total: int, *, packed: bool = True, rows: tuple[int, ...] = (), half: int = HALF):
    """Inputs of GroupQueryAttention; `rows` are the last positions of the rows of a batch."""
    last = np.array(rows or (total - 1,), np.int32)
    batch = len(last)
    counts = (HEADS + 2 * SHARED, 0, 0) if packed else (HEADS, SHARED, SHARED)
    parts = [floats(batch, steps, count * SIZE) if count else None for count in counts]
    kept = {name: floats(batch, SHARED, past, SIZE) for name in ("past_key", "past_value")}
    ends = {"last": last, "w_total": np.array([total], np.int32)}
    cosines, sines = angles(half)
    return {**dict(zip("qkv", parts, strict=True)), **kept, **ends, "w_cos": cosines, "w_sin": sines}


COUNTS = {"num_heads": HEADS, "kv_num_heads": SHARED}
TURNED = {**COUNTS, "do_rotary": 1}
INTERLEAVED = {**TURNED, "rotary_interleaved": 1}
NEAR = {**TURNED, "local_window_size": 3}
CAPPED = {**COUNTS, "softcap": 5.0, "scale": 0.3}
BYTES = RANDOM.integers(0, 256, (9, 16)).astype(np.uint8)
WORDS = np.array([[3, 0], [8, 3]], np.int64)


def signed(*shape: int) -> Any:
    return RANDOM.integers(-8, 8, shape).astype(ml_dtypes.int4)


TABLE = {"w_data": BYTES, "words": WORDS, "w_scales": floats(9, 2)}
ZEROS = RANDOM.integers(0, 256, (9, 1)).astype(np.uint8)
BLOCKS = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1}
PLACES = np.array([[4, 9, 2]], np.int64)
ROTATED = dict(zip(("w_cos", "w_sin"), angles(), strict=True))
CASES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "a token": ("GroupQueryAttention", attention(1, 7, 8), TURNED),
    "a first prompt": ("GroupQueryAttention", attention(5, 0, 5), TURNED),
    "more of a prompt": ("GroupQueryAttention", attention(3, 7, 10), INTERLEAVED),
    "a token where there is room": ("GroupQueryAttention", attention(1, 16, 8, packed=False), TURNED),
    "a prompt where there is room": ("GroupQueryAttention", attention(5, 16, 5), TURNED),
    "a window": ("GroupQueryAttention", attention(4, 9, 13), NEAR),
    "limited scores": ("GroupQueryAttention", attention(2, 9, 11), CAPPED),
    "two rows of two lengths": ("GroupQueryAttention", attention(1, 9, 10, rows=(9, 6)), TURNED),
    "heads that are rotated in part": ("GroupQueryAttention", attention(2, 9, 11, half=8), TURNED),
    "attention with a past": (
        "Attention",
        {"x": floats(2, 3, 8), "w_q": floats(8, 24), "w_bias": floats(24), "mask": None, "past": floats(2, 2, 2, 5, 4)},
        {"num_heads": 2, "unidirectional": 1},
    ),
    "attention of many heads with a past": (
        "MultiHeadAttention",
        {**{name: floats(2, 3, 8) for name in "qkv"}, "b": None, "mask": None, "added": None}
        | {name: floats(2, 2, 5, 4) for name in ("past_key", "past_value")},
        {"num_heads": 2},
    ),
    "attention that keeps its first steps": (
        "MultiHeadAttention",
        {name: floats(2, 3, 8) for name in "qkv"},
        {"num_heads": 2},
    ),
    "rotation": ("RotaryEmbedding", {"x": floats(1, 3, HEADS * SIZE), "places": PLACES, **ROTATED}, {}),
    "rotation from a place on": (
        "RotaryEmbedding",
        {"x": floats(2, HEADS, 3, SIZE), "place": np.array([5], np.int64), **ROTATED},
        {"interleaved": 1},
    ),
    "a table of four bits": ("GatherBlockQuantized", TABLE, BLOCKS),
    "a table of four bits with zero points": ("GatherBlockQuantized", {**TABLE, "w_zeros": ZEROS}, BLOCKS),
    "a table of typed four bits": ("GatherBlockQuantized", {**TABLE, "w_data": signed(9, 32)}, BLOCKS),
    "a table of typed four bits with zero points": (
        "GatherBlockQuantized",
        {**TABLE, "w_data": signed(9, 32), "w_zeros": signed(9, 2)},
        BLOCKS,
    ),
    "a table of bytes": ("GatherBlockQuantized", {**TABLE, "w_scales": floats(9, 1)}, {**BLOCKS, "bits": 8}),
    "a norm": ("SimplifiedLayerNormalization", {"x": floats(2, 5, 8), "w_scale": floats(8)}, {"epsilon": 1e-5}),
}


def graph(kind: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> onnx.ModelProto:
    given = {name: value for name, value in inputs.items() if value is not None}
    names = [name if name in given else "" for name in inputs]
    of_all = ["keys", "values"]
    kept = {"Attention": ["present"], "GroupQueryAttention": of_all, "MultiHeadAttention": of_all}
    outputs = ["y", *kept.get(kind, [])]
    domain = "" if kind == "SimplifiedLayerNormalization" else MS
    node = helper.make_node(kind, names, outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
        if not name.startswith("w_")
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in given.items() if name.startswith("w_")]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    made = helper.make_graph([node], "g", infos, results, weights)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    return helper.make_model(made, opset_imports=versions, ir_version=10)


def run(proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {item.name: inputs[item.name] for item in session.get_inputs()}))


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_lowered_to_others_that_compute_the_same(name: str) -> None:
    kind, inputs, attributes = CASES[name]
    proto = graph(kind, inputs, attributes)
    lowered = lower(proto)
    assert is_lowered(lowered) and not any(node.domain for node in lowered.graph.node)
    for ours, theirs in zip(run(lowered, inputs), run(proto, inputs), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "attributes", "words"),
    [
        ({"past_key": None, "past_value": None}, TURNED, "it keeps nothing of earlier steps"),
        ({}, {**TURNED, "smooth_softmax": 1}, "it has smooth_softmax, for which there is no rule"),
    ],
)
def test_what_has_no_rule_is_said(changed: Mapping[str, Any], attributes: Mapping[str, Any], words: str) -> None:
    proto = graph("GroupQueryAttention", {**attention(1, 7, 8), **changed}, attributes)
    with pytest.raises(ModelError, match=f"operator GroupQueryAttention 'y' .* is not supported: {words}"):
        lower(proto)
