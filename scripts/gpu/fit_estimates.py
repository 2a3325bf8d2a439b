#!/usr/bin/env python
"""Fit the costs of `search/occupancy.py` and `search/tensor_cores.py` to kernels that an H100 has timed.

    python scripts/gpu/fit_estimates.py

Prints the costs that a fit to all trials of `h100_trials.jsonl.xz` gives, and how well such fits do on what they have
not seen: one network is left out at a time, in one precision or in all, and the kernel of each of its tasks that is
estimated to be fastest is compared with the fastest one (geometric means). Needs no GPU.

A fit begins at the peaks of an H100 and at latencies as they have been published, and multiplies one cost after the
other by a factor, as long as that lowers its loss. The loss of a task is what the choice of the estimate loses,
softened so that it has no steps, and a part of the error of all estimates. Costs far from where the fit began are a
loss, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from check_estimates import Costs, Trial, by_kind, first_pick, tasks_of

from autotune.tvm_backend.load import load_for_tuning

FACTORS = (2.0, 1.4, 1.2)
SOFTNESS = 0.3  # of the choice, in logarithms of times
OF_ERRORS = 0.3
OF_DISTANCE = 0.02


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    load_for_tuning("cuda", ())
    for kind, (trials, now) in by_kind().items():
        begin = published(type(now))
        fitted = fit(trials, begin)
        numbers = ", ".join(f"{name}={value:.3g}" for name, value in asdict(fitted).items())
        print(f"{kind}: {numbers}")
        print(f"  with the published costs {pick(trials, begin):.2f}, with these {pick(trials, fitted):.2f}")
        for level, name in enumerate(("a network", "a network in a precision")):
            print(f"  left out {name}: {left_out(trials, begin, level):.2f}")


def published(kind: type[Costs]) -> Costs:
    """What an H100 should cost by its data sheet and by measurements that others have published."""
    from autotune.tvm_backend.search.occupancy import NestCosts

    if kind is NestCosts:
        return kind(start=2000, wait=500, load=4, copy=32)
    return kind(
        start=2000,
        wait=500,
        copy=32,
        copy_of_a_warp=4,
        product=4,
        terms=32,
        fragment=4,
        l2_bytes=24,
        stored_bytes=14,
        most_results=224,
        spilled=4,
        idle=2,
    )


def fit(trials: Sequence[Trial], begin: Costs) -> Costs:
    """Return the costs with the least loss that the descent finds."""
    tasks = tasks_of(trials)
    costs = begin
    for factor in FACTORS:
        least = losses(tasks, [costs], begin)[0]
        while True:
            values = asdict(costs)
            others = [replace(costs, **{name: values[name] * by}) for name in values for by in (factor, 1 / factor)]
            computed = losses(tasks, others, begin)
            best = int(np.argmin(computed))
            if computed[best] >= least - 1e-6:
                break
            least = computed[best]
            costs = others[best]
    return costs


def losses(tasks: Sequence[Sequence[Trial]], costs: Sequence[Costs], begin: Costs) -> np.ndarray:
    """The losses of some costs, [n]."""
    of_tasks = [_loss(task, costs) for task in tasks]
    distances = [sum(np.log(asdict(one)[name] / value) ** 2 for name, value in asdict(begin).items()) for one in costs]
    return np.asarray(np.mean(of_tasks, axis=0) + OF_DISTANCE * np.array(distances))


def _loss(task: Sequence[Trial], costs: Sequence[Costs]) -> np.ndarray:
    times = np.log([trial.us for trial in task])[:, None]
    estimates = np.log([trial.estimate(costs) for trial in task])
    chosen = np.exp(-(estimates - estimates.min(axis=0)) / SOFTNESS)
    lost = (chosen * (times - times.min())).sum(axis=0) / chosen.sum(axis=0)
    errors = (estimates - estimates.mean(axis=0)) - (times - times.mean())
    return np.asarray(lost + OF_ERRORS * np.sqrt((errors**2).mean(axis=0)))


def pick(trials: Sequence[Trial], costs: Costs) -> float:
    """How many times the shortest time the first choice takes."""
    return geometric_mean(_picks(trials, costs))


def _picks(trials: Sequence[Trial], costs: Costs) -> list[float]:
    tasks = tasks_of(trials)
    return [first_pick([(trial.us, float(trial.estimate([costs])[0])) for trial in task]) for task in tasks]


def left_out(trials: Sequence[Trial], begin: Costs, level: int) -> float:
    """The same of networks, each estimated with what was fitted to the others.

    Args:
        level: 0 for a network in all its precisions, 1 for one in one of them.
    """
    names = [trial.network[: level + 1] for trial in trials]
    chosen: list[float] = []
    for name in dict.fromkeys(names):
        seen = [trial for trial, other in zip(trials, names, strict=True) if other != name]
        unseen = [trial for trial, other in zip(trials, names, strict=True) if other == name]
        chosen += _picks(unseen, fit(seen, begin)) if tasks_of(unseen) else []
    return geometric_mean(chosen)


if __name__ == "__main__":
    main()
