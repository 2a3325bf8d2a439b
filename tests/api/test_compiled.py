"""A module of PyTorch runs the library that was exported for it, and runs as it is for all else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.errors import BadInput, MachineProblem
from autotune.schema import plain
from autotune.storage.export_registry import register
from autotune.storage.job_files import read_spec
from autotune.storage.paths import Workspace

from ..exported_library import BY_LIBRARY, BY_MODEL, write_library, write_model, write_report


@pytest.fixture
def module(torch: Any) -> Any:
    """A module that multiplies by its weight, and returns its input as well."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(BY_MODEL))

        def forward(self, x: Any) -> Any:
            return x * self.factor, x + 0

    return Net().eval()


@pytest.fixture
def exported(
    torch: Any, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_once: Callable[..., Path]
) -> Any:
    """The module, of which a library is registered."""
    from autotune.api.program_digest import program_digest

    compiled = made_once("door", lambda folder: write_library(folder / "lib"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    shutil.copytree(compiled / "lib", tmp_path / "lib")
    with torch.no_grad():
        digest = program_digest(torch.export.export(module, (torch.ones(1, 8),)))
    write_report(tmp_path / "lib", write_model(tmp_path / "model.onnx"), digest=plain(digest))
    register(tmp_path / "lib", digest)
    return module


def factor(torch: Any, call: Any, x: Any = None) -> float:
    """What a call multiplies its input by."""
    with torch.no_grad():
        x = torch.ones(1, 8) if x is None else x
        first, _ = call(x)
        return float(first[0, 0] / x[0, 0])


def test_a_module_runs_its_library(
    torch: Any, exported: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = autotune.compile(exported, (torch.ones(1, 8),))
    assert factor(torch, compiled) == pytest.approx(BY_LIBRARY)
    assert compiled.chosen == f"the library in {tmp_path / 'lib'} (1 thread)"
    assert capsys.readouterr().err == f"autotune: Net runs in {compiled.chosen}\n"


def test_another_shape_and_gradients_are_the_modules_own(torch: Any, exported: Any) -> None:
    compiled = autotune.compile(exported, (torch.ones(1, 8),))
    assert factor(torch, compiled, torch.ones(2, 8)) == BY_MODEL
    assert factor(torch, compiled, torch.ones(1, 8, dtype=torch.float64)) == BY_MODEL
    x = torch.ones(1, 8, requires_grad=True)
    compiled(x)[0].sum().backward()
    assert float(x.grad[0, 0]) == BY_MODEL
    assert factor(torch, compiled) == pytest.approx(BY_LIBRARY)


def test_a_module_with_other_weights_does_not_get_the_library(torch: Any, exported: Any) -> None:
    with torch.no_grad():
        exported.factor.mul_(2)
    compiled = autotune.compile(exported, (torch.ones(1, 8),))
    assert factor(torch, compiled) == 2 * BY_MODEL
    assert compiled.chosen == "PyTorch: no library was exported for it"


def test_a_weight_that_is_changed_afterwards_ends_the_use_of_the_library(torch: Any, exported: Any) -> None:
    compiled = autotune.compile(exported, (torch.ones(1, 8),))
    assert factor(torch, compiled) == pytest.approx(BY_LIBRARY)
    exported.load_state_dict({"factor": torch.tensor(7.0)})
    assert factor(torch, compiled) == 7 and "its weights were changed" in compiled.chosen


def test_a_module_in_training_mode_is_left_alone(torch: Any, exported: Any) -> None:
    compiled = autotune.compile(exported.train(), (torch.ones(1, 8),))
    assert factor(torch, compiled) == BY_MODEL and "call eval() before" in compiled.chosen


def test_what_cannot_be_exported_runs_as_it_is(torch: Any) -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x, -x) if float(x.sum()) > 0 else (-x, x)

    compiled = autotune.compile(Branches().eval(), (torch.ones(1, 8),))
    assert factor(torch, compiled) == 1 and compiled.chosen.startswith("PyTorch: it cannot be exported")
    with pytest.raises(BadInput, match=r"cannot submit this module: torch\.export"):
        autotune.compile(Branches().eval(), (torch.ones(1, 8),), submit=True)


def test_a_module_without_a_library_is_submitted_once(torch: Any, module: Any, workspace: Workspace) -> None:
    for _ in range(2):
        compiled = autotune.compile(module, (torch.ones(1, 8),), submit=True, workspace=workspace.root, trials=5)
        assert compiled.job is not None and factor(torch, compiled) == BY_MODEL
    (paths,) = workspace.job_list()
    spec = read_spec(paths)
    assert (spec.name, spec.model, spec.trials) == ("Net", "Net", 5)
    assert f"job 1 (Net) of {workspace.root} tunes it" in compiled.chosen


def test_the_digest_of_a_program_is_of_what_it_computes(torch: Any, module: Any) -> None:
    from autotune.api.program_digest import program_digest

    def digest(of: Any, x: Any) -> Any:
        return program_digest(torch.export.export(of, (x,)))

    class Renamed(torch.nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(scale))

        def forward(self, image: Any) -> Any:
            return image * self.scale, image + 0

    x = torch.ones(1, 8)
    same = digest(module, x)
    assert digest(Renamed(BY_MODEL), x) == same
    assert digest(Renamed(BY_LIBRARY), x) != same
    assert digest(module, torch.ones(1, 9)) != same
    assert digest(module, x.double()) != same


def test_the_backend_of_torch_compile_runs_the_library_of_its_graph(
    torch: Any, module: Any, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    made_once: Callable[..., Path],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    options = {"submit": True, "workspace": str(workspace.root), "trials": 5}
    assert factor(torch, torch.compile(module, backend="autotune", options=options)) == BY_MODEL
    spec = read_spec(workspace.job_list()[0])
    assert spec.digest is not None
    shutil.copytree(made_once("door", lambda folder: write_library(folder / "lib")) / "lib", tmp_path / "lib")
    write_report(tmp_path / "lib", write_model(tmp_path / "model.onnx"), digest=plain(spec.digest))
    register(tmp_path / "lib", spec.digest)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="autotune")
    assert factor(torch, compiled) == pytest.approx(BY_LIBRARY)
    assert factor(torch, compiled, torch.ones(2, 8)) == BY_MODEL
    with torch.no_grad():
        module.factor.fill_(7)
    assert factor(torch, compiled) == 7
    compiled(torch.ones(1, 8))[0].sum().backward()
    assert float(module.factor.grad) == 8


def test_without_pytorch_a_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MachineProblem, match="for modules of PyTorch, which is not installed"):
        autotune.compile(None, ())
