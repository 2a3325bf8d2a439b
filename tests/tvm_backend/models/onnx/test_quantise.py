"""A model is quantised with inputs of the user's, and what that costs is known; inputs that do not fit are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
import zipfile
from contextlib import closing

import numpy as np
import onnx
import psutil
import pytest

from autotune.errors import ModelError
from autotune.processes.keeper import Keeper
from autotune.storage.quantisation import Quantisation
from autotune.tvm_backend.models.onnx.quantise import _agreement, _difference, quantise, read_samples, score
from autotune.tvm_backend.models.onnx.simplify import open_session

from ...quantised_nets import Network


@pytest.fixture
def calibration(tmp_path):
    """A function that writes arrays and returns the file."""

    def write(**arrays):
        path = tmp_path / "calibration.npz"
        np.savez(path, **arrays)
        return path

    return write


def convolutional() -> Network:
    net = Network((1, 3, 8, 8))
    net.add("Relu", net.conv(3, 16))
    net.conv(16, 16)
    net.add("GlobalAveragePool", net.last)
    net.add("Flatten", net.last)
    net.gemm(16, 10)
    return net


def rows(count=64):
    return np.random.default_rng(1).standard_normal((count, 3, 8, 8)).astype(np.float32)


def test_a_network_is_quantised_and_what_it_costs_is_known(calibration, tmp_path):
    proto, cost = quantise(tmp_path / "model.onnx", convolutional().model(), calibration(input=rows()))
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("QuantizeLinear") >= 4
    assert cost.samples == 64
    assert 0 < cost.error < 0.2
    assert 0.8 < cost.agreement <= 1


def test_by_labels_the_cost_is_how_much_less_often_it_is_right(calibration, tmp_path):
    net = convolutional()
    session = open_session(net.model(), ())
    answers = np.array([session.run(None, {"input": row[None]})[0].argmax() for row in rows()])
    labels = np.where(np.arange(64) < 16, (answers + 1) % 10, answers)
    _, cost = quantise(tmp_path / "model.onnx", net.model(), calibration(input=rows(), labels=labels))
    assert cost.right_before == 0.75
    assert cost.right is not None
    assert cost.drop == pytest.approx(0.75 - cost.right)
    assert cost.drop < 1 - cost.agreement or cost.agreement == 1
    assert f"by the labels {cost.right:.1%} of its answers are right, and 75.0% were" in cost.text()


def python(tmp_path, code):
    """A command that runs a program of Python."""
    program = tmp_path / "a score.py"
    program.write_text(f"import sys\nimport numpy as np\noutputs = np.load(sys.argv[1])\n{code}\n")
    return shlex.join([sys.executable, str(program)])


def test_by_the_users_command_the_cost_is_how_much_lower_the_score_is(calibration, tmp_path):
    command = python(tmp_path, "print('the score:')\nprint(outputs[outputs.files[0]].std())")
    net = convolutional()
    proto, cost = quantise(tmp_path / "model.onnx", net.model(), calibration(input=rows()), accuracy=command)
    scores = []
    for model in (net.model(), proto):
        session = open_session(model, ())
        scores.append(np.std([session.run(None, {"input": row[None]})[0] for row in rows()]))
    assert cost.score_before == pytest.approx(scores[0])
    assert cost.score == pytest.approx(scores[1])
    assert cost.score != cost.score_before
    assert cost.drop == pytest.approx((cost.score_before - cost.score) / cost.score_before)
    assert f"by your command it scores {cost.score:.4g}, and {cost.score_before:.4g} in float32" in cost.text()


def test_layers_stay_in_floats_until_the_users_command_is_satisfied(calibration, tmp_path):
    np.save(tmp_path / "exact.npy", np.zeros(0))
    command = python(
        tmp_path,
        f"""values = outputs[outputs.files[0]]
exact = np.load({str(tmp_path / "exact.npy")!r})
if not exact.size:
    np.save({str(tmp_path / "exact.npy")!r}, values)
    exact = values
