"""Train: fit the cost model to every trial of the job's tasks, then end the round, or have the whole model timed."""

from __future__ import annotations

from typing import Any

from autotune.stages import compile
from autotune.stages.stage import Stage


def run(stage: Stage) -> dict[str, Any]:
    """Train again if there are 15% more trials than the model was trained on. End the round either way.

    The round goes on with a library of the whole model, if that is worth timing.

    Returns:
        `trained_on`, the number of trials behind the model.
    """
    trained_on = stage.bench.learn()
    if compile.is_due(stage):
        stage.advance("compile")
    else:
        stage.end_round()
    return {"trained_on": trained_on}
