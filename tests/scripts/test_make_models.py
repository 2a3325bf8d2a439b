"""scripts/models/make_models.py: the files load, run, and are the networks that they claim to be.

The parameters and the multiply-accumulates (in millions) of each ImageNet network are checked against the
published figures. The second check is the sharper one: a wrong stride or padding in front of a global pooling
leaves both the output shape and the parameter count as they are.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "models" / "make_models.py"

ALL = (
    "resnet18",
    "alexnet",
    "vgg16",
    "mobilenet_v2",
    "squeezenet",
    "bert",
    "tiny_cnn",
    "demo_cnn",
    "mlp",
    "tabular",
    "lstm",
    "encoder_block",
    "dilated_block",
    "inception_block",
)
TOO_BIG_TO_RUN = ("alexnet", "vgg16")
RUNNABLE = tuple(name for name in ALL if name not in TOO_BIG_TO_RUN)

# BERT: as BERT-mini (11,170,560), less the pooler, the token types and the positions from 128 to 511.
PARAMETERS = {
    "resnet18": 11_689_512,
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "mobilenet_v2": 3_504_872,
    "squeezenet": 1_235_496,
    "bert": 11_170_560 - (256 * 256 + 256) - 2 * 256 - 384 * 256,
}
MULTIPLY_ACCUMULATES = {
    "resnet18": 1814,
    "alexnet": 714,
    "vgg16": 15470,
    "mobilenet_v2": 301,
    "squeezenet": 349,
}
INPUT = {
    "bert": ("input_ids", [1, 128]),
    "tiny_cnn": ("input", [1, 3, 16, 16]),
    "demo_cnn": ("input", [1, 3, 64, 64]),
    "mlp": ("input", [1, 784]),
    "tabular": ("input", [1, 30]),
    "lstm": ("input", [1, 100, 256]),
    "encoder_block": ("input", [1, 64, 32]),
    "dilated_block": ("input", [1, 3, 48, 48]),
    "inception_block": ("input", [1, 192, 28, 28]),
}
OUTPUT = {
    "bert": [128, 256],
    "tiny_cnn": [10],
    "demo_cnn": [10],
    "mlp": [10],
    "tabular": [2],
    "lstm": [100, 256],
    "encoder_block": [64, 32],
    "dilated_block": [2, 48, 48],
    "inception_block": [256, 28, 28],
}
# Weighted layers, and the layers that the tuner must find where exporters leave them.
OPERATORS = {
    "resnet18": {"Conv": 20, "BatchNormalization": 20, "Relu": 17, "Add": 8, "MaxPool": 1, "Gemm": 1},
    "alexnet": {"Conv": 5, "MaxPool": 3, "Relu": 7, "Gemm": 3, "BatchNormalization": 0},
    "vgg16": {"Conv": 13, "MaxPool": 5, "Relu": 15, "Gemm": 3, "BatchNormalization": 0},
    "mobilenet_v2": {"Conv": 52, "BatchNormalization": 52, "Clip": 35, "Add": 10, "Gemm": 1},
    "squeezenet": {"Conv": 26, "Concat": 8, "MaxPool": 3, "Relu": 26, "BatchNormalization": 0},
    "bert": {"Gather": 1, "LayerNormalization": 9, "Softmax": 4, "Erf": 4, "MatMul": 4 * 8},
    "tiny_cnn": {"Conv": 2, "BatchNormalization": 2, "Relu": 2, "MaxPool": 1, "Gemm": 1},
    "demo_cnn": {"Conv": 3, "BatchNormalization": 3, "Relu": 3, "Gemm": 1},
    "mlp": {"Gemm": 3, "Relu": 2},
    "tabular": {"Gemm": 3, "Relu": 2},
    "lstm": {"LSTM": 2},
    "encoder_block": {"LayerNormalization": 2, "Softmax": 1, "Erf": 1, "MatMul": 8},
    "dilated_block": {"Conv": 7, "Relu": 6, "Add": 1},
    "inception_block": {"Conv": 6, "Relu": 6, "MaxPool": 1, "Concat": 3},
}


SLOW = tuple(pytest.param(name, marks=pytest.mark.slow) for name in TOO_BIG_TO_RUN)
BATCHES = ("tiny_cnn", "mlp", "lstm", pytest.param("squeezenet", marks=pytest.mark.slow), "bert")


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("make_models")


@pytest.fixture(scope="module", params=[*RUNNABLE, *SLOW])
def network(script: ModuleType, request: pytest.FixtureRequest) -> tuple[str, onnx.ModelProto]:
    """Each network in turn: pytest lets go of one, up to half a gigabyte, before it builds the next."""
    return request.param, script.build(request.param)


def with_inferred_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large weights as inputs, since ONNX copies all constants to infer the shapes."""
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.graph.name = model.graph.name
    bare.graph.node.extend(model.graph.node)
    bare.graph.input.extend(model.graph.input)
    bare.graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in model.graph.output)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) < 100:
            bare.graph.initializer.append(tensor)
        else:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            bare.graph.input.append(info)
    return onnx.shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True)


