"""A first result within a minute: the commands of a whole job, on a small model that the package has."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.terminal import tell
from autotune.errors import BadInput, disk_problem
from autotune.regular_file import open_to_write
from autotune.storage.atomic import make_folders
from autotune.storage.paths import Workspace
from autotune.storage.private_folders import private_folder

_MODEL = "demo_cnn.onnx"  # `python scripts/models/make_models.py demo_cnn --output autotune/commands` writes it
_TRIALS = 48


def _steps(model: Path, folder: Path, trials: int) -> list[list[str]]:
    """Return the command lines of the demo, in their order."""
    autotune = ["autotune", "--workspace", str(folder)]
    library = folder / "lib"
    return [
        [*autotune, "submit", str(model), "--trials", str(trials)],
        [*autotune, "daemon", "run", "--drain"],
        [*autotune, "status", "last"],
        [*autotune, "report", "last"],
        [*autotune, "export", "last", "--output", str(library), "--quick"],  # the job has timed the whole model already
        ["python", str(library / "run.py")],
    ]


def _new_folder(folder: Path) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or set(folder.iterdir()) - {Workspace(folder).config}):
            raise BadInput(f"{folder} exists already; remove it, or give another folder: autotune demo FOLDER")
        make_folders(folder)
    except OSError as error:
        raise disk_problem("write to", folder, error) from error


def _run(words: list[str], log: Path) -> int:
    """Print a command line and run it with this Python. What the daemon logs goes to its log."""
    tell(f"$ {' '.join(words)}")
    sys.stdout.flush()
    own = ["-m", "autotune"] if words[0] == "autotune" else []
    if "daemon" not in words:
        return subprocess.run([sys.executable, *own, *words[1:]]).returncode
    private_folder(log.parent)
    with open_to_write(log) as output:
        return subprocess.run([sys.executable, *own, *words[1:]], stderr=output).returncode


def command(
    folder: Annotated[
        Path, typer.Argument(help="The folder to work in. It must be new, or have only autotune.toml.")
    ] = Path("autotune-demo"),
    trials: Annotated[int, typer.Option(min=1, help="How many trials at most.")] = _TRIALS,
) -> None:
    """Tune a small model that comes with autotune, export it, report on it and run it: within a minute on two CPUs.

    The commands are printed as they run. All files are in FOLDER, which is a workspace: remove it afterwards.
    """
    _new_folder(folder)
    with as_file(files("autotune.commands") / _MODEL) as model:
        for words in _steps(model, folder, trials):
            code = _run(words, Workspace(folder).daemon_log)
            if code:
                raise typer.Exit(code)
