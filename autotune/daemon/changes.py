"""Whether anything has changed since the last plan, and since `status` was last told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Changes:
    """Two flags. The dispatcher clears `unplanned` when it plans, the publisher `unpublished` when it has written."""

    unplanned: bool = True
    unpublished: bool = True

    def note(self) -> None:
        """Something has changed: plan and publish anew."""
        self.unplanned = self.unpublished = True
