"""SIGINT and SIGTERM, taken note of rather than obeyed at once: they wake a `select` that waits for other things."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Interrupts:
    """The signals that came, in order, and a descriptor that is readable when one has come."""

    descriptor: int
    received: list[int] = field(default_factory=list)

    def drain(self) -> None:
        """Make the descriptor wait for the next signal."""
        os.read(self.descriptor, 4096)


@contextmanager
def interrupts(react: Callable[[], None]) -> Iterator[Interrupts]:
    """Catch both signals, and call `react` at each; what was done about them before is done again afterwards."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    caught = Interrupts(reader)

    def on_signal(number: int, _: object) -> None:
        caught.received.append(number)
        react()

    previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(reader)
        os.close(writer)
