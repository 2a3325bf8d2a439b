"""Signals that end this process: noted, and handled at a safe point. The names of all signals.

SIGINT, SIGTERM, SIGQUIT and SIGHUP wake a `select` that waits for other things.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_MANY_SIGNALS = 4096  # one byte each


def signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C wait until the end of a `with` block, in this thread and in the children that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Interrupts:
    """The signals that came, in order.

    Attributes:
        descriptor: Is readable when a signal has come.
        received: The numbers of the signals.
    """

    descriptor: int
    received: list[int] = field(default_factory=list)

    def drain(self) -> None:
        """Empty the descriptor, so that it becomes readable again at the next signal."""
        os.read(self.descriptor, _MANY_SIGNALS)


@contextmanager
def interrupts(react: Callable[[], None]) -> Iterator[Interrupts]:
    """Catch these signals within a `with` block, and restore their handlers after it.

    SIGHUP comes when a terminal is closed. Where it is ignored, as under `nohup`, it stays ignored.

    Args:
        react: Is called at each signal, in the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    caught = Interrupts(reader)

    def on_signal(number: int, _: object) -> None:
        caught.received.append(number)
        react()

    previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, on_signal) for number in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # who started this process may have held them back
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(reader)
        os.close(writer)
