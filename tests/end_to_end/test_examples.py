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
    """The fenced and indented blocks that import autotune first, and tune: guides with other code run it themselves."""
    texts = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    texts += re.findall(
        r"(?:^ {4}.*\n|^\n(?= {4}))+", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S) + "\n", re.M
    )
    codes = [textwrap.dedent(block).strip() for block in texts]
    return [code for code in codes if code.startswith("import autotune") and "trials=" in code]


def bare(code: str) -> str:
    """Code without comments and the spaces before them."""
    return re.sub(r" *#.*", "", code)


def examples() -> dict[str, tuple[str, str]]:
    """Where the code stands first, and the code, by the code without comments: what two pages show runs once."""
    by_code: dict[str, tuple[str, str]] = {}
    for at, code in enumerate(blocks(api.__doc__ or "")):
        by_code.setdefault(bare(code), (f"autotune.api {at}", code))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for at, code in enumerate(blocks(page.read_text())):
            by_code.setdefault(bare(code), (f"{page.name} {at}", code))
    return by_code


EXAMPLES = list(examples().values())


def test_there_are_examples() -> None:
    assert {name.split()[0] for name, _ in EXAMPLES} == {"autotune.api", "README.md"}
    python = blocks((ROOT / "docs" / "guides" / "python.md").read_text())
    assert len(python) == 2 and all(bare(code) in examples() for code in python)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code"),
    [pytest.param(name, code, id=name) for name, code in EXAMPLES],
)
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
