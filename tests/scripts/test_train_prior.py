"""models/train_prior.py: a prior for GPUs is fitted to trials, and is the one that a search then starts with."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from autotune import strategies
from autotune.stages.trial_features import TrialFeatures
from autotune.strategies import samplers
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search import cost_model as module
from autotune.tvm_backend.search.features import FeatureExtractor
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Request, propose
from autotune.tvm_backend.search.scores import nest_score
from autotune.tvm_backend.target import resolve_target, tvm_target

TRIALS = 12


@pytest.fixture(scope="module")
def knobs():
    load_tvm("cuda")
    import tvm
    from tvm import te

    a, b = (te.placeholder((128, 128), name=name) for name in "ab")
    k = te.reduce_axis((0, 128), "k")
    c = te.compute((128, 128), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
    return Knobs(tvm.IRModule({"main": te.create_prim_func([a, b, c])}), target)


def trials(knobs, seed):
    """Candidates of a task, whose times follow from their first tile."""
    request = Request((), (), TRIALS, None, seed)
    candidates = propose(knobs, strategies.get("random"), samplers.make("greedy", 0.0, True), request).candidates
    rows = FeatureExtractor(knobs.program, knobs.target).of_trials(candidates)
    times = [float(1 + np.nansum(row[:, :10])) for row in rows]
    return TrialFeatures([item.hash for item in candidates], rows, times)


@pytest.mark.slow
def test_a_prior_for_gpus_is_fitted_to_trials_and_found(load_script, knobs, monkeypatch, tmp_path):
    script = load_script("train_prior")
    examples = [("job", f"task{seed}", trials(knobs, seed)) for seed in (1, 2, 3)]
    monkeypatch.setattr(script, "features_by_task", lambda _, kind: examples if kind == "cuda" else [])
    output = tmp_path / "priors" / "cuda.ubj.xz"
    monkeypatch.setattr(sys, "argv", ["train_prior.py", str(tmp_path), "--target", "cuda", "--output", str(output)])
    script.main()
    monkeypatch.setattr(module, "files", lambda _: tmp_path)
    module.prior.cache_clear()
    try:
        model = module.prior("cuda")
        assert model is not None and module.prior("llvm") is None
    finally:
        module.prior.cache_clear()
    unseen = trials(knobs, 4)
    assert np.corrcoef(model.score(unseen.rows), -np.array(unseen.times_us))[0, 1] > 0.3
    assert nest_score(knobs, model) is not None


def test_a_workspace_without_enough_trials_is_refused(load_script, monkeypatch, tmp_path):
    script = load_script("train_prior")
    monkeypatch.setattr(script, "features_by_task", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["train_prior.py", str(tmp_path), "--target", "cuda"])
    with pytest.raises(SystemExit, match="no task for cuda has 8 trials"):
        script.main()
