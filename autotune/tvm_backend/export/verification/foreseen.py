"""What an export of a submitted model will be verified by: what it would refuse is said before any trial."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from autotune.errors import VerificationError
from autotune.processes.messages import ImportAnswer, ImportRequest
from autotune.storage.formats import MAX_OWN_ERROR, Entry, VerifiedBy
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export import inputs
from autotune.tvm_backend.export.inputs import SEED
from autotune.tvm_backend.export.runners import Arrays
from autotune.tvm_backend.export.submitted import OnnxModel, Submitted, models_of
from autotune.tvm_backend.export.verification import float_reference, verified_choices
from autotune.tvm_backend.export.verification.own_error import own_error

_LONG_S = 3.0  # after which a submission moves the inputs no more


@dataclass(frozen=True)
class _Verdict:
    """What is known of a model at one set of shapes. The attributes are those of `ImportAnswer`."""

    own_error: float = 0.0
    verified_by: VerifiedBy = "runtime"
    problem: str = ""


def judged(paths: JobPaths, request: ImportRequest, answer: ImportAnswer) -> ImportAnswer:
    """Return what was imported, with what an export of it on random inputs will be verified by.

    Args:
        paths: Where the model is.
        request: What was asked for.
        answer: What was imported.
    """
    entries = answer.entries or (Entry("main", answer.inputs, ()),)
    models = models_of(paths, entries, request.values, request.activations)
    until = time.monotonic() + _LONG_S
    verdicts = [_verdict(model, entry, request.threads, until) for model, entry in zip(models, entries, strict=True)]
    return replace(
        answer,
        own_error=tuple(item.own_error for item in verdicts),
        verified_by=tuple(item.verified_by for item in verdicts),
        problem=next((item.problem for item in verdicts if item.problem), ""),
    )


def _verdict(model: Submitted, entry: Entry, threads: int, until: float) -> _Verdict:
    if not model.is_usual:
        return _Verdict()
    drawn = inputs.verification_inputs(model, entry.inputs, None, SEED)
    try:
        expected = inputs.check_reference(model.runner(drawn.arrays, threads), given=False, runtime=model.title)
    except VerificationError as error:
        return _Verdict(verified_by="nothing", problem=str(error))
    except Exception:  # the runtime cannot load the model, which an export says; its exceptions have no common class
        return _Verdict()
    try:
        own = own_error(model, drawn, expected, threads, until)
    except Exception:  # as above, of one of its other ways
        return _Verdict()
    return _Verdict(own, "runtime" if own <= MAX_OWN_ERROR else _otherwise(model, drawn.arrays, threads))


def _otherwise(model: Submitted, arrays: Arrays, threads: int) -> VerifiedBy:
    """Return what decides about a model whose runtime is too far from itself."""
    if not isinstance(model, OnnxModel):
        return "nothing"
    if float_reference.decides(model, arrays, threads):
        return "float32"
    return "choices" if verified_choices.chooses(model) else "nothing"
