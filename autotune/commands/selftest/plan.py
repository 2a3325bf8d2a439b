"""Which steps are to be the last ones of some process: a plan that a seed makes again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Scope = Literal["one", "all"]

KILLS_A_ROUND = 24
_SCOPES = 4  # one death in so many takes the daemon along


@dataclass(frozen=True)
class Kill:
    """A process dies at the n-th time that any process comes to a site; `all`: the daemon and so everyone with it."""

    site: str
    occurrence: int
    scope: Scope


def plan(sites: Counter[str], rounds: int, seed: int) -> list[list[Kill]]:
    """Kills for each round, drawn from the steps of an undisturbed run: one step of every site before a second one.

    In which round a process dies at a step, and with whom, depends on the seed and on that step only. So two
    runs whose steps differ a little get plans that differ as little.

    Args:
        sites: how often the undisturbed run came to each site.
        rounds: how many rounds, of `KILLS_A_ROUND` kills on average; 0: as many as it takes to kill at every step.
    """
    steps = [(rank, draw, kill) for site in sites for rank, (draw, kill) in enumerate(_drawn(site, sites[site], seed))]
    count = rounds or max(1, -(-len(steps) // KILLS_A_ROUND))
    found: list[list[Kill]] = [[] for _ in range(count)]
    for _, draw, kill in sorted(steps, key=lambda step: step[:2])[: count * KILLS_A_ROUND]:
        found[draw % count].append(kill)
    return found


def _drawn(site: str, count: int, seed: int) -> list[tuple[int, Kill]]:
    """The steps of a site in the order in which they are drawn, with their draws."""
    found = []
    for occurrence in range(1, count + 1):
        digest = hashlib.sha256(f"{seed}/{site}/{occurrence}".encode()).digest()
        scope: Scope = "one" if digest[8] % _SCOPES else "all"
        found.append((int.from_bytes(digest[:8], "big"), Kill(site, occurrence, scope)))
    return sorted(found, key=lambda item: item[0])


def coverage(sites: Iterable[str], deaths: Iterable[str]) -> tuple[int, int]:
    """How many of the sites somebody died at, and how many there are."""
    known = set(sites)
    return len(known & set(deaths)), len(known)
