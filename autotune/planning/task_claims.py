"""Which task of which job works on a tuning log, so that no two rounds of different tasks do at once."""

from __future__ import annotations

from collections.abc import Mapping, Set


class TaskClaims:
    """Claims of tasks on tuning logs, by the log's key; and the jobs to look at again when a claim changes."""

    def __init__(self) -> None:
        self._holders: dict[str, set[tuple[int, int]]] = {}
        self._watchers: dict[str, set[int]] = {}

    def change(self, job: int, before: Mapping[str, set[int]], after: Mapping[str, set[int]]) -> list[int]:
        """Replace the claims of a job.

        Args:
            job: The id of the job.
            before: Its claims until now: the indices of its tasks by key.
            after: Its claims from now on.

        Returns:
            The ids of the other jobs that watch one of the keys.
        """
        affected: list[int] = []
        for key in before.keys() | after.keys():
            holders = self._holders.setdefault(key, set())
            holders -= {(job, task) for task in before.get(key, ())}
            holders |= {(job, task) for task in after.get(key, ())}
            if not holders:
                del self._holders[key]
            affected += sorted(self._watchers.get(key, ()))
        return [other for other in affected if other != job]

    def watch(self, job: int, before: Set[str], after: Set[str]) -> None:
        """Replace the keys that a job watches."""
        for key in before - after:
            self._watchers[key].discard(job)
            if not self._watchers[key]:
                del self._watchers[key]
        for key in after - before:
            self._watchers.setdefault(key, set()).add(job)

    def is_claimed(self, key: str) -> bool:
        """Return whether a task has a claim on a key."""
        return key in self._holders

    def is_free(self, key: str, job: int, task: int) -> bool:
        """Return whether no task but this one has a claim on a key."""
        holders = self._holders.get(key)
        return not holders or holders == {(job, task)}
