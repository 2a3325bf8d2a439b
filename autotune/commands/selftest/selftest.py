"""Test that autotune loses nothing on this disk when its processes are killed."""

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
from autotune.commands.selftest.run import HOOK, Round, RoundResult, differences, read_trace, sites_of
from autotune.commands.selftest.subject import real, simulated
from autotune.commands.terminal import bar, workspace_of
from autotune.errors import BadInput, disk_problem

QUICK_ROUNDS, CHAOS_ROUNDS = 2, 20
# With the first policy the result depends on the seed only, so it can be compared. The second is the default.
_POLICIES = ("sequential", "predictive")
_RANDOM_KILLS = 3
_RANDOM_WITHIN_S = 4.0

ReportProgress = Callable[[int, int], None]


@dataclass
class Verdict:
    """The result of a selftest.

    Attributes:
        seed: Its seed.
        kills: How many processes were killed.
        losses: A line for everything that was lost, duplicated, stuck or out of order.
        kept: The folder that was kept because of losses.
        deaths: For each killed process, the site, or its role if it was killed at a random time.
        sites: How often the undisturbed rounds reached each site.
    """

    seed: int
    kills: int = 0
    losses: list[str] = field(default_factory=list)
    kept: Path | None = None
    deaths: list[str] = field(default_factory=list)
    sites: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """Whether nothing was lost."""
        return not self.losses

    def __str__(self) -> str:
        died, known = coverage(self.sites, self.deaths)
        line = f"{self.kills} kills at {died} of {known} kinds of step, {len(self.losses)} losses; seed {self.seed}"
        return line + (f"; see {self.kept}" if self.kept else "")


def draw_seed(given: int | None) -> int:
    """Return the given seed, or a random one."""
    return random.SystemRandom().randrange(10**6) if given is None else given


def selftest(
    parent: Path, rounds: int, seed: int, progress: ReportProgress, hook: Path = HOOK, model: Path | None = None
) -> Verdict:
    """Kill the processes of queues on a disk, and find what was lost.

    Everything happens in a temporary folder. It is removed unless something was lost.

    Args:
        parent: A folder on the disk, for the temporary folder.
        rounds: How many rounds with kills there are; 0 for enough rounds to kill at every step of an undisturbed round.
        seed: The seed of the plan.
        progress: Called with how many rounds are done, and how many there are.
        hook: The folder on the Python path of all processes; see `Round`.
        model: An ONNX file to import, tune for this CPU and export; by default the devices are simulated.

    Returns:
        The result.

    Raises:
        DiskProblem: No folder can be made in `parent`.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="selftest-", dir=parent)).absolute()
    except OSError as error:
        raise disk_problem("make a folder in", parent, error) from error
    verdict = Verdict(seed)
    try:
        _run_rounds(_plans(folder, rounds, verdict, hook, model), verdict, progress)
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
    """A planned round, and its expected result if that is known."""

    round: Round
    expected: RoundResult | None


def _plans(folder: Path, rounds: int, verdict: Verdict, hook: Path, model: Path | None) -> list[_Planned]:
    """Run and record an undisturbed round for each policy, and plan rounds with kills at its steps."""
    found = []
    subjects = {policy: simulated(verdict.seed, policy) for policy in _POLICIES}
    if model is not None:
        subjects = {"real": real(model)}
    for at, (policy, subject) in enumerate(subjects.items()):
        share = (rounds + len(subjects) - 1 - at) // len(subjects)
        if rounds and not share:
            continue
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


def _run_rounds(plans: list[_Planned], verdict: Verdict, progress: ReportProgress) -> None:
    for number, planned in enumerate(plans):
        progress(number, len(plans))
        outcome = planned.round.run()
        problems = outcome.problems + (differences(planned.expected, outcome) if planned.expected else [])
        folder = planned.round.folder
        verdict.kills += len(outcome.deaths)
        verdict.deaths += outcome.deaths
        verdict.losses += [f"{folder.parent.name}/{folder.name}: {line}" for line in problems]
        if not problems:
            shutil.rmtree(folder, ignore_errors=True)
    progress(len(plans), len(plans))


def _readable(model: Path) -> Path:
    if not model.is_file():
        raise BadInput(f"cannot read {model}: there is no such file")
    return model.absolute()


def command(
    context: typer.Context,
    chaos: Annotated[bool, typer.Option("--chaos", help="Run 20 rounds instead of 2.")] = False,
    rounds: Annotated[
        int | None, typer.Option(min=0, help="How many rounds to run; 0: enough to kill at every step.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeat the plan of an earlier run.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE.onnx", help="The queue imports, tunes and exports this model on the real CPU."),
    ] = None,
) -> None:
    """Kill processes of a test queue on this disk, and check that nothing is lost.

    The queue runs in a temporary folder in the workspace. It needs no model. Exit code 1 if something was lost.
    """
    count = rounds if rounds is not None else CHAOS_ROUNDS if chaos else QUICK_ROUNDS
    with bar() as progress:
        root = workspace_of(context).root
        verdict = selftest(root, count, draw_seed(seed), progress, model=model and _readable(model))
    for line in verdict.losses:
        typer.echo(line)
    typer.echo(str(verdict))
    if not verdict.ok:
        raise typer.Exit(1)
