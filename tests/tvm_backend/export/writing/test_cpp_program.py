"""The C++ program compiles, runs the model, and gives what Python gives, bit for bit."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import BadInput
from autotune.options import InputSpec
from autotune.tvm_backend.export.loaded import load
from autotune.tvm_backend.export.writing import cpp_program
from autotune.tvm_backend.isa import amx
from autotune.tvm_backend.load import load_tvm

NAMES = ('x "quoted" \\ ??/ 🎉', "y\t\x07")
ROWS = {"rows=2": 2, "rows=3": 3, "other=3": 3}
TABLES = {"table=20": 20, "table=30": 30}  # of so many rows, of which as many are looked up


def tensors(rows: int) -> list[InputSpec]:
    return [InputSpec(name, (rows, 8), "float32") for name in NAMES]


def compile_two_outputs(folder: Path) -> None:
    """A library that gives exp(x + y) and x * y; "other=3" gives exp(x + y + y) in place of the first."""
    load_tvm("llvm")
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    for name, rows in ROWS.items():
        x, y = (relax.Var(name, relax.TensorType((rows, 8), "float32")) for name in "xy")
        with builder.function(name, [x, y]):
            with builder.dataflow():
                total = builder.emit(relax.op.add(x, y))
                total = builder.emit(relax.op.add(total, y)) if name.startswith("other") else total
                first = builder.emit(relax.op.exp(total))
                both = builder.emit_output(relax.Tuple([first, builder.emit(relax.op.multiply(x, y))]))
            builder.emit_func_output(both)
    for name, rows in TABLES.items():
        ids = relax.Var("ids", relax.TensorType((rows,), "int64"))
        table = np.ones((rows, 8), np.float32)
        with builder.function(name, [ids]):
            with builder.dataflow():
                out = builder.emit_output(builder.emit(relax.op.take(relax.const(table), ids, axis=0)))
            builder.emit_func_output(out)
    relax.build(builder.get(), tvm.target.Target("llvm")).export_library(str(folder / "model.so"))


@pytest.fixture(scope="module")
def program(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The folder of a built program; its library is two folders up."""
    return made_once("cpp_program", build_program) / cpp_program.FOLDER / "build"


def build_program(folder: Path) -> None:
    import tvm_ffi

    compile_two_outputs(folder)
    (folder / cpp_program.FOLDER).mkdir()
    functions = [cpp_program.CppFunction(name, tensors(rows), tensors(rows)) for name, rows in ROWS.items()]
    for name, rows in TABLES.items():
        ids = InputSpec("ids", (rows,), "int64")
        output = InputSpec("y", (rows, 8), "float32")
        functions.append(cpp_program.CppFunction(name, [ids], [output], {"ids": rows}))
    library = cpp_program.Library("model.so", (folder / "model.so").stat().st_size, 2)
    for name, data in cpp_program.sources("net", library, functions, "0"):
        (folder / cpp_program.FOLDER / name).write_bytes(data)
    build = folder / cpp_program.FOLDER / "build"
    built(build, build.parent, Path(tvm_ffi.__file__).parents[1])


