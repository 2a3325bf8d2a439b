"""Plan at which steps processes are killed. The same seed gives the same plan."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Scope = Literal["one", "all"]

KILLS_A_ROUND = 24
_SCOPES = 4  # one kill in so many also kills the daemon


@dataclass(frozen=True)
class Kill:
    """A planned kill.

    Attributes:
        site: The kind of step, as `points` names it.
        occurrence: At which arrival at the site, counted over all processes from 1.
        scope: `one` kills that process. `all` also kills the daemon, and so all of its processes.
    """

    site: str
    occurrence: int
    scope: Scope


def plan(sites: Counter[str], rounds: int, seed: int) -> list[list[Kill]]:
    """Choose kills for each round from the steps of an undisturbed run.

    Every site gets one kill before any site gets a second one. The round and the scope of a kill depend on the seed and
    its step only. So two runs with slightly different steps get slightly different plans.

    Args:
        sites: How often the undisturbed run reached each site.
        rounds: How many rounds there are, with `KILLS_A_ROUND` kills on average; 0 for enough rounds to kill at every
            step.
        seed: The seed of the plan.

    Returns:
        The kills of each round.
    """
    steps = [(rank, draw, kill) for site in sites for rank, (draw, kill) in enumerate(_drawn(site, sites[site], seed))]
    count = rounds or max(1, -(-len(steps) // KILLS_A_ROUND))
    by_round: list[list[Kill]] = [[] for _ in range(count)]
    for _, draw, kill in sorted(steps, key=lambda step: step[:2])[: count * KILLS_A_ROUND]:
        by_round[draw % count].append(kill)
    return by_round


def _drawn(site: str, count: int, seed: int) -> list[tuple[int, Kill]]:
    """Return a kill for each step of a site with its random number, in the order of these numbers."""
    drawn = []
    for occurrence in range(1, count + 1):
        digest = hashlib.sha256(f"{seed}/{site}/{occurrence}".encode()).digest()
        scope: Scope = "one" if digest[8] % _SCOPES else "all"
        drawn.append((int.from_bytes(digest[:8], "big"), Kill(site, occurrence, scope)))
    return sorted(drawn, key=lambda item: item[0])


def coverage(sites: Iterable[str], deaths: Iterable[str]) -> tuple[int, int]:
    """Return at how many sites a process was killed, and how many sites there are."""
    reached = set(sites)
    return len(reached & set(deaths)), len(reached)
