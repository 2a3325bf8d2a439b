"""The site builds without a warning, and no word of the documentation is misspelt."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from .conftest import ROOT

ABSENT = [module for module in ("material", "codespell_lib") if importlib.util.find_spec(module) is None]
if ABSENT:
    warnings.warn(f"NO {' AND NO '.join(ABSENT)}: pip install '.[docs]' checks the site and its words", stacklevel=1)


@pytest.mark.skipif("material" in ABSENT, reason="NO MKDOCS: the site was not built; pip install '.[docs]'")
def test_the_site_builds(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fonts.googleapis" not in (tmp_path / "site" / "index.html").read_text()


@pytest.mark.skipif("codespell_lib" in ABSENT, reason="NO CODESPELL: pip install '.[docs]'")
def test_no_word_is_misspelt(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.md"
    wrong.write_text("recie" + "ve\n")
    words = [sys.executable, "-m", "codespell_lib", str(wrong)]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, timeout=120).returncode != 0
