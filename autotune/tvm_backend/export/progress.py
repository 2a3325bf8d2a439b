"""What an export tells the user: each of its steps when it starts, with its number and how many there are."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from autotune.processes.messages import ExportRequest, StepReporter

LOADING = "loading TVM"
READING = "reading the model"
COMPILING = "compiling the best kernels so far"
VERIFYING = "verifying"
BUILDING = "building the best candidates of each task again"
TIMING = "timing these candidates in turns"
COMPILING_AGAIN = "compiling the fastest of them, and verifying again"
UNTUNED = "compiling the untuned model, to compare with"
COMPARING = "comparing, each runtime alone in a process of its own"

_BETWEEN_S = 5.0  # seconds between two messages about the same step


def plan(request: ExportRequest) -> tuple[str, ...]:
    """Return the steps of an export. Verification comes before all that takes long, so that what fails, fails soon."""
    verified = (LOADING, READING, COMPILING, VERIFYING)
    if request.quick:
        return verified
    again = (BUILDING, TIMING, COMPILING_AGAIN) if request.contenders > 1 else ()
    return (*verified, *again, *((UNTUNED,) if request.untuned else ()), COMPARING)


@dataclass
class Steps:
    """Tells the steps of a plan. A step that there is nothing to do for is not told, and keeps its number.

    Attributes:
        tell: Is called with each message.
        steps: What `plan` returned.
    """

    tell: StepReporter
    steps: tuple[str, ...]
    _step: str = ""
    _told: float = field(default=0.0)

    def begin(self, step: str) -> None:
        """Tell that a step starts."""
        self._step = f"step {self.steps.index(step) + 1} of {len(self.steps)}: {step}"
        self._told = time.monotonic()
        self.tell(self._step)

    def done(self, count: int, total: int) -> None:
        """Tell how much of the current step is done, unless something was told a moment ago."""
        if time.monotonic() - self._told >= _BETWEEN_S:
            self._told = time.monotonic()
            self.tell(f"{self._step} ({count} of {total} done)")

    def wait(self, what: str) -> None:
        """Tell what is waited for. It does not count towards the time limit of the export."""
        self.tell(f"waiting for {what}", waiting=True)