print(1 - np.abs(values - exact).max() / np.abs(exact).max())""",
    )
    model = convolutional().model()
    _, whole = quantise(tmp_path / "model.onnx", model, calibration(input=rows()), accuracy=command)
    limit = whole.drop / 2
    _, kept = quantise(tmp_path / "model.onnx", model, calibration(input=rows()), limit, command)
    assert kept.drop <= limit
    assert kept.floats


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("sys.exit('no such output: logits')", "exited with 1: no such output: logits"),
        ("print('0.9 or so')", "must print a number, and prints '0.9 or so'"),
        ("print(float('nan'))", "must print a number, and prints 'nan'"),
        ("", "must print a number, and prints 'nothing'"),
    ],
)
def test_a_command_that_gives_no_score_is_refused_with_what_it_says(calibration, tmp_path, code, says):
    data = calibration(input=rows(2))
    with pytest.raises(ModelError, match=f"of --accuracy {says}"):
        quantise(tmp_path / "model.onnx", convolutional().model(), data, accuracy=python(tmp_path, code))


def test_the_command_gets_an_array_for_each_output_or_for_each_run(tmp_path):
    command = python(tmp_path, "print(sum(outputs[name].size * 10 ** ('/' in name) for name in outputs.files))")
    same = [np.zeros((1, 4)), np.ones((1, 4))]
    other = [np.zeros(2), np.zeros(3)]
    with closing(Keeper()) as keeper:
        assert score(keeper, command, {"file": same, "boxes": other}) == 8 + 50


def test_what_the_command_leaves_behind_ends_with_it(tmp_path):
    left = tmp_path / "left"
    sleeper = f"import os, pathlib, time; pathlib.Path({str(left)!r}).write_text(str(os.getpid())); time.sleep(600)"
    command = python(
        tmp_path,
        f"""import pathlib, subprocess, time
subprocess.Popen([sys.executable, "-c", {sleeper!r}], start_new_session=True)
while not (pathlib.Path({str(left)!r}).exists() and pathlib.Path({str(left)!r}).read_text()):
    time.sleep(0.01)
