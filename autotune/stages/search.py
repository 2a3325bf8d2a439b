"""Search: propose a batch of candidates that were never measured."""

from __future__ import annotations

from typing import Any

from autotune.stages.stage import Stage


def run(stage: Stage) -> dict[str, Any]:
    """Publish the build stage with up to `stage.count` candidates of the job's strategy.

    The cost model serves all tasks of the job. So a task's first batch is better than a random sample once other
    tasks have trials. Where nothing is proposed, the space is exhausted: the round stays where it is, and the daemon
    does not ask again.

    Returns:
        `proposed`, the number of candidates. For a device that exists also `steps` of the search's inner loop, and how
        many configurations were `replayed`, of these how many `invalid` and `repeated`.
    """
    # Read in this order: a round that ends in between is in the log, any other one in its stage file.
    pending = stage.pending()
    quarantined = stage.quarantine().failures(stage.spec.target_kind, stage.spec.board)
    measured = {entry.hash for entry in stage.log().entries()}
    candidates, counts = stage.bench.propose(pending, measured.union(quarantined))
    if candidates:
        stage.advance("build", candidates)
    return {"proposed": len(candidates), **counts}
