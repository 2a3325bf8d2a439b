"""Features of candidates: what the cost model sees.

A candidate is a bag of rows. One whose trace tiles a block on many levels has one row, read off its trace
(`nest.py`). Any other has a row for each buffer store of its lowered program (TVM's per-store features). The two
kinds have columns of their own, and those of the other kind are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autotune.storage.formats import Trial
from autotune.tvm_backend.search.cost_model import Array
from autotune.tvm_backend.search.nest import WIDTH as NEST
from autotune.tvm_backend.search.nest import Nests
from autotune.tvm_backend.search.space import plain_trace, replay, tune_context

STORE = 164  # columns of TVM's per-store features
WIDTH = NEST + STORE


class Features:
    """Features of the candidates of one program. Each result is [rows of the candidate, WIDTH], float32."""

    def __init__(self, program: Any, target: Any) -> None:
        self._program = program
        self._target = target
        self.nests = Nests(program, target)

    def of_candidates(self, candidates: Sequence[Any]) -> list[Array]:
        """Of MetaSchedule's measure candidates, in order."""
        traces = [plain_trace(item.sch.trace) for item in candidates]
        return self._of(traces, lambda wanted: [candidates[at] for at in wanted])

    def of_trials(self, trials: Sequence[Trial]) -> list[Array]:
        """Of trials; only those are replayed whose traces do not say enough. Milliseconds for each of these."""
        traces = [trial.trace for trial in trials]
        return self._of(traces, lambda wanted: replay([trials[at] for at in wanted], self._program, self._target))

    def needs_replay(self, trial: Trial) -> bool:
        """Whether the features of a trial are those of its lowered program."""
        return self.nests.of_traces([trial.trace])[0] is None

    def _of(self, traces: Sequence[Any], measure_candidates: Callable[[list[int]], list[Any]]) -> list[Array]:
        found = self.nests.of_traces(traces)
        lowered = [at for at, row in enumerate(found) if row is None]
        stores = dict(zip(lowered, self._stores(measure_candidates(lowered)) if lowered else [], strict=True))
        return [widen(nest=row) if row is not None else widen(store=stores[at]) for at, row in enumerate(found)]

    def _stores(self, items: list[Any]) -> list[Array]:
        from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

        context = tune_context(self._program, self._target)
        return [np.asarray(item.numpy(), dtype=np.float32) for item in PerStoreFeature().extract_from(context, items)]


def widen(*, nest: Array | None = None, store: Array | None = None) -> Array:
    """Rows of one kind with the columns of the other, which are missing, beside them: [rows, WIDTH]."""
    rows = store if nest is None else nest
    assert rows is not None, "one kind is given"
    wide = np.full((len(rows), WIDTH), np.nan, dtype=np.float32)
    wide[:, slice(NEST, None) if nest is None else slice(NEST)] = rows
    return wide