print(1)""",
    )
    with closing(Keeper()) as keeper:
        assert score(keeper, command, {"y": [np.zeros(1)]}) == 1
        assert not psutil.pid_exists(int(left.read_text()))


def test_with_a_command_labels_are_for_the_command(calibration, tmp_path):
    data = calibration(input=rows(), labels=np.ones((len(rows()), 4), np.float32))
    command = python(tmp_path, "print(1)")
    _, cost = quantise(tmp_path / "model.onnx", convolutional().model(), data, accuracy=command)
    assert (cost.score, cost.right) == (1, None)


def test_an_answer_that_only_one_of_two_models_gives_is_not_the_same():
    three, two = np.array([1, 2, 3]), np.array([1, 2])
    assert _agreement([three, two], [three, two]) == 1
    assert _agreement([three, two], [two, two]) == 2 / 5
    assert _difference(np.ones(3, np.float32), np.ones(2, np.float32)) == 1


def test_a_score_of_zero_may_not_fall_at_all():
    cost = Quantisation(samples=1, error=0.0, agreement=1.0, score=-0.1, score_before=0.0)
    assert not cost.within(0.99)
    assert dataclasses.replace(cost, score=0.0).within(0.0)


def test_a_command_that_cannot_be_run_is_named(calibration, tmp_path):
    data = calibration(input=rows(2))
    with pytest.raises(ModelError, match="command 'no-such-program' of --accuracy cannot be run: No such file"):
        quantise(tmp_path / "model.onnx", convolutional().model(), data, accuracy="no-such-program")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.zeros(63, int), "there are 63 labels, and 64 answers"),
        (np.zeros(64), "labels are the indices of the right answers, and these are float64"),
    ],
)
def test_labels_that_do_not_fit_are_refused_in_one_line(calibration, tmp_path, labels, says):
    with pytest.raises(ModelError, match=says):
        quantise(tmp_path / "model.onnx", convolutional().model(), calibration(input=rows(), labels=labels))


def test_products_of_a_network_without_convolutions_put_out_floats(calibration, tmp_path):
    net = Network((4, 32))
    net.matmul(32, 16)
    net.add("Softmax", net.last)
    data = np.random.default_rng(1).standard_normal((8, 32)).astype(np.float32)
    proto, cost = quantise(tmp_path / "model.onnx", net.model(), calibration(input=data))
    assert [node.op_type for node in proto.graph.node].count("QuantizeLinear") == 1
    assert cost.samples == 2


def test_a_quantised_model_is_refused(calibration, tmp_path):
    data = calibration(input=rows(2))
    proto, _ = quantise(tmp_path / "model.onnx", convolutional().model(), data)
    with pytest.raises(ModelError, match="is quantised already; leave --precision int8 out"):
        quantise(tmp_path / "model.onnx", proto, data)


def test_a_file_that_is_torn_or_claims_more_than_any_memory_is_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "whole.npz", input=rows(2))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-40])
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 3, 8, 8)}
    with zipfile.ZipFile(tmp_path / "large.npz", "w") as packed, packed.open("input.npy", "w") as file:
        np.lib.format.write_array_header_2_0(file, header)
    for name, says in (
        ("torn", "torn.npz: it is not an NPZ file"),
        ("large", "need more memory than this process may"),
    ):
        with pytest.raises(ModelError, match=says):
            read_samples(tmp_path / f"{name}.npz", convolutional().model().graph.input)


@pytest.mark.parametrize(
    "arrays, says",
    (
        ({"other": rows(2)}, "has no array 'input'; the model's inputs: input"),
        ({"input": rows(2)[0]}, "'input' is 3x8x8, which is no row of samples of 1x3x8x8"),
        ({"input": rows(0)}, "must have as many samples of each input, at least one: input 0"),
        ({"input": np.full((1, 3, 8, 8), np.nan)}, "has elements that are no finite numbers"),
        ({"input": rows(2)[:, :2]}, "'input' is 2x2x8x8, which is no row of samples of 1x3x8x8"),
        ({"input": rows(2)[None, :, :, :, :7]}, "'input' is 1x2x3x8x7, which is no row of samples of 1x3x8x8"),
        ({"input": np.float32(1)}, "'input' is a scalar, which is no row of samples of 1x3x8x8"),
        ({"input": np.full((2, 3, 8, 8), "1.5")}, "array 'input' holds text"),
        ({"input": rows(2).astype(np.complex64)}, "array 'input' holds complex numbers"),
        ({"input": np.zeros((2, 3, 8, 8), "datetime64[s]")}, "array 'input' holds dates"),
        ({"input": np.zeros((2, 3, 8, 8), [("a", "f4")])}, "array 'input' holds records"),
        ({"input": np.full((2, 3, 8, 8), {})}, "array 'input' holds objects of Python"),
        ({"input": np.full((2, 3, 8, 8), 1e300)}, "has elements that are no finite numbers as float32"),
    ),
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(calibration, tmp_path, arrays, says):
    with pytest.raises(ModelError, match=says) as caught:
        quantise(tmp_path / "model.onnx", convolutional().model(), calibration(**arrays))
    assert "\n" not in str(caught.value)


def test_a_file_that_holds_no_arrays_is_refused(tmp_path):
    path = tmp_path / "calibration.npz"
    path.write_text("no arrays")
    with pytest.raises(ModelError, match="is not an NPZ file of plain arrays"):
        read_samples(path, [])


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.array([0, -1]), "label 1 of the calibration data is -1; the model has 16 classes, counted from 0"),
        (np.array([2**62, 0]), f"label 0 of the calibration data is {2**62}; the model has"),
        (np.array([0, 2**64 - 1], np.uint64), f"label 1 of the calibration data is {2**64 - 1}; the model has"),
        (np.array([0, 16]), "label 1 of the calibration data is 16; the model has"),
        (np.array([0.5, 1]), "labels are the indices of the right answers, and these are float64"),
        (np.array(["cat", "dog"]), "array 'labels' holds text"),
        (np.array([0, 15]), None),
    ],
)
def test_labels_that_no_answer_can_have_are_refused(calibration, tmp_path, labels, says):
    net = Network((1, 32))
    net.matmul(32, 16)
    data = np.random.default_rng(1).standard_normal((2, 32)).astype(np.float32)
    refused = pytest.raises(ModelError, match=says) if says else contextlib.nullcontext()
    with refused:
        quantise(tmp_path / "model.onnx", net.model(), calibration(input=data, labels=labels))


def test_integers_are_taken_where_the_model_takes_them_and_nothing_is_cut_off(tmp_path):
    item = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, 4])
    for ids, fits in ((np.arange(8.0), True), (np.arange(8, dtype=np.uint8), True), (np.arange(8) + 0.5, False)):
        np.savez(tmp_path / "ids.npz", ids=ids.reshape(2, 4))
        if fits:
            samples = read_samples(tmp_path / "ids.npz", [item])
            assert [sample["ids"].dtype.name for sample in samples] == ["int64", "int64"]
        else:
            with pytest.raises(ModelError, match="'ids' is float64, and has elements that int64 has not"):
                read_samples(tmp_path / "ids.npz", [item])
