"""The Python of the documentation runs as it stands, but for smaller budgets."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from autotune import api

from .conftest import User

ROOT = Path(__file__).parents[2]
X = "import numpy; x = numpy.zeros(SHAPE, numpy.float32)\n"


def blocks(text: str) -> list[str]:
    """The indented blocks that begin with an import of autotune."""
    found = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text + "\n", re.M)
    return [code for block in found if (code := textwrap.dedent(block).strip()).startswith("import autotune")]


EXAMPLES = [
    *((f"autotune.api {at}", code) for at, code in enumerate(blocks(api.__doc__ or ""))),
    *(
        (f"{page.name} {at}", code)
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for at, code in enumerate(blocks(page.read_text()))
    ),
]


def test_there_are_examples() -> None:
    assert {name.split()[0] for name, _ in EXAMPLES} >= {"autotune.api", "README.md"}


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_runs(user: User, models: Path, name: str, code: str) -> None:
    import onnx

    shutil.copy(models / "mlp.onnx", user.root / "model.onnx")
    given = onnx.load(str(user.root / "model.onnx")).graph.input[0].type.tensor_type.shape.dim
    shape = tuple(dimension.dim_value for dimension in given)
    short = re.sub(r"trials=\d+", "trials=4", code)
    assert short != code
    daemon = user.start("daemon", "run") if "submit(" in re.sub(r"#.*", "", code) else None
    try:
        done = subprocess.run(
            [sys.executable, "-c", X.replace("SHAPE", repr(shape)) + short + "\nassert y is not None\n"],
            cwd=user.root,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
    finally:
        if daemon is not None:
            daemon.terminate()
            daemon.communicate()
