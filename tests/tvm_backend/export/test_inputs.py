"""Inputs to verify on: the user's from a file, or drawn so that they make sense for the model."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import BadInput, VerificationError
from autotune.options import InputSpec
from autotune.storage.formats import Entry
from autotune.tvm_backend.export.inputs import check_reference, files_of_entries, load
from autotune.tvm_backend.export.verification.accuracy import largest_error
from autotune.tvm_backend.models.hints import onnx_hints

IDS = InputSpec("ids", (4, 64), "int64")


def embedding(nodes):
    """A graph with two tables, of 30 and of 2 rows, and two inputs of integers."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 8]) for name in ("ids", "types")]
    tables = [numpy_helper.from_array(np.zeros((rows, 4), np.float32), f"table{rows}") for rows in (30, 2)]
    shape = numpy_helper.from_array(np.array([8]), "shape")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(nodes, "g", inputs, [output], [*tables, shape]))


def test_the_vocabulary_is_the_number_of_rows_that_an_input_indexes():
    nodes = [
        helper.make_node("Gather", ["table30", "ids"], ["a"]),
        helper.make_node("Cast", ["types"], ["types32"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["types32", "shape"], ["flat"]),
        helper.make_node("Gather", ["table2", "flat"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    assert onnx_hints(embedding(nodes)).vocabularies == {"ids": 30, "types": 2}


def test_a_table_that_is_unpacked_from_integers_is_a_table():
    nodes = [
        helper.make_node("Cast", ["table30"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "scale"], ["table"]),
        helper.make_node("Gather", ["table", "ids"], ["y"]),
    ]
    assert onnx_hints(embedding(nodes)).vocabularies == {"ids": 30}


def test_an_index_into_two_tables_is_drawn_for_the_smaller():
    nodes = [helper.make_node("Gather", [table, "ids"], [table[5:]]) for table in ("table30", "table2")]
    assert onnx_hints(embedding(nodes)).vocabularies == {"ids": 2}


@pytest.mark.parametrize("cut", ["Split", "Gather", "Slice"])
def test_a_column_is_drawn_for_the_smallest_table_and_the_whole_is_an_index_into_none(cut):
    """Two features in one input: each has a table of its own, and 29 is a right index into the first."""
    columns = {
        "Split": [helper.make_node("Split", ["ids"], ["a", "b"], axis=1)],
        "Gather": [helper.make_node("Gather", ["ids", name], [name[0]], axis=1) for name in ("a_at", "b_at")],
        "Slice": [helper.make_node("Slice", ["ids", name, "end"], [name[0]]) for name in ("a_at", "b_at")],
    }[cut]
    model = embedding(
        [*columns, *(helper.make_node("Gather", [f"table{n}", x], [f"y{n}"]) for n, x in ((30, "a"), (2, "b")))]
    )
    assert onnx_hints(model).vocabularies == {"ids": 2}
    assert onnx_hints(model).rows == {}


def test_pairs_of_indices_are_drawn_within_both_dimensions():
    model = embedding([helper.make_node("GatherND", ["table30", "ids"], ["y"])])
    assert onnx_hints(model).vocabularies == {"ids": 4} and onnx_hints(model).rows == {}


def test_the_rows_of_a_table_that_is_transposed_are_not_those_of_its_weights():
    nodes = [
        helper.make_node("Transpose", ["table30"], ["turned"]),
        helper.make_node("Gather", ["turned", "ids"], ["y"]),
    ]
    assert onnx_hints(embedding(nodes)).vocabularies == {"ids": 4}


@pytest.mark.parametrize("kind", ["Gather", "GatherElements", "ScatterElements"])
def test_an_index_into_what_the_model_computes_lies_within_it(kind):
    """As the edges of a graph do, which are indices of its nodes."""
    moved = ["ids"] if kind == "ScatterElements" else []
    model = embedding(
        [
            helper.make_node("Neg", ["types"], ["nodes"]),
            helper.make_node(kind, ["nodes", "ids", *moved], ["y"], axis=1),
        ]
    )
    assert onnx_hints(model).vocabularies == {"ids": 8}


def test_what_is_computed_from_an_input_is_no_index_of_it():
    nodes = [helper.make_node("Neg", ["ids"], ["no"]), helper.make_node("Gather", ["table2", "no"], ["y"])]
    assert onnx_hints(embedding(nodes)).vocabularies == {}


@pytest.fixture
def saved(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "inputs.npz", **arrays)
        return tmp_path / "inputs.npz"

    return save


def test_a_file_gives_the_arrays_in_the_order_of_the_inputs(saved):
    path = saved(x=np.ones(3, np.float32), ids=np.zeros((4, 64), np.int64))
    first, second = load(path, [IDS, InputSpec("x", (3,), "float32")])
    assert first.shape == (4, 64) and second.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": np.zeros(1)}, "has no array 'ids'; it has: other"),
        ({"ids": np.zeros((4, 64), np.int32)}, "int32 .4, 64., and the model takes int64"),
        ({"ids": np.zeros((4, 65), np.int64)}, "int64 .4, 65., and the model takes int64 .4, 64."),
    ],
)
def test_a_file_that_does_not_fit_the_model(saved, arrays, message):
    with pytest.raises(BadInput, match=message):
        load(saved(**arrays), [IDS])


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(BadInput, match="cannot read"):
        load(tmp_path / "missing.npz", [IDS])
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(BadInput, match="is not an NPZ file"):
        load(tmp_path / "text.npz", [IDS])


def test_nothing_in_a_file_is_unpickled(saved):
    with pytest.raises(BadInput, match="array 'ids' holds objects of Python"):
        load(saved(ids=np.array([{"a": 1}], dtype=object)), [IDS])


def fail():
    raise RuntimeError("indices element out of data bounds")


def test_a_reference_that_fails_on_drawn_inputs_names_the_way_out():
    with pytest.raises(VerificationError, match="out of data bounds.*--inputs FILE.npz"):
        check_reference(fail, given=False)


def test_a_reference_that_fails_on_the_users_inputs_says_why():
    with pytest.raises(VerificationError, match="out of data bounds") as caught:
        check_reference(fail, given=True)
    assert "--inputs" not in str(caught.value)


def test_a_reference_without_numbers_shows_nothing():
    numbers = np.float32([1, np.nan])
    nothing = np.full(2, np.nan, np.float32)
    with pytest.raises(VerificationError, match="nothing but NaN for output 2 of the model.*--inputs FILE.npz"):
        check_reference(lambda: [numbers, nothing], given=False)
    check_reference(lambda: [numbers, np.zeros(0, np.float32), np.arange(3)], given=False)


def test_the_output_of_a_sigmoid_is_a_probability_whatever_its_shape():
    nodes = [
        helper.make_node("Gather", ["table30", "ids"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["y"]),
    ]
    assert onnx_hints(embedding(nodes)).probabilities == (True,)
    assert onnx_hints(embedding([*nodes[:2], helper.make_node("Neg", ["b"], ["y"])])).probabilities == (False,)


def test_a_tiny_probability_may_be_off_by_what_the_reference_is_off():
    reference = [np.array([3e-7, 1e-9])]
    output = [np.array([2e-7, 2e-9])]
    assert largest_error(output, reference) > 0.09
    assert largest_error(output, reference, [True]) == pytest.approx(1e-4)
    assert largest_error([np.array([1e-3])], [np.array([1e-1])], [True]) > 0.9


class TestFilesForSeveralShapes:
    ENTRIES = tuple(
        Entry(f"n={n}", (InputSpec("ids", (1, n), "int64"), InputSpec("x", (4,), "float32")), ()) for n in (8, 16)
    )

    @pytest.fixture
    def file_of(self, tmp_path):
        def write(name, n, **more):
            path = tmp_path / f"{name}.npz"
            np.savez(path, ids=np.zeros((1, n), np.int64), **more)
            return path

        return write

    X = np.zeros(4, np.float32)

    def test_each_is_for_the_one_that_it_fits(self, file_of):
        b = file_of("b", 16, x=self.X)
        a = file_of("a", 8, x=self.X)
        assert files_of_entries([b, a], self.ENTRIES) == {"n=16": b, "n=8": a}
        assert files_of_entries([b], self.ENTRIES) == {"n=16": b}

    def test_one_that_fits_none_is_refused(self, file_of):
        with pytest.raises(BadInput, match=r"odd.npz: no entry for ids of 1x9: this export has 1x8, 1x16"):
            files_of_entries([file_of("odd", 9, x=self.X)], self.ENTRIES)
        with pytest.raises(BadInput, match="has no array 'x'"):
            files_of_entries([file_of("short", 8)], self.ENTRIES)

    def test_two_for_the_same_are_refused(self, file_of):
        with pytest.raises(BadInput, match=r"a.npz and .*b.npz are both inputs for the same shapes \(n=8\)"):
            files_of_entries([file_of("a", 8, x=self.X), file_of("b", 8, x=self.X)], self.ENTRIES)

    def test_a_job_with_one_set_of_shapes_takes_any_file_and_checks_it_later(self, file_of):
        path = file_of("any", 5)
        assert files_of_entries([path], self.ENTRIES[:1]) == {"n=8": path}


def test_a_pipe_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "inputs.npz")
    with pytest.raises(BadInput, match="cannot read .*inputs.npz: it is a pipe or a device, and no file"):
        load(tmp_path / "inputs.npz", [IDS])


class TestFilesThatHoldMoreThanTheModelTakes:
    """What is read is as large as the model's inputs, whatever the file holds."""

    @pytest.fixture
    def zeros(self, tmp_path):
        """Adds an array of zeros that says that it is of this shape to a file of some kilobytes."""

        def write(name, shape, bytes=1 << 24):
            path = tmp_path / "inputs.npz"
            with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed, packed.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array_header_1_0(stream, {"descr": "<i8", "fortran_order": False, "shape": shape})
                stream.write(b"\0" * bytes)
            return path

        return write

    def test_arrays_that_nobody_asked_for_are_not_read(self, zeros):
        zeros("unused", (1 << 21,))
        path = zeros("ids", (4, 64), bytes=4 * 64 * 8)
        with small_memory():
            assert not load(path, [IDS])[0].any()

    def test_an_array_of_another_shape_is_not_read(self, zeros):
        path = zeros("ids", (1 << 40,))
        with small_memory(), pytest.raises(BadInput, match="and the model takes int64"):
            load(path, [IDS])

    def test_of_a_member_that_is_larger_than_its_array_the_rest_is_not_read(self, zeros):
        path = zeros("ids", (4, 64))
        with small_memory():
            assert not load(path, [IDS])[0].any()

    def test_one_that_is_cut_short_is_refused(self, zeros):
        path = zeros("ids", (4, 64), bytes=100)
        with pytest.raises(BadInput, match="array 'ids' is cut short"):
            load(path, [IDS])


@contextlib.contextmanager
def small_memory():
    """Check that what happens meanwhile takes no more than 4 MiB."""
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 22