def built(build: Path, source: Path, site: Path) -> None:
    """Build the program with the packages in a folder."""
    for words in (["-B", build, "-S", source, f"-DTVM_SITE={site}"], ["--build", build]):
        done = subprocess.run(["cmake", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


def run(program: Path, folder: Path, rows: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program on files of inputs with so many rows, x.bin and y.bin."""
    for name, array in zip("xy", arrays_of(rows), strict=True):
        (folder / f"{name}.bin").write_bytes(array.tobytes())
    return subprocess.run([program / "main", *words, "x.bin", "y.bin"], cwd=folder, capture_output=True, text=True)


def arrays_of(rows: int) -> list[np.ndarray]:
    draw = np.random.default_rng(3).standard_normal
    return [draw((rows, 8)).astype(np.float32) for _ in range(2)]


@needs_cmake
@pytest.mark.parametrize(
    ("entry", "words"), [("rows=2", ()), ("rows=2", ("--repeat", "3")), ("other=3", ("--entry", "other=3"))]
)
def test_the_outputs_of_the_program_are_those_of_python(
    program: Path, tmp_path: Path, entry: str, words: tuple[str, ...]
) -> None:
    done = run(program, tmp_path, ROWS[entry], *words)
    assert done.returncode == 0 and done.stdout.startswith("net: ")
    inputs = [{"name": item.name, "shape": item.shape, "dtype": item.dtype} for item in tensors(ROWS[entry])]
    report = {"threads": 2, "target": {"kind": "llvm"}, "entries": [{"name": entry, "inputs": inputs}]}
    arrays = arrays_of(ROWS[entry])
    for index, expected in enumerate(load(program.parents[1] / "model.so", report)(*arrays)):
        output = np.frombuffer((tmp_path / f"output{index}.bin").read_bytes(), np.float32).reshape(arrays[0].shape)
        assert np.array_equal(output, expected)


OWN = """
#include <cstdio>
#include "autotune.h"

int main(int, char** argv) {
  autotune::Model net(argv[1]);
  const std::vector<float> x(24, 0.5f), y(24, 2.0f);
  const auto outputs = net.run({autotune::input(x, {3, 8}), autotune::input(y.data(), {3, 8})});
  std::printf("%zu %s %g %g\\n", outputs.size(), autotune::text(outputs[1].shape).c_str(),
              outputs[0].values<float>()[23], outputs[1].values<float>()[0]);
  const std::vector<double> wide(24);
  const std::vector<std::vector<autotune::Input>> wrong = {
      {autotune::input(x.data(), {4, 6}), autotune::input(y.data(), {3, 8})},
      {autotune::input(x, {3, 8})},
      {autotune::input(x, {3, 8}), autotune::input(wide, {3, 8})},
  };
  for (const auto& inputs : wrong) {
    try {
      net.run(inputs);
    } catch (const std::invalid_argument& error) {
      std::printf("%s\\n", error.what());
    }
  }
  try {
    autotune::input(x, {3, 9});
  } catch (const std::invalid_argument& error) {
    std::printf("%s\\n", error.what());
  }
  try {
    autotune::Model other(argv[0]);
  } catch (const std::runtime_error& error) {
    std::printf("%s\\n", error.what());
  }
}
"""


@needs_cmake
def test_a_program_of_the_users_own_runs_the_model_and_catches_what_is_wrong(program: Path, tmp_path: Path) -> None:
    import tvm
    import tvm_ffi

    (tmp_path / "own.cc").write_text(OWN)
    folders = [Path(package.__file__).parent / "lib" for package in (tvm, tvm_ffi)]
    linked = [word for folder in folders for word in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    include = [f"-I{program.parent}", f"-I{folders[1].parent}/include"]
    words = ["g++", "-std=c++17", *include, "own.cc", "-o", "own", *linked, "-Wl,--no-as-needed", "-ltvm_runtime"]
    built = subprocess.run([*words, "-ltvm_ffi"], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "own", program.parents[1] / "model.so"], capture_output=True, text=True)
    first, *refusals = done.stdout.splitlines()
    assert done.returncode == 0 and first.split()[:2] == ["2", "3x8"] and first.split()[3] == "1"
    shapes, count, kind, size, library = refusals
    assert shapes.startswith("the library was compiled for other shapes: ") and "of 2x8" in shapes
    assert count == "the model has 2 inputs" and kind.endswith("is float64 3x8, not float32 3x8")
    assert size == "24 values are not of the shape 3x9" and library.endswith("it is damaged, or that of another export")


def test_the_header_is_short() -> None:
    sources = dict(cpp_program.sources("net", cpp_program.Library("model.so", 1, 1), [], "0"))
    assert len(sources["autotune.h"].splitlines()) <= 200


@needs_cmake
def test_an_input_of_another_size_is_refused(program: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"short")
    for words, says in (
        (("x.bin",), "no entry fits the sizes of the files: this library has rows=2 rows=3 other=3 table=20 table=30"),
        (("--entry", "rows=2", "x.bin"), "x.bin does not hold exactly 64 bytes"),
        (("missing.bin",), "no entry fits the sizes of the files"),
        (("--entry", "rows=7"), "no entry rows=7: this library has rows=2 rows=3 other=3 table=20 table=30"),
    ):
        done = subprocess.run([program / "main", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and says in done.stderr


@needs_cmake
def test_files_that_fit_several_entries_need_a_name(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, 3)
    assert done.returncode == 2 and "several entries fit the sizes of the files; give --entry NAME" in done.stderr


@needs_cmake
@pytest.mark.parametrize("entry", TABLES)
@pytest.mark.parametrize("outside", [-1, 29, 30, 2**40])
def test_an_index_that_its_table_lacks_is_refused_as_in_python(
    program: Path, tmp_path: Path, entry: str, outside: int
) -> None:
    rows = TABLES[entry]
    inputs = {name: [{"name": "ids", "shape": [size], "dtype": "int64", "rows": size}] for name, size in TABLES.items()}
    entries = [{"name": name, "inputs": described} for name, described in inputs.items()]
    model = load(program.parents[1] / "model.so", {"threads": 2, "target": {"kind": "llvm"}, "entries": entries})
    ids = np.arange(rows)
    ids[1] = outside
    (tmp_path / "ids.bin").write_bytes(ids.tobytes())
    done = subprocess.run([program / "main", "ids.bin"], cwd=tmp_path, capture_output=True, text=True)
    if 0 <= outside < rows:
        assert done.returncode == 0 and (model(ids) == 1).all()
        return
    with pytest.raises(BadInput) as caught:
        model(ids)
    assert (done.returncode, done.stderr) == (2, f"{caught.value}\n")
    assert f"'ids' has the index {outside}; its table has {rows} rows" in done.stderr


@needs_cmake
def test_the_program_needs_no_python(program: Path) -> None:
    linked = subprocess.run(["ldd", program / "main"], capture_output=True, text=True).stdout
    assert "libtvm_runtime.so" in linked and "libtvm_compiler" not in linked and "python" not in linked.split("/")[0]


def test_names_survive_as_string_literals() -> None:
    function = cpp_program.CppFunction("main", tensors(2), [])
    header = dict(cpp_program.sources('a"b', cpp_program.Library("model.so", 1, 1), [function], "0"))[
        "model.h"
    ].decode()
    assert r'{"x \"quoted\" \\ \?\?/ \360\237\216\211", {2, 8}, "float32", 0}' in header
    assert r'kName[] = "a\"b"' in header


def rebuilt(program: Path, folder: Path, change: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """What the program says when its header says something else."""
    shutil.copytree(program.parent, folder / "cpp", ignore=shutil.ignore_patterns("build"))
    shutil.copy(program.parents[1] / "model.so", folder)
    header = folder / "cpp" / cpp_program.HEADER
    assert change[0] in header.read_text()
    header.write_text(header.read_text().replace(*change))
    import tvm_ffi

    built(folder / "build", folder / "cpp", Path(tvm_ffi.__file__).parents[1])
    return subprocess.run([folder / "build" / "main"], cwd=folder, capture_output=True, text=True)


@needs_cmake
def test_another_machine_needs_two_libraries_of_tvm_beside_the_program(program: Path, tmp_path: Path) -> None:
    import tvm_ffi

    site, shipped = tmp_path / "site", tmp_path / "shipped"
    packages = Path(tvm_ffi.__file__).parents[1]
    site.symlink_to(packages)
    built(tmp_path / "build", program.parent, site)
    site.unlink()
    shipped.mkdir()
    libraries = (packages / "tvm" / "lib" / "libtvm_runtime.so", packages / "tvm_ffi" / "lib" / "libtvm_ffi.so")
    for file in (tmp_path / "build" / "main", program / "model.so"):
        shutil.copy(file, shipped)
    for library in libraries:
        assert subprocess.run([shipped / "main"], cwd=tmp_path, env={}, capture_output=True).returncode == 127
        shutil.copy(library, shipped)
    assert subprocess.run([shipped / "main"], cwd=tmp_path, env={}).returncode == 0
    assert subprocess.run(["main"], cwd=tmp_path, env={"PATH": str(shipped)}).returncode == 0


@needs_cmake
def test_a_cpu_without_the_instructions_of_the_library_is_refused(program: Path, tmp_path: Path) -> None:
    done = rebuilt(program, tmp_path, ('kInstructions[] = ""', 'kInstructions[] = "sse2 sse9_9 avx99"'))
    assert (done.returncode, done.stdout) == (2, "")
    says = "the model was compiled for a CPU with sse9_9, avx99, which this one lacks; tune and export it on such a"
    assert done.stderr == f"{says} machine\n"


@needs_cmake
def test_a_library_that_was_cut_short_is_refused(program: Path, tmp_path: Path) -> None:
    shutil.copy(program / "main", tmp_path)
    size = (program / "model.so").stat().st_size
    for content, says in ((b"short", f"model.so has 5 bytes, and {size} were written"), (None, "No such file")):
        if content is None:
            (tmp_path / "model.so").unlink()
        else:
            (tmp_path / "model.so").write_bytes(content)
        done = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
        assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("error", [0, errno.ENOSPC, errno.EINVAL, errno.EPERM])
def test_the_tiles_of_amx_are_refused_as_in_python(tmp_path: Path, error: int) -> None:
    (tmp_path / "main.cpp").write_text(f'#include "machine.h"\nint main() {{ amx::check_tiles({error}); }}\n')
    for name, data in cpp_program.sources("net", cpp_program.Library("model.so", 1, 1), [], "0"):
        if name in cpp_program.CHECKS:
            (tmp_path / name).write_bytes(data)
    subprocess.run(["g++", "-std=c++17", "main.cpp", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
    says = amx.refusal(error)
    assert (done.returncode, done.stderr) == ((2, f"{says}\n") if says else (0, ""))
