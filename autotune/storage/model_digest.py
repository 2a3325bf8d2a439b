"""The digest of a model's files, by which a program that opens the model finds the library that was exported for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from autotune.regular_file import open_regular
from autotune.schema import whole_number

_CHUNK = 1 << 20


@dataclass(frozen=True)
class ModelDigest:
    """What is known of the content of a model. Digests are SHA-256 in hexadecimal digits.

    Attributes:
        bytes: The size of its file.
        sha256: The digest of its file. Of a program that was never in a file, that of what it computes.
        weights: The digests of the files that have its weights, by their paths from its folder.
    """

    bytes: Annotated[int, whole_number(0)]
    sha256: str
    weights: dict[str, str] = field(default_factory=dict)


def digest_of(path: Path, weights: Iterable[str] = ()) -> ModelDigest:
    """Read a model and return its digest.

    Args:
        weights: The paths of the files with its weights, from its folder.

    Raises:
        OSError: A file cannot be read.
    """
    size, sha256 = _sha256(path)
    return ModelDigest(size, sha256, {name: _sha256(path.parent / name)[1] for name in sorted(set(weights))})


def digest_of_bytes(content: bytes) -> ModelDigest:
    """Return the digest of a model that is in memory as a whole."""
    return ModelDigest(len(content), hashlib.sha256(content).hexdigest())


def _sha256(path: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with open_regular(path, buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
