"""The perplexity of a text."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.tvm_backend.export.verification import perplexity

IDS = [3, 1, 4, 1, 5]


def test_certainty_surprises_nobody_and_ignorance_as_much_as_the_vocabulary_is_large() -> None:
    certain = np.where(np.arange(8) == np.array(IDS[1:])[:, None], 100.0, 0.0).astype(np.float32)
    assert perplexity.surprise([certain[:3], certain[3:]], IDS) == pytest.approx(0.0, abs=1e-6)
    none = np.full((1, 8), 1e4, np.float32)  # whose exponential overflows
    assert perplexity.surprise([none] * 4, IDS) == pytest.approx(math.log(8))


@pytest.mark.parametrize(
    ("megabytes", "context", "count"), [(98, 2048, 1024), (347, 2048, 256), (98, 48, 48), (4000, 512, 64)]
)
def test_as_many_tokens_are_read_as_take_seconds(megabytes: int, context: int, count: int) -> None:
    assert perplexity._count(megabytes * 10**6, context) == count
