"""The commands that the README and the guides show run, in the order of the page, on small models."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tomli
from onnx import TensorProto, helper, numpy_helper

from autotune.strategies import strategy
from autotune.tvm_backend.cuda import runtime

from ..docs.conftest import Block, blocks
from ..gguf_files import decoder
from ..rpc_lab import TARGET, free_port
from .conftest import SCRIPTS, User
from .guide_runs import GUIDES, Guide, Shape

ROOT = Path(__file__).parents[2]
PROGRAMS = {"autotune", "python", "python3", "pip", "cmake", "build/main", "ray", "ssh", "printf", "scripts/test.sh"}
OTHERS = {
    "docs/getting-started.md": "test_quickstart.py runs it",
    "docs/guides/python.md": "test_examples.py runs it: it has no command lines",
    "CONTRIBUTING.md": "the checks themselves",
    "docs/explanation/": "measurements of minutes to hours; tests/docs/test_commands.py parses them",
    "docs/reference/": "no command lines",
}
# Cron's own program, as far as `daemon install` calls it: it keeps the table in a file beside it.
CRONTAB = """#!/bin/sh
table="$(dirname "$0")/table"
case "$1" in
-l) if [ -f "$table" ]; then cat "$table"; else echo "no crontab for user" >&2; exit 1; fi ;;
-r) rm "$table" ;;
-) cat > "$table" ;;
esac
"""
CPP = all(map(shutil.which, ("cmake", "c++")))
MISSING = {
    "docs/guides/cluster.md": None if importlib.util.find_spec("ray") else "NO RAY: pip install 'autotune-tvm[ray]'",
    "docs/guides/boards.md": None
    if importlib.util.find_spec("tornado")
    else "NO TORNADO: pip install 'autotune-tvm[rpc]'",
    "docs/guides/gpus.md": None if runtime.nvcc() else "NO NVCC: nothing compiles for GPUs here",
    **dict.fromkeys(
        ("README.md", "docs/guides/cpp.md", "docs/guides/source.md"), None if CPP else "NO CMAKE OR NO C++ COMPILER"
    ),
}
for _page, _why in MISSING.items():
    if _why:
        warnings.warn(f"{_page} was not run: {_why}", stacklevel=1)


def is_shell(block: Block) -> bool:
    lines = [line for line in block.text.splitlines() if line.strip()]
    return block.language == "sh" or (block.language == "" and all(line.split()[0] in PROGRAMS for line in lines))


def command_lines(page: str) -> list[str]:
    """The command lines of a page: those of shell blocks, and those after a prompt in blocks with output."""
    lines: list[str] = []
    for block in blocks(ROOT / page):
        if block.language == "console":
            lines += re.findall(r"^\$ (.*)$", block.text, re.M)
        elif is_shell(block):
            lines += [line for line in block.text.splitlines() if line]
    return lines


def bare(line: str) -> str:
    """A command line without its comment."""
    return re.sub(r"\s+# .*", "", line)


def chosen(table: dict[str, str] | Any, line: str) -> str | None:
    return next((text for beginning, text in table.items() if line.startswith(beginning)), None)


def script(guide: Guide) -> str:
    """What is run: each command line, or what stands for it, after a line that says which one it is."""
    steps = ["set -e"]
    for line in map(bare, command_lines(guide.page)):
        if chosen(guide.elsewhere, line) is None:
            text = (chosen(guide.changes, line) or "{}").replace("{}", line)
            for old, new in guide.names.items():
                text = text.replace(old, new)
            steps += [f"echo {shlex.quote('$ ' + line)}", text]
    return "\n".join(steps)


def write_model(path: Path, shapes: dict[str, Shape] | Any) -> None:
    """A model that has a product of each input with a constant, or a convolution where the input is an image."""
    nodes = []
    constants = []
    given = []
    made = []
    for name, shape in shapes.items():
        words = name in ("input_ids", "attention_mask")
        image = len(shape) == 4
        scalar = not shape
        element = TensorProto.INT64 if words or scalar else TensorProto.FLOAT
        given.append(helper.make_tensor_value_info(name, element, shape))
        made.append(helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None))
        sizes = (8, 3, 1, 1) if image else (100, 16) if words else (1,) if scalar else (shape[-1], 16)
        value = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
        constants.append(numpy_helper.from_array(value, f"{name}_w"))
        if words:
            nodes += [helper.make_node("Gather", [f"{name}_w", name], [f"{name}_found"])]
            constants.append(numpy_helper.from_array(value[:16], f"{name}_v"))
            nodes += [helper.make_node("MatMul", [f"{name}_found", f"{name}_v"], [f"{name}_out"])]
        elif scalar:
            nodes += [helper.make_node("Cast", [name], [f"{name}_cast"], to=TensorProto.FLOAT)]
            nodes += [helper.make_node("Mul", [f"{name}_cast", f"{name}_w"], [f"{name}_out"])]
        else:
            nodes += [helper.make_node("Conv" if image else "MatMul", [name, f"{name}_w"], [f"{name}_out"])]
    graph = helper.make_graph(nodes, "net", given, made, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def configuration(page: str, index: int = 0) -> str:
    """A block of TOML of a page."""
    return [
        block.text
        for block in blocks(ROOT / page)
        if block.language == "toml" or (not block.language and block.text.startswith("["))
    ][index]


def prepare_strategy(folder: Path) -> None:
    """A package with the strategy of the docstring of `strategies.base`, installed as its page says."""
    site = folder / "site"
    (site / "mypackage").mkdir(parents=True)
    (site / "mypackage" / "__init__.py").touch()
    _, example = (strategy.__doc__ or "").split("named by an entry point):\n\n")
    (site / "mypackage" / "hill.py").write_text(re.sub(r"^ {4}", "", example, flags=re.M))
    (points,) = tomli.loads(configuration("docs/guides/own-strategy.md"))["project"]["entry-points"].items()
    info = site / "mypackage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    lines = [f"[{points[0]}]", *(f"{name} = {value}" for name, value in points[1].items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (test,) = [block.text for block in blocks(ROOT / "docs/guides/own-strategy.md") if block.language == "python"]
    (folder / "test_hill.py").write_text(test)


def prepare_boards(folder: Path) -> None:
    section = configuration("docs/guides/boards.md")
    assert "aarch64" in section
    section = re.sub("(?m)^target = .*$", f"target = '{TARGET}'", section)
    (folder / "autotune.toml").open("a").write("\n" + section.replace("count = 3", "count = 1"))


def prepare_cluster(folder: Path) -> None:
    (folder / "autotune.toml").open("a").write("\n" + configuration("docs/guides/cluster.md"))


def prepare_sweep(folder: Path) -> None:
    parts = [configuration("docs/guides/sweeps.md", index) for index in (0, 1)]
    (folder / "suite.toml").write_text("\n".join(parts))


def prepare_scenario(folder: Path) -> None:
    (folder / "scenario.toml").write_text(configuration("docs/guides/simulate.md"))


def prepare_inputs(folder: Path) -> None:
    words = np.ones((1, 32), np.int64)
    np.savez(folder / "examples.npz", input_ids=words, attention_mask=words)


def prepare_command(folder: Path) -> None:
    (folder / "tell-me").write_text("#!/bin/sh\n")
    (folder / "tell-me").chmod(0o755)


def prepare_samples(folder: Path) -> None:
    samples = np.random.default_rng(1).standard_normal((8, 784)).astype(np.float32)
    np.savez(folder / "samples.npz", input=samples)


def prepare_accuracy(folder: Path) -> None:
    """The samples, their right answers, and the command of the page that counts these."""
    prepare_samples(folder)
    np.save(folder / "labels.npy", np.zeros(8, np.int64))
    (text,) = [block.text for block in blocks(ROOT / "docs/guides/precision.md") if block.language == "python"]
    (folder / "accuracy.py").write_text(text)


def prepare_decoder(folder: Path) -> None:
    """A small decoder that was trained for more tokens than the page asks for."""
    decoder("llama", layers=1).having(**{"llama.context_length": 4096}).write(folder / "model.gguf")


def prepare_recipes(folder: Path) -> None:
    prepare_samples(folder)
    prepare_decoder(folder)


PREPARE: dict[str, Callable[[Path], None]] = {
    "docs/guides/own-strategy.md": prepare_strategy,
    "docs/guides/boards.md": prepare_boards,
    "docs/guides/cluster.md": prepare_cluster,
    "docs/guides/sweeps.md": prepare_sweep,
    "docs/guides/simulate.md": prepare_scenario,
    "README.md": prepare_recipes,
    "docs/guides/precision.md": prepare_accuracy,
    "docs/guides/shapes.md": prepare_inputs,
    "docs/guides/budgets.md": prepare_command,
    "docs/guides/language-models.md": prepare_decoder,
}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH with this tree's autotune, this Python and its Ray, and a crontab that changes no machine."""
    folder = tmp_path / "tools"
    folder.mkdir()
    python = shlex.quote(sys.executable)
    texts = {"autotune": f'#!/bin/sh\nexec {python} -m autotune "$@"\n', "crontab": CRONTAB}
    texts |= dict.fromkeys(("python", "python3"), f'#!/bin/sh\nexec {python} "$@"\n')
    texts["ray"] = f'#!/bin/sh\nexec {python} -m ray.scripts.scripts "$@"\n'  # its own may be in another environment
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run(text: str, user: User, tools: Path, limit_s: float = 500.0) -> tuple[int, str]:
    """Run a script in a workspace, and end what it leaves running. Returns its exit code and all that it printed.

    A script that does not end within `limit_s` has the exit code 124.
    """
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{user.root / 'site'}:{ROOT}",
        "TOOLS": str(tools),
        "SCRIPTS": str(SCRIPTS),
        "AUTOTUNE_WORKSPACE": str(user.root),
    }
    output = tools / "output"
    with output.open("w") as log:
        shell = subprocess.Popen(
            ["bash", "-c", text], cwd=user.root, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            status = shell.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = 124
        finally:
            user.run("daemon", "stop")
            os.killpg(shell.pid, signal.SIGKILL) if _group_lives(shell.pid) else None
    return status, output.read_text()


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "guide", [pytest.param(item, id=item.page, marks=[pytest.mark.slow] * item.slow) for item in GUIDES]
)
def test_the_commands_of_a_guide_run(
    guide: Guide, user: User, models: Path, tools: Path, request: pytest.FixtureRequest
) -> None:
    if why := MISSING.get(guide.page):
        pytest.skip(f"{guide.page} was not run: {why}")
    if guide.tuned:
        tuned: User = request.getfixturevalue("tuned")
        shutil.copytree(tuned.root, user.root, dirs_exist_ok=True)
    for name in guide.copies:
        shutil.copy(models / "mlp.onnx", user.root / name)
    for name, shapes in guide.shapes.items():
        write_model(user.root / name, shapes)
    PREPARE.get(guide.page, lambda folder: None)(user.root)
    text = script(guide)
    for port in ("9190", "9090", "6379"):
        if port in text:
            free = str(free_port())
            text = text.replace(port, free).replace("first:", "127.0.0.1:")
            settings = (user.root / "autotune.toml").read_text()
            (user.root / "autotune.toml").write_text(
                settings.replace(port, free).replace('"auto"', f'"127.0.0.1:{free}"')
            )
    status, printed = run(text, user, tools)
    assert status == 0, printed[-6000:]


def test_every_page_with_command_lines_is_run() -> None:
    pages = ["README.md", "CONTRIBUTING.md", *(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
    with_guide = {guide.page for guide in GUIDES}
    left = [page for page in pages if command_lines(page) and page not in with_guide and chosen(OTHERS, page) is None]
    assert left == []
    assert with_guide <= set(pages)


@pytest.mark.parametrize("guide", GUIDES, ids=[guide.page for guide in GUIDES])
def test_no_exception_is_of_a_command_that_a_page_no_longer_shows(guide: Guide) -> None:
    lines = [bare(line) for line in command_lines(guide.page)]
    assert any(chosen(guide.elsewhere, line) is None for line in lines)
    keys = [*guide.elsewhere, *guide.changes]
    assert [key for key in keys if not any(line.startswith(key) for line in lines)] == []


def test_a_command_that_fails_is_found(user: User, tools: Path) -> None:
    assert run("set -e\nautotune hold nothing\ntrue", user, tools)[0] != 0


def test_what_a_command_that_does_not_end_has_printed_is_shown(user: User, tools: Path) -> None:
    assert run("echo begun\nsleep 60", user, tools, limit_s=1.0) == (124, "begun\n")
