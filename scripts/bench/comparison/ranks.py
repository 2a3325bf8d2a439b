"""How well the knob score, the cost model and the prior rank the trials of a layer that they have not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layer import Layer
from .tuning import features

KINDS = ("knobs", "features", "prior")


def rank(layer: Layer) -> dict[str, Any]:
    """Train on a random half of the layer's log and test on the other. The prior is trained on neither."""
    import numpy as np
    from scipy.stats import spearmanr

    from autotune.tvm_backend.search.cost_model import relative_throughput

    mapped = [(trial, layer.knobs.find(trial.trace)) for trial in layer.log.trials()]
    pairs = [(trial, configuration) for trial, configuration in mapped if configuration is not None]
    if len(pairs) < 20:
        return {"layer": layer.name, "trials": len(pairs)}
    order = np.random.default_rng(1).permutation(len(pairs))
    train, test = ([pairs[at] for at in half] for half in np.array_split(order, 2))
    truth = np.array(relative_throughput(trial.median_us for trial, _ in test))
    told: dict[str, Any] = {"layer": layer.name, "trials": len(pairs)}
    for name, guess in _guesses(layer, train, test).items():
        told[name] = {"spearman": float(spearmanr(guess, truth).statistic), "top10_recall": recall(guess, truth, 0.1)}
    return told


def _guesses(layer: Layer, train: Sequence[Any], test: Sequence[Any]) -> dict[str, Any]:
    from autotune.strategies.space import Measured, as_array
    from autotune.tvm_backend.search.cost_model import CostModel, prior, relative_throughput
    from autotune.tvm_backend.search.scores import KnobScore

    rows: dict[str, Any] = {}
    features(layer, [trial for trial, _ in [*train, *test]], rows)
    measured = [Measured(configuration, trial.median_us) for trial, configuration in train]
    knob_score = KnobScore(layer.knobs.space, measured)
    seen = [rows[trial.hash] for trial, _ in train]
    model = CostModel.train(seen, relative_throughput(trial.median_us for trial, _ in train))
    unseen = [rows[trial.hash] for trial, _ in test]
    known = prior("llvm")
    return {
        "knobs": knob_score(as_array((configuration for _, configuration in test), len(layer.knobs.space.knobs))),
        "features": model.score(unseen),
        **({"prior": known.score(unseen)} if known else {}),
    }


def recall(guess: Any, truth: Any, share: float) -> float:
    """Return the part of the true best `share` that is among the guessed best `share`."""
    import numpy as np

    k = max(1, round(share * len(truth)))
    return len(set(np.argsort(-guess)[:k].tolist()) & set(np.argsort(-truth)[:k].tolist())) / k
