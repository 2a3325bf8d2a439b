"""What few bits cost: the perplexity of a text for an exported language model, and for its weights in float32."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.schema import plain
from autotune.tvm_backend.export.generation import LanguageModel, load_language
from autotune.tvm_backend.export.progress import Leases
from autotune.tvm_backend.export.submitted import ExportJob, GgufModel

_READ_BYTES = 150e9  # of weights, by the library: some five seconds
_FEWEST = 64  # tokens
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Perplexity:
    """The exponential of the mean surprise at each token of a text after the first.

    Attributes:
        tokens: How many of the text were read.
        library: That of the exported library.
        in_float32: That of the same weights with activations in float32, as NumPy computes it.
    """

    tokens: int
    library: float
    in_float32: float


def language_part(job: ExportJob, library: Path, report: Mapping[str, Any], leases: Leases) -> dict[str, Any]:
    """Return the part of the report on a language model; nothing for any other.

    It has the tokens that end a text. Of an export that times, it also has the tokens that are written and read a
    second, and the perplexity of English; None where the file's tokenizer is of a kind that is not known. How many
    tokens are read depends on the size of the library alone, so that exports of one model can be compared.

    Args:
        job: The job.
        library: The library.
        report: The other parts of the report.
        leases: Wait for the CPUs.
    """
    model = job.models[0]
    if not isinstance(model, GgufModel):
        return {}
    language: dict[str, Any] = {"end": list(model.end_tokens())}
    if not job.request.quick and job.request.board is None:
        with leases.timing():
            loaded = load_language(library, plain({**report, "language": language}), job.request.threads)
            language |= _measured(model, loaded, report["entries"], library.stat().st_size)
    return {"language": language}


def _measured(
    model: GgufModel, loaded: LanguageModel, entries: Sequence[Mapping[str, Any]], size: int
) -> dict[str, Any]:
    first, most = (entry["latency"]["tuned_ms"] / entry["inputs"][0]["shape"][0] for entry in (entries[0], entries[-1]))
    ids = model.english()
    costs = perplexity(model, loaded, ids[: _count(size, loaded.context)]) if ids else None
    return {"written_per_s": 1e3 / first, "read_per_s": 1e3 / most, "perplexity": costs and asdict(costs)}


def _count(size: int, context: int) -> int:
    """How many tokens are read with a library of so many bytes: a power of two, or all that there is room for."""
    affordable = max(_FEWEST, int(_READ_BYTES / size))
    return min(context, 1 << (affordable.bit_length() - 1))


def perplexity(model: GgufModel, loaded: LanguageModel, ids: Sequence[int]) -> Perplexity:
    """Return the perplexity of some tokens for a library, which reads them one by one, and for its weights."""
    state = loaded.state()
    ours = surprise((state.step([token])[None] for token in ids[:-1]), ids)
    exact = surprise(model.every_logits(ids[:-1]), ids)
    return Perplexity(len(ids), math.exp(ours), math.exp(exact))


def surprise(logits: Iterable[Logits], ids: Sequence[int]) -> float:
    """Return the mean surprise, in nats, at each token after the first.

    Args:
        logits: Those of the tokens that follow the first, the second and so on, (any number of rows, vocabulary) each.
        ids: The tokens.
    """
    total = 0.0
    place = 1
    for rows in logits:
        following = np.asarray(ids[place : place + len(rows)])
        largest = rows.max(axis=1)
        sums = np.exp(rows - largest[:, None]).sum(axis=1, dtype=np.float64)
        total += float((np.log(sums) + largest - rows[np.arange(len(rows)), following]).sum())
        place += len(rows)
    return total / (place - 1)
