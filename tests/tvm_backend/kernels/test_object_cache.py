"""A model that is linked from kept kernels computes what it does when it is compiled whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.errors import WorkerError
from autotune.storage.kept_objects import KeptObjects
from autotune.tvm_backend.export.compilation import JobModel, lower_tuned
from autotune.tvm_backend.kernels import object_cache
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.target import tvm_target


@pytest.fixture(scope="module")
def lowered(target: Any) -> Any:
    """A model of two products with a softmax behind them, and a large weight, which is mapped."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 300), "float32"))
    random = np.random.default_rng(0)
    with builder.function("main", [x]):
        with builder.dataflow():
            first = relax.const(random.standard_normal((300, 400), np.float32))
            second = relax.const(random.standard_normal((400, 10), np.float32))
            hidden = builder.emit(relax.op.nn.relu(relax.op.matmul(x, first)))
            output = builder.emit_output(relax.op.nn.softmax(relax.op.matmul(hidden, second)))
        builder.emit_func_output(output)
    return lower_tuned(prepare(builder.get(), target), (), {}, target)


@pytest.fixture
def kept(tmp_path: Path) -> KeptObjects:
    return KeptObjects(tmp_path / "objects", 10**7)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are compiled from now on, each to an object."""
    names: list[str] = []
    build = object_cache._compiled
    monkeypatch.setattr(
        object_cache, "_compiled", lambda programs, *rest: names.extend(programs) or build(programs, *rest)
    )
    return names


def write(lowered: Any, target: Any, path: Path, kept: KeptObjects | None) -> Path:
    JobModel(lowered, lowered, (), target)._write(lowered, path, kept)
    return path


def run(library: Path) -> Any:
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    x = np.random.default_rng(1).standard_normal((4, 300), np.float32)
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def names(module: Any) -> set[str]:
    return {str(var.name_hint) for var, item in module.functions.items() if isinstance(item, tvm.tirx.PrimFunc)}


def test_it_computes_the_same_and_nothing_is_compiled_twice(
    lowered: Any, target: Any, kept: KeptObjects, compiled: list[str], tmp_path: Path
) -> None:
    whole = write(lowered, target, tmp_path / "whole.so", None)
    first = write(lowered, target, tmp_path / "first.so", kept)
    assert set(compiled) == names(lowered) and len(compiled) > 1
    compiled.clear()
    second = write(lowered, target, tmp_path / "second.so", kept)
    assert not compiled
    assert second.read_bytes() == first.read_bytes()
    np.testing.assert_array_equal(run(second), run(whole))


def test_a_damaged_object_is_compiled_again(
    lowered: Any, target: Any, kept: KeptObjects, compiled: list[str], tmp_path: Path
) -> None:
    first = write(lowered, target, tmp_path / "first.so", kept).read_bytes()
    compiled.clear()
    victim = sorted(kept.folder.iterdir())[0]
    victim.write_bytes(victim.read_bytes()[:-1] + b"\1")
    assert write(lowered, target, tmp_path / "second.so", kept).read_bytes() == first
    assert len(compiled) == 1


def test_what_another_compiler_or_target_made_is_not_linked(
    lowered: Any, target: Any, kept: KeptObjects, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    object_cache.kernel_objects(lowered, target, kept)
    compiled.clear()
    other = tvm_target({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2})
    object_cache.kernel_objects(lowered, other, kept)
    assert set(compiled) == names(lowered)
    compiled.clear()
    monkeypatch.setattr(object_cache, "compiler_digest", lambda: "another version")
    object_cache.kernel_objects(lowered, target, kept)
    assert set(compiled) == names(lowered)


def test_a_program_that_was_scheduled_otherwise_is_another_object(
    lowered: Any, target: Any, kept: KeptObjects, compiled: list[str]
) -> None:
    object_cache.kernel_objects(lowered, target, kept)
    compiled.clear()
    changed = sorted(names(lowered))[0]
    functions = dict(lowered.functions.items())
    var = lowered.get_global_var(changed)
    functions[var] = functions[var].with_attr("autotune_threads", 1)
    object_cache.kernel_objects(tvm.IRModule(functions, attrs=lowered.attrs), target, kept)
    assert compiled == [changed]


def test_processes_that_compile_at_the_same_time_make_the_same_objects(
    lowered: Any, target: Any, kept: KeptObjects, tmp_path: Path
) -> None:
    alone = object_cache.kernel_objects(lowered, target, kept)
    assert object_cache.kernel_objects(lowered, target, KeptObjects(tmp_path / "others", 10**7), children=2) == alone


def test_a_kernel_that_cannot_be_compiled_is_named(
    lowered: Any, target: Any, kept: KeptObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no such instruction")

    monkeypatch.setattr(object_cache.tvm.tirx, "build", fails)
    with pytest.raises(WorkerError, match=r"^the kernel \w+ cannot be compiled: ValueError: no such instruction$"):
        object_cache.kernel_objects(lowered, target, kept, children=2)
    assert not kept.folder.exists()


def test_the_name_of_a_kernel_may_be_too_long_for_a_file(lowered: Any, target: Any, kept: KeptObjects) -> None:
    name = "fused_" + "multiply_" * 40
    program = next(item for item in lowered.functions.values() if isinstance(item, tvm.tirx.PrimFunc))
    module = tvm.IRModule({name: program.with_attr("global_symbol", name)})
    assert list(object_cache.kernel_objects(module, target, kept)) == [name]
