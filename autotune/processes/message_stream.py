"""Messages as lines of JSON on a pipe."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

_CHUNK_BYTES = 65536


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as the line that `write_all` is to write.

    Raises:
        TypeError, ValueError: The message is not JSON.
    """
    return json.dumps(message).encode() + b"\n"


class MessageReader:
    """Reads messages from a pipe. The end of the stream is `ended`; a message torn by it is dropped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._buffer = b""

    def receive(self) -> list[dict[str, Any]]:
        """Read once, and return the messages that are complete now: none, one or several.

        Waits only if there is nothing to read: after a `select` it does not.
        """
        chunk = os.read(self.descriptor, _CHUNK_BYTES)
        self.ended = not chunk
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Wait for messages, one by one, until the stream ends."""
        while not self.ended:
            yield from self.receive()
