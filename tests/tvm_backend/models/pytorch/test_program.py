"""Programs that torch exports here, from the file to the results of a compiled module."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ModelError, OpenShapes
from autotune.tvm_backend.export.runners import torch_runner
from autotune.tvm_backend.models.pytorch.program import import_program, load_program, write_fixed

if not (installed := importlib.util.find_spec("torch") is not None):
    warnings.warn("NO TORCH: models of PyTorch were not tried; pip install 'autotune-tvm[torch]'", stacklevel=1)


@pytest.mark.skipif(installed, reason="torch is here")
def test_without_torch_it_says_what_to_install(words: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"words is a PyTorch program.*pip install 'autotune-tvm\[torch\]'"):
        write_fixed(words, {}, {"s23": 2, "s27": 5}, tmp_path / "model.pt2")
    with pytest.raises(ModelError, match="not installed"):
        load_program(words)


def test_a_file_of_torch_save_needs_no_torch_to_be_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("weights/data.pkl", pickle.dumps({}))
    with pytest.raises(ModelError, match=r"unpickles nothing: write the model with torch\.export\.save"):
        write_fixed(path, {}, {}, tmp_path / "model.pt2")


def agree(path: Path, *arrays: Any, **dims: int) -> list[Any]:
    """Import a file, run it with TVM and with torch, and compare."""
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_untuned

    to = path.with_name("fixed.pt2")
    inputs, _ = write_fixed(path, {}, dims, to)
    assert [(item.shape, item.dtype) for item in inputs] == [(item.shape, str(item.dtype)) for item in arrays]
    model = import_program(to, inputs)
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    machine = relax.VirtualMachine(compile_untuned(model.module, target), tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, arrays))
    outputs = [outputs] if hasattr(outputs, "numpy") else list(outputs)
    expected = torch_runner(to, list(arrays), 1)()
    assert len(outputs) == len(expected) == len(model.outputs)
    for mine, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-4, atol=1e-5)
    return expected


@pytest.fixture
def random() -> Callable[..., Any]:
    generator = np.random.default_rng(0)
    return lambda *shape: generator.random(shape, dtype=np.float32)


def test_an_open_program_is_run_with_its_shapes_fixed(torch: Any, words: Path, random: Callable[..., Any]) -> None:
    ids = np.arange(12).reshape(3, 4) % 11
    first, mask = agree(words, ids, random(3, 4), s23=3, s27=4)
    assert first.shape == (12, 3) and mask.shape == (3, 4)


def test_a_network_with_batch_normalisation(torch: Any, tmp_path: Path, random: Callable[..., Any]) -> None:
    nn = torch.nn
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    network(torch.rand(4, 3, 8, 8))
    exported = torch.export.export(network.eval(), (torch.rand(1, 3, 8, 8),))
    torch.export.save(exported, tmp_path / "network.pt2")
    agree(tmp_path / "network.pt2", random(1, 3, 8, 8))


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_division_that_rounds(torch: Any, tmp_path: Path, random: Callable[..., Any], mode: str) -> None:
    class Halves(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            wide = 16 * x - 8
            whole = wide.to(torch.int64)
            divided = [(wide, 2), (whole, 2), (wide, whole + 9)]
            return tuple(torch.div(*both, rounding_mode=mode) for both in divided)

    path = tmp_path / "halves.pt2"
    torch.export.save(torch.export.export(Halves(), (torch.rand(3, 5),)), path)
    agree(path, random(3, 5))


def test_an_encoder_layer(torch: Any, tmp_path: Path, random: Callable[..., Any]) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu").eval()
    torch.export.save(torch.export.export(layer, (torch.rand(1, 5, 16),)), tmp_path / "layer.pt2")
    agree(tmp_path / "layer.pt2", random(1, 5, 16))


def test_inputs_and_outputs_in_a_nest(torch: Any, tmp_path: Path, random: Callable[..., Any]) -> None:
    class Nested(torch.nn.Module):
        def forward(self, pair: Any, *, scale: Any) -> Any:
            with torch.no_grad():
                total = pair["a"] + pair["b"][0]
            return {"sum": total, "scaled": [total * scale]}

    a = torch.rand(2, 3)
    b = torch.rand(2, 3)
    scale = torch.rand(3)
    exported = torch.export.export(Nested().eval(), ({"a": a, "b": [b]},), {"scale": scale})
    torch.export.save(exported, tmp_path / "nested.pt2")
    agree(tmp_path / "nested.pt2", random(2, 3), random(2, 3), random(3))


def test_nothing_in_a_file_is_run(torch: Any, spoilt: Callable[..., Path], tmp_path: Path) -> None:
    """What is unpickled here is unpickled by torch.export.load."""

    class Harm:
        def __init__(self, name: str) -> None:
            self.path = tmp_path / name

        def __reduce__(self) -> Any:
            return (self.path.touch, ())

    def change(members: dict[str, bytes]) -> None:
        members["data/sample_inputs/model.pt"] = pickle.dumps(Harm("unpickled"))
        program = json.loads(members["models/model.json"])
        size = program["graph_module"]["graph"]["tensor_values"]["ids"]["sizes"][0]["as_expr"]
        size["expr_str"] = f"[__import__('pathlib').Path({str(tmp_path / 'evaluated')!r}).touch(), Symbol('s23')][1]"
        members["models/model.json"] = json.dumps(program).encode()

    path = spoilt(change)
    with pytest.raises(ModelError):
        write_fixed(path, {}, {"s23": 3, "s27": 4}, tmp_path / "model.pt2")
    assert not {"unpickled", "evaluated"} & {item.name for item in tmp_path.iterdir()}
    with contextlib.suppress(Exception):
        torch.export.load(path)
    assert (tmp_path / "unpickled").exists()


def test_a_copy_that_was_changed_is_checked_again(torch: Any, words: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.pt2"
    write_fixed(words, {}, {"s23": 3, "s27": 4}, copy)
    with zipfile.ZipFile(copy) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    members["model/models/model.json"] = members["model/models/model.json"].replace(b"aten.softmax.int", b"aten.save")
    with zipfile.ZipFile(copy, "w") as opened:
        for name, data in members.items():
            opened.writestr(name, data)
    with pytest.raises(ModelError, match="reads or writes files"):
        load_program(copy)


def test_an_operator_that_tvm_lacks_is_named(torch: Any, tmp_path: Path) -> None:
    class Lacking(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.eigvalsh(x)

    torch.export.save(torch.export.export(Lacking(), (torch.eye(3),)), tmp_path / "model.pt2")
    inputs, _ = write_fixed(tmp_path / "model.pt2", {}, {}, tmp_path / "fixed.pt2")
    with pytest.raises(ModelError, match=r"model\.pt2 cannot be imported.*eigh"):
        import_program(tmp_path / "fixed.pt2", inputs, shown=tmp_path / "model.pt2")


def test_an_open_batch_is_1_where_the_program_allows_it(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    module = torch.nn.Linear(4, 4)
    for least, taken in ((0, True), (3, False)):
        batch = torch.export.Dim("batch", min=least, max=64)
        torch.export.save(torch.export.export(module, (torch.ones(5, 4),), dynamic_shapes={"input": {0: batch}}), path)
        if taken:
            inputs, batches = write_fixed(path, {}, {}, tmp_path / "fixed.pt2")
            assert [item.shape for item in inputs] == [item.shape for item in batches] == [(1, 4)]
            continue
        with pytest.raises(OpenShapes) as caught:
            write_fixed(path, {}, {}, tmp_path / "fixed.pt2")
        assert caught.value.advised == ("input=5x4",)