def dimensions(value: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def inferred_shapes(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    graph = with_inferred_shapes(model).graph
    return {value.name: dimensions(value) for value in (*graph.value_info, *graph.input, *graph.output)}


def multiply_accumulates(model: onnx.ModelProto) -> int:
    shapes = inferred_shapes(model) | {t.name: list(t.dims) for t in model.graph.initializer}
    # Each output of a convolution or of a Gemm with a transposed weight reads one row of the weight.
    return sum(
        math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm")
    )


def sample_input(model: onnx.ModelProto, *, seed: int = 1, batch: int = 1) -> dict[str, npt.NDArray[Any]]:
    (value,) = model.graph.input
    shape = (batch, *(d.dim_value for d in value.type.tensor_type.shape.dim[1:]))
    random = np.random.default_rng(seed)
    if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return {value.name: random.integers(0, 30522, shape)}
    return {value.name: random.standard_normal(shape, dtype=np.float32)}


def run(model: onnx.ModelProto, feed: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def weights(model: onnx.ModelProto) -> dict[str, bytes]:
    return {tensor.name: tensor.raw_data for tensor in model.graph.initializer}


def test_a_file_is_valid_and_has_the_inputs_operators_and_parameters_that_were_published(
    script: ModuleType, network: tuple[str, onnx.ModelProto]
) -> None:
    name, model = network
    onnx.checker.check_model(with_inferred_shapes(model) if name in TOO_BIG_TO_RUN else model)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    (given,) = model.graph.input
    (result,) = model.graph.output
    assert (given.name, dimensions(given)) == INPUT.get(name, ("input", [1, 3, 224, 224]))
    assert (result.name, dimensions(result)) == ("output", [1, *OUTPUT.get(name, [1000])])
    assert inferred_shapes(model)["output"] == dimensions(result)
    counts = Counter(node.op_type for node in model.graph.node)
    assert {kind: counts[kind] for kind in OPERATORS[name]} == OPERATORS[name]
    assert not {"Dropout", "Identity", "Constant"} & set(counts)
    if name in PARAMETERS:
        assert script.count_parameters(model) == PARAMETERS[name]
    if name in MULTIPLY_ACCUMULATES:
        assert round(multiply_accumulates(model) / 1e6) == MULTIPLY_ACCUMULATES[name]


def test_statistics_of_batch_normalisation_are_plausible(network: tuple[str, onnx.ModelProto]) -> None:
    name, model = network
    values = {t.name: t for t in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert len(layers) == OPERATORS[name].get("BatchNormalization", 0)
    for node in layers:
        scale, bias, mean, variance = (onnx.numpy_helper.to_array(values[n]) for n in node.input[1:])
        assert variance.min() > 0.3
        assert variance.max() < 3
        # Each does something, or a tuner could drop it and still pass.
        assert all(part.std() > 0.01 for part in (scale, bias, mean, variance))


def test_activations_neither_explode_nor_vanish_and_the_output_depends_on_the_input(
    network: tuple[str, onnx.ModelProto],
) -> None:
    name, built = network
    if name in TOO_BIG_TO_RUN:
        pytest.skip("it is too big to run")
    model = onnx.ModelProto()
    model.CopyFrom(built)
    model.graph.output.extend(onnx.ValueInfoProto(name=node.output[0]) for node in model.graph.node[:-1])
    values = run(model, sample_input(model))
    assert values["output"].shape == (1, *OUTPUT.get(name, [1000]))
    for node in model.graph.node:
        value = values[node.output[0]]
        assert np.isfinite(value).all(), node.name
        # A row of attention weights sums to 1: 128 of them are small whatever their input.
        assert (0.001 if node.op_type == "Softmax" else 0.1) < value.std() < 30, node.name
        assert np.abs(value).max() < 200, node.name
    other = run(built, sample_input(built, seed=2))["output"]
    assert (values["output"] - other).std() > 0.005 * other.std()


@pytest.mark.parametrize("name", BATCHES)
def test_batch(script: ModuleType, name: str) -> None:
    single = script.build(name)
    triple = script.build(name, batch=3)
    assert weights(single) == weights(triple)
    assert dimensions(triple.graph.output[0])[0] == inferred_shapes(triple)["output"][0] == 3
    feed = sample_input(triple, batch=3)
    first = {key: value[:1] for key, value in feed.items()}
    together = run(triple, feed)["output"]
    np.testing.assert_allclose(together[:1], run(single, first)["output"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", BATCHES)
def test_dynamic_batch(script: ModuleType, name: str) -> None:
    model = script.build(name, dynamic_batch=True)
    onnx.checker.check_model(model)
    (given,) = model.graph.input
    (result,) = model.graph.output
    assert dimensions(given)[0] == dimensions(result)[0] == "batch"
    assert run(model, sample_input(model, batch=2))["output"].shape == (2, *OUTPUT.get(name, [1000]))


def test_a_seed_decides_every_weight(script: ModuleType) -> None:
    one, other = (script.build("tiny_cnn", seed=seed) for seed in (1, 2))
    for name, raw in weights(one).items():
        assert raw != weights(other)[name], name


def test_the_same_seed_gives_the_same_bytes_in_another_process(script: ModuleType, tmp_path: Path) -> None:
    arguments = ["tiny_cnn", "--seed", "7", "bert", "--output"]
    assert script.main([*arguments, str(tmp_path / "here")]) == 0
    subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, str(tmp_path / "there")],
        check=True,
        env={"PYTHONHASHSEED": "5"},
        timeout=60,
    )
    for name in ("tiny_cnn.onnx", "bert.onnx"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_one_line_for_each_file(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["mlp", "tiny_cnn", "mlp", "--output", str(tmp_path / "new" / "folder")]) == 0
    mlp, tiny = (tmp_path / "new" / "folder" / f"{name}.onnx" for name in ("mlp", "tiny_cnn"))
    assert capsys.readouterr().out.splitlines() == [
        f"{mlp}  {mlp.stat().st_size / 1e6:.3f} MB  235,146 parameters",
        f"{tiny}  {tiny.stat().st_size / 1e6:.3f} MB  1,586 parameters",
    ]
    assert tiny.stat().st_size < 10_000
    assert sorted(mlp.parent.iterdir()) == [mlp, tiny]
    assert onnx.load(mlp) == script.build("mlp")


def test_options_reach_the_file(script: ModuleType, tmp_path: Path) -> None:
    script.main(["mlp", "--output", str(tmp_path), "--batch", "5", "--seed", "3"])
    assert onnx.load(tmp_path / "mlp.onnx") == script.build("mlp", batch=5, seed=3)
    script.main(["mlp", "--output", str(tmp_path), "--dynamic-batch"])
    assert onnx.load(tmp_path / "mlp.onnx") == script.build("mlp", dynamic_batch=True)


def test_no_names_means_all(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = script.build("tiny_cnn")
    monkeypatch.setattr(script, "build", lambda *_, **__: small)
    assert script.main(["--output", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == set(ALL)


def test_list(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--list", "--output", str(tmp_path / "none")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(script.NAMES) and set(script.NAMES) == set(ALL)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp", "resnet19"], "no network is called 'resnet19'; there are .*resnet18.*"),
        (["mlp", "--batch", "0"], ".*at least 1.*"),
        (["mlp", "--batch", "two"], ".*--batch.*two.*"),
        (["mlp", "--seed", "-1"], ".*seed.*"),
        (["mlp", "--batch", "2", "--dynamic-batch"], ".*not allowed.*"),
    ],
)
def test_bad_arguments(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        script.main([*arguments, "--output", str(tmp_path / "none")])
    assert end.value.code == 2
    output = capsys.readouterr()
    assert re.fullmatch(f"make_models: error: {message}\n", output.err)
    assert output.out == ""
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert script.main(["mlp", "--output", str(tmp_path / "file")]) == 1
    assert re.fullmatch("make_models: error: cannot write to .*file.*\n", capsys.readouterr().err)


def test_a_failed_write_leaves_the_old_file(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlp.onnx").write_bytes(b"old")

    def disk_full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", disk_full)
    assert script.main(["mlp", "--output", str(tmp_path)]) == 1
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("mlp.onnx", b"old")]
