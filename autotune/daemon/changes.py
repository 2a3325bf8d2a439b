"""Whether anything has changed since the last plan, and since `status` was last told."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Changes:
    """Two flags. The dispatcher clears `unplanned` when it plans, the publisher `unpublished` when it has written.

    `jobs` are those that something has happened to since they were last published, by id.
    """

    unplanned: bool = True
    unpublished: bool = True
    jobs: set[int] = field(default_factory=set)

    def note(self) -> None:
        """Something has changed: plan and publish anew."""
        self.unplanned = self.unpublished = True
