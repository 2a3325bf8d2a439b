"""`autotune selftest`: does this autotune, on this disk, lose anything when its processes are killed?"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.selftest import power
from autotune.commands.selftest.plan import coverage, plan
from autotune.commands.selftest.run import HOOK, Outcome, Round, differences, read_trace, sites_of
from autotune.commands.selftest.subject import simulated
from autotune.commands.terminal import bar, workspace_of
from autotune.errors import disk_problem

QUICK_ROUNDS, CHAOS_ROUNDS = 2, 20
# The outcome of one policy depends on the seed alone, so that it can be compared; the other one is what users run.
_POLICIES = ("sequential", "predictive")
_RANDOM_KILLS = 3
_RANDOM_WITHIN_S = 4.0

Progress = Callable[[int, int], None]


@dataclass
class Verdict:
    """What a test came to. `losses` has a line for everything that was lost, doubled, stuck or out of order."""

    seed: int
    kills: int = 0
    losses: list[str] = field(default_factory=list)
    kept: Path | None = None
    deaths: list[str] = field(default_factory=list)
    sites: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.losses

    def __str__(self) -> str:
        died, known = coverage(self.sites, self.deaths)
        line = f"{self.kills} kills at {died} of {known} kinds of step, {len(self.losses)} losses; seed {self.seed}"
        return line + (f"; see {self.kept}" if self.kept else "")


def draw_seed(given: int | None) -> int:
    """The seed that was given, or a new one."""
    return random.SystemRandom().randrange(10**6) if given is None else given


def selftest(parent: Path, rounds: int, seed: int, progress: Progress, hook: Path = HOOK) -> Verdict:
    """Kill the processes of queues on the disk of `parent`, and say what was lost.

    Everything happens in a temporary folder in `parent`, which is removed unless there was a loss.

    Args:
        rounds: how many queues are broken; 0: as many as it takes to kill at every step of an undisturbed run.
        seed: makes the same plan again.
        progress: told how many queues are done, and of how many.
        hook: what the processes load at their start; see `Round`.

    Raises:
        DiskProblem: there can be no folder in `parent`.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="selftest-", dir=parent)).absolute()
    except OSError as error:
        raise disk_problem("make a folder in", parent, error) from error
    verdict = Verdict(seed)
    try:
        _play(_plans(folder, rounds, verdict, hook), verdict, progress)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if verdict.ok:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        verdict.kept = folder
    return verdict


@dataclass(frozen=True)
class _Planned:
    """A round to play, and the outcome that it must have, where it is known."""

    round: Round
    wanted: Outcome | None


def _plans(folder: Path, rounds: int, verdict: Verdict, hook: Path) -> list[_Planned]:
    """Record an undisturbed round under each policy, and plan kills at its steps."""
    found = []
    for at, policy in enumerate(_POLICIES):
        share = (rounds + 1 - at) // len(_POLICIES)
        if rounds and not share:
            continue
        subject = simulated(verdict.seed, policy)
        first = Round(folder / policy / "undisturbed", subject, record=True, hook=hook)
        outcome, trace = first.run(), read_trace(first)
        verdict.losses += [f"undisturbed: {line}" for line in [*outcome.problems, *power.violations(trace)]]
        sites = sites_of(trace, subject.steady)
        verdict.sites += sites
        for number, kills in enumerate(plan(sites, share, verdict.seed)):
            seed = verdict.seed * 1000 + number
            moments = [random.Random(f"{seed}/{kill}").uniform(0.2, _RANDOM_WITHIN_S) for kill in range(_RANDOM_KILLS)]
            round = Round(folder / policy / f"{number:04}", subject, kills, moments, seed, hook=hook)
            found.append(_Planned(round, outcome if subject.steady else None))
    return found


def _play(plans: list[_Planned], verdict: Verdict, progress: Progress) -> None:
    for number, planned in enumerate(plans):
        progress(number, len(plans))
        outcome = planned.round.run()
        problems = outcome.problems + (differences(planned.wanted, outcome) if planned.wanted else [])
        folder = planned.round.folder
        verdict.kills += len(outcome.deaths)
        verdict.deaths += outcome.deaths
        verdict.losses += [f"{folder.parent.name}/{folder.name}: {line}" for line in problems]
        if not problems:
            shutil.rmtree(folder, ignore_errors=True)
    progress(len(plans), len(plans))


def command(
    context: typer.Context,
    chaos: Annotated[bool, typer.Option("--chaos", help="Many rounds rather than a quick one.")] = False,
    rounds: Annotated[
        int | None, typer.Option(min=0, help="Queues to break; 0: until somebody died at every step.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Make the plan of an earlier run again.")] = None,
) -> None:
    """Kill the processes of queues on this disk at every durable step, and see that nothing is lost.

    Works in a temporary folder in the workspace, and needs no model. Exit code 1 when something was lost.
    """

    count = rounds if rounds is not None else CHAOS_ROUNDS if chaos else QUICK_ROUNDS
    with bar() as progress:
        verdict = selftest(workspace_of(context).root, count, draw_seed(seed), progress)
    for line in verdict.losses:
        typer.echo(line)
    typer.echo(str(verdict))
    if not verdict.ok:
        raise typer.Exit(1)
