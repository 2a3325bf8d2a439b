"""`autotune demo` goes from nothing to a library that was called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .conftest import SCRIPTS, make_user

MODEL = Path(__file__).parents[2] / "autotune" / "commands" / "demo_cnn.onnx"


def demo(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", "demo", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)


def test_the_demo_prints_its_commands_and_what_they_say(tmp_path: Path) -> None:
    make_user(tmp_path / "autotune-demo")  # with locks of its own
    done = demo(tmp_path, "--trials", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    shown = [line for line in lines if line.startswith("$ ")]
    verbs = ("submit", "daemon run", "status", "report", "export", "run.py")
    assert all(verb in line for verb, line in zip(verbs, shown, strict=True))
    assert "1 demo_cnn" in " ".join(done.stdout.split()) and "2/2" in done.stdout
    assert "verified: largest relative error" in done.stdout
    assert lines[-1].startswith("(1, 10) float32 [")
    assert (tmp_path / "autotune-demo" / "lib" / "model.so").exists()


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    done = demo(tmp_path, "mine")
    assert done.returncode == 2
    assert done.stderr == "autotune: mine exists already; remove it, or give another folder: autotune demo FOLDER\n"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_command_that_fails_ends_the_demo_with_its_exit_code(tmp_path: Path) -> None:
    done = demo(tmp_path, "new", "--trials", 10**12)
    assert done.returncode == 2
    assert done.stdout.count("$ ") == 1


def test_the_model_of_the_demo_is_what_the_script_writes(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "models" / "make_models.py"), "demo_cnn", "--output", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True)
    assert MODEL.read_bytes() == (tmp_path / MODEL.name).read_bytes()
    assert MODEL.stat().st_size < 1_000_000
