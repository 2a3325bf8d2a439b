"""The C++ program compiles, runs the model, and gives what Python gives, bit for bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from autotune.storage.formats import InputSpec
from autotune.tvm_backend.export import cpp_program
from autotune.tvm_backend.export.loaded import load
from autotune.tvm_backend.load import load_tvm

X = InputSpec('x "quoted"', (2, 8), "float32")
Y = InputSpec("y", (2, 8), "float32")


def compile_two_outputs(folder: Path) -> None:
    """A library that gives exp(x + y) and x * y."""
    load_tvm("llvm")
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(X.shape, "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            first = builder.emit(relax.op.exp(builder.emit(relax.op.add(x, y))))
            both = builder.emit_output(relax.Tuple([first, builder.emit(relax.op.multiply(x, y))]))
        builder.emit_func_output(both)
    relax.build(builder.get(), tvm.target.Target("llvm")).export_library(str(folder / "model.so"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a built program; its library is one folder up."""
    folder = tmp_path_factory.mktemp("exported")
    compile_two_outputs(folder)
    (folder / cpp_program.FOLDER).mkdir()
    for name, data in cpp_program.sources("net", "model.so", 2, [X, Y], [X, Y], "0"):
        (folder / cpp_program.FOLDER / name).write_bytes(data)
    build = folder / cpp_program.FOLDER / "build"
    import tvm_ffi

    site = Path(tvm_ffi.__file__).parents[1]
    for words in (["-B", build, "-S", build.parent, f"-DTVM_SITE={site}"], ["--build", build]):
        done = subprocess.run(["cmake", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


@needs_cmake
def test_its_outputs_are_those_of_python(program: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(3).standard_normal
    arrays = [draw(X.shape).astype(np.float32) for _ in range(2)]
    for name, array in zip("xy", arrays, strict=True):
        (tmp_path / f"{name}.bin").write_bytes(array.tobytes())
    done = subprocess.run([program / "main", "x.bin", "y.bin"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("net: ")
    inputs = [{"name": item.name, "shape": item.shape, "dtype": item.dtype} for item in (X, Y)]
    report = {"threads": 2, "target": {"kind": "llvm"}, "inputs": inputs}
    for index, expected in enumerate(load(program.parents[1] / "model.so", report)(*arrays)):
        found = np.frombuffer((tmp_path / f"output{index}.bin").read_bytes(), np.float32).reshape(X.shape)
        assert np.array_equal(found, expected)


@needs_cmake
def test_an_input_of_another_size_is_refused(program: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"short")
    done = subprocess.run([program / "main", "x.bin"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "x.bin does not hold exactly 64 bytes" in done.stderr


@needs_cmake
def test_it_needs_no_python(program: Path) -> None:
    linked = subprocess.run(["ldd", program / "main"], capture_output=True, text=True).stdout
    assert "libtvm_runtime.so" in linked and "libtvm_compiler" not in linked and "python" not in linked.split("/")[0]


def test_names_survive_as_string_literals() -> None:
    header = dict(cpp_program.sources('a"b', "model.so", 1, [X], [], "0"))["model.h"].decode()
    assert r'{"x \"quoted\"", {2, 8}, "float32"}' in header and r'kName[] = "a\"b"' in header
