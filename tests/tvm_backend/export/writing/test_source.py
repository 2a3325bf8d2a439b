"""The source of a network builds, needs no runtime, and computes what the library does, bit for bit."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.options import InputSpec
from autotune.tvm_backend.export.compilation import build_lowered, lower_tuned
from autotune.tvm_backend.export.runners import vm_runner
from autotune.tvm_backend.export.writing import files
from autotune.tvm_backend.export.writing.network_text import model_header
from autotune.tvm_backend.export.writing.source import Described, write_source

SHAPE = (16, 32)
pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


@dataclass(frozen=True)
class Written:
    """A network's source, what it was written from, and the outputs of the library on the ramp."""

    folder: Path
    module: Any
    executable: Any
    expected: list[np.ndarray]


def perceptron(relax: Any, builder: Any, x: Any) -> Any:
    """Two layers, and the exponential of the first one, which is computed in parallel."""
    draw = np.random.default_rng(1).standard_normal
    first, second = (relax.const(draw(shape).astype("float32") / 6) for shape in ((32, 64), (64, 16)))
    hidden = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, first))))
    return relax.Tuple([builder.emit(relax.op.matmul(hidden, second)), builder.emit(relax.op.exp(hidden))])


@pytest.fixture(scope="module")
def written(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Written:
    import tvm
    from tvm import relax

    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(perceptron(relax, builder, x))
        builder.emit_func_output(out)
    prepared = prepare(builder.get(), target)
    lowered = lower_tuned(prepared, [task.program for task in extract_tasks(prepared, target)], {}, target)
    executable = build_lowered(lowered, target)
    folder = tmp_path_factory.mktemp("exported") / files.SOURCE
    described = Described('a "net"', [InputSpec("x", SHAPE, "float32")], ["y", "e"], 2, "0")
    write_source(folder, lowered, executable, described)
    ramp = (np.arange(np.prod(SHAPE), dtype=np.float32) / np.float32(np.prod(SHAPE))).reshape(SHAPE)
    return Written(folder, lowered, executable, vm_runner(executable, tvm.cpu(0), [ramp])())


@pytest.fixture(scope="module")
def build(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds the program, after a change of its network or another file if one is given, and returns its path."""

    def make(change: Callable[[str], str] | None = None, file: str = files.NETWORK) -> Path:
        folder = tmp_path_factory.mktemp("built") / "source"
        shutil.copytree(written.folder, folder)
        if change is not None:
            text = (folder / file).read_text()
            assert change(text) != text
            (folder / file).write_text(change(text))
        for words in (["-S", folder, "-B", folder / "build"], ["--build", folder / "build"]):
            done = subprocess.run(["cmake", *map(str, words)], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        return folder / "build" / "main"

    return make


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build()


def run(program: Path, folder: Path, *words: str | Path) -> str:
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def outputs(folder: Path, like: list[np.ndarray]) -> list[np.ndarray]:
    files = (folder / f"output{index}.bin" for index in range(len(like)))
    raw = [np.frombuffer(file.read_bytes(), np.float32) for file in files]
    return [values.reshape(item.shape) for values, item in zip(raw, like, strict=True)]


def same(arrays: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(arrays, expected, strict=True))


def test_a_second_compilation_replaces_what_the_first_one_wrote(written: Written, tmp_path: Path) -> None:
    described = Described('a "net"', [InputSpec("x", SHAPE, "float32")], ["y", "e"], 2, "0")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "left.bin").touch()
    write_source(tmp_path / "source", written.module, written.executable, described)
    assert {file.name for file in (tmp_path / "source").iterdir()} == {file.name for file in written.folder.iterdir()}


def test_the_outputs_of_the_program_are_those_of_the_library(program: Path, written: Written, tmp_path: Path) -> None:
    said = run(program, tmp_path, "--repeat", "3")
    assert same(outputs(tmp_path, written.expected), written.expected)
    assert re.match(r'a "net": [0-9.]+ ms, the median of 3 runs', said)


def test_the_program_reads_inputs_and_keeps_them_between_runs(program: Path, written: Written, tmp_path: Path) -> None:
    import tvm

    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    (tmp_path / "x.bin").write_bytes(x.tobytes())
    run(program, tmp_path, "--repeat", "5", "x.bin")
    expected = vm_runner(written.executable, tvm.cpu(0), [x])()
    assert same(outputs(tmp_path, expected), expected) and not same(expected, written.expected)


def test_the_program_needs_the_c_library_alone(program: Path) -> None:
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    needed = {line.split()[0] for line in linked.splitlines()}
    assert {re.split(r"[.-]", Path(name).name)[0] for name in needed} <= {"linux", "libc", "libm", "ld"}


def with_odd_threads(text: str) -> str:
    """Give each parallel block another number of threads, and swap two blocks that do not need each other."""
    numbers = itertools.count(3, 2)
    text = re.sub(r"\), kThreads, \{", lambda _: f"), {next(numbers)}, {{", text)
    return text.replace("    block1.run();\n    block2.run();\n", "    block2.run();\n    block1.run();\n")


def test_threads_and_order_change_no_result(build: Callable[..., Path], written: Written, tmp_path: Path) -> None:
    said = run(build(with_odd_threads), tmp_path, "--repeat", "200", "--blocks")
    assert same(outputs(tmp_path, written.expected), written.expected)
    network = with_odd_threads((written.folder / files.NETWORK).read_text())
    asked = re.findall(r"^ +Block \w+\{KERNEL\(\w+\), ([0-9]+), ", network, re.MULTILINE)
    assert len(asked) == 3 and {"3", "5"} <= set(asked)
    assert re.findall(r"^ +[0-9.]+ +([0-9]+)  \w+$", said, re.MULTILINE) == asked


def test_weights_of_another_network_are_refused(program: Path, written: Written, tmp_path: Path) -> None:
    data = (written.folder / files.WEIGHTS).read_bytes()
    for content in (data[:-64], data.replace(b"weights ", b"weights 0", 1)[: len(data)]):
        (tmp_path / "other.bin").write_bytes(content)
        done = subprocess.run([program, "--weights", "other.bin"], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (2, "these are not the weights of this network: other.bin\n")


def test_an_index_that_its_table_lacks_is_refused(build: Callable[..., Path], tmp_path: Path) -> None:
    plain = '"x", "float32", 2048, 0,'
    table = '"x", "float32", 2048, 20,'
    program = build(lambda text: text.replace(plain, table), files.SOURCE_HEADER)
    x = np.zeros(SHAPE, np.float32)
    for outside, refused in ((19.5, False), (-0.5, False), (20.0, True), (-1.0, True)):
        x[3, 4] = outside
        (tmp_path / "x.bin").write_bytes(x.tobytes())
        done = subprocess.run([program, "x.bin"], cwd=tmp_path, capture_output=True, text=True)
        said = f"input 'x' has the index {outside:.0f}; its table has 20 rows, counted from 0\n" if refused else ""
        assert (done.returncode, done.stderr) == (2 if refused else 0, said)


def test_the_header_says_how_many_rows_a_table_has() -> None:
    inputs = [InputSpec("ids", (1, 8), "int64"), InputSpec("x", (2,), "float32")]
    text = model_header("net", inputs, [InputSpec("y", (2,), "float32")], {"ids": 30}, ["avx2", "fma"], "0")
    assert '{"ids", "int64", 64, 30, 2, {1, 8}}' in text
    assert 'kInstructions[] = "avx2 fma";' in text
    assert '{"x", "float32", 8, 0, 1, {2}}' in text and '{"y", "float32", 8, 0, 1, {2}}' in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["short.bin"], "short.bin does not hold exactly 2048 bytes"),
        (["short.bin", "short.bin"], "1 inputs at most"),
        (["--weights", "none"], "cannot read the weights: none"),
        (["--fast"], "main [--repeat N]"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(program: Path, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "short.bin").write_bytes(b"short")
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_a_cpu_without_the_instructions_of_the_kernels_is_refused(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(lambda text: text.replace('kInstructions[] = "', 'kInstructions[] = "sse9_9 '), files.SOURCE_HEADER)
    done = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("the model was compiled for a CPU with sse9_9, which this one lacks; ")
