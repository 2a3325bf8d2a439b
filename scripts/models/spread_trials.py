#!/usr/bin/env python
"""Time schedules of each compute location for the tasks of a workspace's jobs, for the prior to learn from.

    python scripts/models/spread_trials.py WORKSPACE [--jobs stem]

A search measures what its cost model likes. Where that is wrong about a whole kind of schedule, such as a padding
inside the loops of a sum, the search hardly sees another kind, and a prior that is trained on its trials stays wrong.
So this adds four rounds to the tuning log of each task whose producers can be placed: what a search from the prior
proposes, the schedule of each compute location that the prior likes best, and two rounds of a search that has learnt
from these. The jobs have been submitted, and no daemon runs. A task takes some 20 seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from train_prior import tasks_of

from autotune.processes.isolate import isolated
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Trial
from autotune.storage.paths import Workspace
from autotune.strategies.beam import BeamSearch
from autotune.strategies.samplers import Greedy
from autotune.strategies.space import as_tuples
from autotune.tvm_backend.kernels.build_kernel import build_candidate
from autotune.tvm_backend.kernels.time_kernel import Runner, Timing, open_device
from autotune.tvm_backend.load import load_for_tuning
from autotune.tvm_backend.search.cost_model import CostModel, prior, relative_throughput
from autotune.tvm_backend.search.features import FeatureExtractor
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Request, Validator, propose
from autotune.tvm_backend.search.scores import nest_score

DRAWN = 6000  # configurations, of which the best of each location are chosen
CLIMBING = 600  # of them move by a knob, twice
COUNT = 8  # of candidates of a search's round
ROUNDS = 4
SPREAD_ROUND = 1
LIMIT_S = 20.0
TIMING = Timing(warmup=0, repeats=3, min_repeat_ms=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--jobs", default="", help="a part of their names (default: all)")
    options = parser.parse_args()
    load_for_tuning("llvm")
    start = prior("llvm")
    assert start is not None, "the package has one for CPUs"
    for stage, index in tasks_of(Workspace(options.workspace), "llvm"):
        name = stage.paths.folder.name
        if options.jobs not in name:
            continue
        knobs = Knobs(stage.program_of(index), stage.target)
        if any(knob.name.startswith("location") for knob in knobs.space.knobs):
            times = [measure(stage, index, knobs, start, number) for number in range(ROUNDS)]
            print(name, stage.spec.tasks[index].name, [f"{min(us):.1f} us of {len(us)}" for us in times], flush=True)


def measure(stage: Stage, index: int, knobs: Knobs, start: CostModel, number: int) -> list[float]:
    """Build and time a round's candidates, and log those that did not fail; return their times in microseconds."""
    trials = stage.log(index).trials()
    if number == SPREAD_ROUND:
        candidates = spread(knobs, start, trials)
    else:
        request = Request(trials, (), COUNT, learnt(knobs, start, trials), number)
        candidates = propose(knobs, BeamSearch, Greedy(0.0), request).candidates
    best = min((trial.median_us for trial in trials if trial.median_us), default=None)
    outcomes = isolated(candidates, lambda: timer(knobs, best), limit_s=LIMIT_S)
    times = [(item, outcome.value) for item, outcome in outcomes if outcome.kind == "ok"]
    new = [Trial(item.hash, item.trace, item.args, us, None, "spread", number, time.time()) for item, us in times]
    stage.log(index).add(new)
    return [trial.median_us for trial in new if trial.median_us]


def learnt(knobs: Knobs, start: CostModel, trials: Sequence[Trial]) -> CostModel:
    """Return the prior with what the trials of the task say."""
    if not trials:
        return start
    rows = FeatureExtractor(knobs.program, knobs.target).of_trials(trials)
    return CostModel.train(rows, relative_throughput(trial.median_us for trial in trials), start)


def spread(knobs: Knobs, model: CostModel, trials: Sequence[Trial]) -> list[Candidate]:
    """Return a candidate for each compute location of the first producer, the best by a cost model, without trials."""
    space = knobs.space
    score = nest_score(knobs, model)
    assert score is not None, "a task with compute locations is tiled on many levels"
    rng = np.random.default_rng(0)
    rows = np.unique(space.sample(rng, DRAWN), axis=0)
    for _ in range(2):
        best = rows[np.argsort(-score(rows))[:CLIMBING]]
        rows = np.unique(np.concatenate([rows, space.walk(rng, np.repeat(best, 4, axis=0))]), axis=0)
    rows = rows[np.argsort(-score(rows), kind="stable")]
    place = next(place for place, knob in enumerate(space.knobs) if knob.name.startswith("location"))
    _, firsts = np.unique(rows[:, place], return_index=True)
    validator = Validator(knobs, None, {trial.hash for trial in trials})
    valid = validator.validate(as_tuples(rows[firsts]))
    return [validator.candidate(item.configuration) for item in valid if item is not None]


def timer(knobs: Knobs, best: float | None) -> Callable[[Candidate], tuple[float, ...]]:
    """Return what builds and times a candidate."""
    runner = Runner(open_device("llvm"), TIMING)

    def timed(candidate: Candidate) -> tuple[float, ...]:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "kernel.so")
            build_candidate(candidate, knobs.program, knobs.target, library)
            return tuple(runner.time(library, candidate.args, best))

    return timed


if __name__ == "__main__":
    main()
