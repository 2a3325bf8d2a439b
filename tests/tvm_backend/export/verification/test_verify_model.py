"""An error of the verification says at which set of shapes, where there are several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import VerificationError
from autotune.options import InputSpec
from autotune.storage.formats import Entry
from autotune.tvm_backend.export.verification import verify_model

ENTRY = Entry("n=8", (InputSpec("x", (8,), "float32"),), ())


@pytest.mark.parametrize(("entries", "says"), [((), "^it differs$"), ((ENTRY,), "^n=8: it differs$")])
def test_an_error_is_about_a_set_of_shapes(entries: tuple[Entry, ...], says: str) -> None:
    spec: Any = SimpleNamespace(entries=entries)
    with pytest.raises(VerificationError, match=says), verify_model._about(spec, ENTRY):
        raise VerificationError("it differs")
