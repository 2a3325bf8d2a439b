"""A choice among values that nearly tie is right if it is right for what the library computed; nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.options import InputSpec
from autotune.storage.formats import Entry
from autotune.tvm_backend.export.inputs import VerificationInputs
from autotune.tvm_backend.export.submitted import OnnxModel
from autotune.tvm_backend.export.verification import verified_choices
from autotune.tvm_backend.export.verification.verify_model import Case, Verified
from autotune.tvm_backend.models.onnx.choices import with_outputs

COUNT = 64
X = InputSpec("x", (1, COUNT), "float32")
SCORES = np.float32(1e-3) + np.arange(COUNT, dtype=np.float32)[None] * np.float32(1e-10)  # some units apart


def detector(k: int = 8, shift: float = 0.0, offset: int = 0, axis: int = 1, sign: float = 1.0) -> Any:
    """Gathers the boxes with the best scores, where nothing is changed. `shift` moves each second score."""
    moved = np.where(np.arange(COUNT) % 2, shift, 0.0).astype(np.float32)[None]
    constants = {
        "moved": moved,
        "k": np.int64([k]),
        "boxes": np.arange(4 * COUNT, dtype=np.float32).reshape(COUNT, 4),
        "offset": np.int64(offset),
        "last": np.int64(COUNT - 1),
        "sign": np.float32(sign),
    }
    nodes = [
        helper.make_node("Add", ["x", "moved"], ["scores"]),
        helper.make_node("Mul", ["scores", "sign"], ["signed"]),
        helper.make_node("TopK", ["signed", "k"], ["best", "places"]),
        helper.make_node("Add", ["places", "offset"], ["next"]),
        helper.make_node("Min", ["next", "last"], ["inside"]),
        helper.make_node("Gather", ["boxes", "inside"], ["picked"], axis=0),
        helper.make_node("Transpose", ["picked"], ["y"], perm=[0, axis, 3 - axis]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, COUNT])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "detector", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(proto: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": SCORES}))


@pytest.fixture
def verified(tmp_path: Path) -> Callable[..., Verified | None]:
    """Verifies what a network computes, as a library of the detector would, against the detector."""

    def check(library: Any, tolerance: float = 1e-3) -> Verified | None:
        onnx.save(detector(), str(tmp_path / "model.onnx"))
        paths: Any = SimpleNamespace(model=tmp_path / "model.onnx", rewritten_model=lambda _: tmp_path / "none")
        entry = Entry("main", (X,), ())
        model = OnnxModel(paths, 0, entry, {})
        export: Any = SimpleNamespace(
            models=[model],
            request=SimpleNamespace(board=None, threads=1, tolerance=tolerance),
            spec=SimpleNamespace(values={}, all_entries=(entry,)),
        )
        case = Case(entry, VerificationInputs([SCORES], (False,), {}), tuple(run(detector())))
        cut = verified_choices._cut(export, 0)
        assert cut is not None
        return verified_choices._verified(
            export, case, cut, run(library), run(with_outputs(library, list(cut.operators)))
        )

    return check


def test_values_that_nearly_tie_may_be_chosen_in_another_order(verified: Callable[..., Verified | None]) -> None:
    outcome = verified(detector(shift=1e-8))
    assert outcome is not None
    (choice,) = outcome.choices
    assert choice.output == "y" and choice.operators == ("TopK",)
    assert 0 < choice.error < 1e-4
    assert choice.same < choice.rows == 8


@pytest.mark.parametrize(
    "wrong",
    [{"offset": 1}, {"offset": -1}, {"axis": 2}, {"k": 7}, {"sign": -1.0}, {"shift": 1e-5}],
    ids=["next box", "box before", "wrong axis", "k-1", "smallest", "other scores"],
)
def test_a_wrong_network_is_not_taken_for_another_choice(
    verified: Callable[..., Verified | None], wrong: dict[str, Any]
) -> None:
    assert verified(detector(**{"shift": 1e-8} | wrong)) is None


def test_rows_are_compared_in_their_places_where_there_are_more_of_one() -> None:
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert verified_choices._same_rows(rows[:3], rows, 1e-3) == (3, 5)
    assert verified_choices._same_rows(rows[:0], rows[:2], 1e-3) == (0, 2)


def test_a_second_library_that_computes_something_else_says_nothing(tmp_path: Path) -> None:
    cut: Any = SimpleNamespace(operators={"scores": "TopK"})
    first, second = np.float32([1, 2]), np.float32([1, 2.0000002])
    export: Any = None
    case: Any = None
    assert verified_choices._verified(export, case, cut, [first], [second, first]) is None
