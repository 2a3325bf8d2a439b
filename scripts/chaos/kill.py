#!/usr/bin/env python
"""Kill the processes of test queues at planned steps, again and again, and find what was lost.

    python scripts/chaos/kill.py --rounds 10 --seed 4711
    python scripts/chaos/kill.py --rounds 0             # enough rounds to kill at every step: thousands of kills, hours
    python scripts/chaos/kill.py --model net.onnx       # kills while it is imported, tuned on the real CPU and exported

A round starts a queue on simulated devices, kills its processes at some 24 planned steps and three random moments,
starts each again, and checks what is left; `kills/run.py` lists what must hold. The order of the durable calls of an
undisturbed round is checked, too: a kill never reveals a missing fsync, a power failure does. Everything happens in a
temporary folder below --folder, so the disk that is tested is that one. The folder is kept if something was lost.
A round takes some 12 seconds. Exit code 0 if nothing was lost, 1 if something was.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kills import power
from kills.plan import coverage, plan
from kills.run import HOOK, Round, RoundResult, differences, read_trace, sites_of
from kills.subject import real, simulated

BUILD = Path(__file__).parents[2] / "build"
# With the first policy the result depends on the seed only, so it can be compared. The second is the default.
_POLICIES = ("sequential", "predictive")
_RANDOM_KILLS = 3
_RANDOM_WITHIN_S = 4.0

ReportProgress = Callable[[int, int], None]


@dataclass
class Verdict:
    """What became of all rounds.

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
        died, reached = coverage(self.sites, self.deaths)
        line = f"{self.kills} kills at {died} of {reached} kinds of step, {len(self.losses)} losses; seed {self.seed}"
        return line + (f"; see {self.kept}" if self.kept else "")


def kill_rounds(
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
        OSError: No folder can be made in `parent`.
    """
    folder = Path(tempfile.mkdtemp(prefix="kill-", dir=parent)).absolute()
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
    planned = []
    subjects = {policy: simulated(verdict.seed, policy) for policy in _POLICIES}
    if model is not None:
        subjects = {"real": real(model)}
    for at, (policy, subject) in enumerate(subjects.items()):
        share = (rounds + len(subjects) - 1 - at) // len(subjects)
        if rounds and not share:
            continue
        first = Round(folder / policy / "undisturbed", subject, record=True, hook=hook)
        outcome = first.run()
        trace = read_trace(first)
        verdict.losses += [f"undisturbed: {line}" for line in [*outcome.problems, *power.violations(trace)]]
        sites = sites_of(trace, subject.steady)
        verdict.sites += sites
        for number, kills in enumerate(plan(sites, share, verdict.seed)):
            seed = verdict.seed * 1000 + number
            moments = [random.Random(f"{seed}/{kill}").uniform(0.2, _RANDOM_WITHIN_S) for kill in range(_RANDOM_KILLS)]
            round = Round(folder / policy / f"{number:04}", subject, kills, moments, seed, hook=hook)
            planned.append(_Planned(round, outcome if subject.steady else None))
    return planned


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


def main() -> None:
    options = _parse()
    BUILD.mkdir(exist_ok=True)
    try:
        verdict = kill_rounds(options.folder, options.rounds, options.seed, _tell, model=options.model)
    except OSError as error:
        sys.exit(f"kill: cannot use {options.folder}: {error.strerror}")
    print(*verdict.losses, verdict, sep="\n")
    sys.exit(0 if verdict.ok else 1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="0: enough to kill at every step")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="repeats a plan")
    parser.add_argument("--model", type=Path, metavar="FILE.onnx", help="tune it on the real CPU, too, and export it")
    parser.add_argument("--folder", type=Path, default=BUILD, help="on the disk to be tested")
    options = parser.parse_args()
    if options.rounds < 0:
        parser.error("--rounds must be 0 or more")
    if options.model is not None and not options.model.is_file():
        parser.error(f"cannot read {options.model}: there is no such file")
    options.model = options.model and options.model.absolute()
    return options


def _tell(done: int, total: int) -> None:
    print(f"{done} of {total} rounds", file=sys.stderr)


if __name__ == "__main__":
    main()
