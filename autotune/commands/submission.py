"""What the user asks for with `submit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune import strategies
from autotune.commands.budget import Trials
from autotune.config import Config
from autotune.errors import BadInput
from autotune.storage.formats import Constant, InputSpec, Precision


@dataclass(frozen=True)
class Submission:
    """A model and how to tune it. Zero trials, and zero trials a round, stand for the default of the workspace.

    It is tuned for all combinations of the shapes of inputs and the sizes of dimensions.

    A `private` name gives the job tuning logs that it shares with no job but those of the same name. `origin` is the
    file that the user knows the model by, where `model` is a copy of it.
    """

    model: Path
    target: str = "llvm"
    name: str = ""
    trials: Trials = 0
    trials_per_round: int = 0
    inputs: Mapping[str, tuple[InputSpec, ...]] = field(default_factory=dict)
    priority: int = 0
    seed: int = 0
    fresh: bool = False
    deadline: float | None = None
    strategy: str = ""
    sampler: str = ""
    winograd: bool = True
    precision: Precision = "fp32"
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, Constant] = field(default_factory=dict)
    private: str = ""
    within_s: float | None = None
    stop_at_ms: float | None = None
    on_end: str = ""
    origin: str = ""


# More would fit in no file, and the planner computes with them.
_LIMITS = {
    "trials": (0, 10**9 - 1),
    "trials_per_round": (0, 10**9 - 1),
    "priority": (-(10**6), 10**6),
    "seed": (0, 2**63 - 1),
}


def check_numbers(submission: Submission) -> None:
    """Check the numbers that the user gave.

    Raises:
        BadInput: One of them is too small or too large.
    """
    for name, (least, most) in _LIMITS.items():
        given = getattr(submission, name)
        if given != "auto" and not least <= given <= most:
            raise BadInput(f"--{name.replace('_', '-')}: give a number from {least} to {most}")


def strategy_and_sampler(submission: Submission, config: Config) -> tuple[str, str]:
    """Return the strategy and the sampler of the job.

    Raises:
        BadInput: There is no such strategy or sampler.
    """
    strategy = submission.strategy or config.search.strategy
    sampler = submission.sampler or config.search.sampler
    try:
        own = strategies.default_sampler(strategy)
    except ValueError as error:
        raise BadInput(f"--strategy or [search] strategy: {error}") from error
    if sampler not in ("", *strategies.SAMPLERS):
        raise BadInput(f"--sampler {sampler!r}: there are {', '.join(strategies.SAMPLERS)}")
    return strategy, sampler or own
