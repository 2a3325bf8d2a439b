"""The prior: a cost model that is shipped with autotune, for searches that have no trials to learn from yet.

It was trained on measurements of random layers (`scripts/train_prior.py`); none of them is taken from a network. It
knows which loop nests suit a kind of device, well enough to leave out hopeless candidates from the first batch on. A
job's own cost model is fitted on top of it.
"""

from __future__ import annotations

import lzma
from functools import lru_cache
from importlib.resources import files

from autotune.tvm_backend.search.cost_model import CostModel


@lru_cache
def prior(target_kind: str) -> CostModel | None:
    """Load the prior for a kind of target, such as `llvm`; None for a kind that has none."""
    packed = files("autotune.tvm_backend.search").joinpath("priors", f"{target_kind}.ubj.xz")
    return CostModel.deserialise(lzma.decompress(packed.read_bytes())) if packed.is_file() else None
