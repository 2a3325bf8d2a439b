"""Boards that are measured on over TVM's RPC: what their tracker says. Never imports TVM.

A tracker knows the boards of a lab by keys. Who wants a board asks the tracker for one with a key, and is told its
address and a word that the board expects. A message to the tracker is its length in four bytes, then JSON.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autotune.device_settings import BoardSettings
from autotune.errors import BoardProblem

_MAGIC = 0x2F271
_REQUEST = 4
_SUMMARY = 6
_SUCCESS = 0
_MAX_BYTES = 2**24
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Lent:
    """A board that a tracker has lent: its address, and the word that it expects first."""

    host: str
    port: int
    word: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class BoardCounts:
    """How many boards of a key a tracker knows, how many of them are free, and how many requests wait for one."""

    known: int
    free: int
    pending: int


def request(board: BoardSettings) -> Lent:
    """Ask the tracker for a board, and wait for it as long as the settings say.

    Raises:
        BoardProblem: The tracker does not answer, or no board was free in time.
    """
    with _tracker(board.tracker) as connection:
        connection.settimeout(board.request_timeout_s)
        try:
            code, (host, port, word) = _ask(connection, [_REQUEST, board.key, "", 1])
        except TimeoutError:
            raise BoardProblem(_none_free(board)) from None
        if code != _SUCCESS:
            raise BoardProblem(f"the tracker {board.tracker} lends no board with the key {board.key!r}")
        return Lent(str(host), int(port), str(word))


def counts(board: BoardSettings) -> BoardCounts:
    """Ask the tracker how many boards of a key there are.

    Raises:
        BoardProblem: The tracker does not answer.
    """
    with _tracker(board.tracker) as connection:
        _, summary = _ask(connection, [_SUMMARY])
        queue = summary["queue_info"].get(board.key, {})
        registered = sum(server.get("key") == f"server:{board.key}" for server in summary["server_info"])
        return BoardCounts(registered, int(queue.get("free", 0)), int(queue.get("pending", 0)))


def is_loopback(tracker: str) -> bool:
    """Return whether a tracker's address is one that only this machine reaches."""
    from ipaddress import ip_address  # here, for only `doctor` asks

    host = address(tracker)[0]
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def address(tracker: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`."""
    host, _, port = tracker.rpartition(":")
    return host.strip("[]"), int(port)


def _none_free(board: BoardSettings) -> str:
    boards = counts(board)
    waited = f"the tracker {board.tracker} had no free board with the key {board.key!r}"
    there = f"{boards.known} known, {boards.free} free" if boards.known else "none is known there"
    return f"{waited} for {board.request_timeout_s:g} s ({there})"


@contextmanager
def _tracker(tracker: str) -> Iterator[socket.socket]:
    """Connect to a tracker, for a `with` block in which it has to answer.

    Raises:
        BoardProblem: It does not.
    """
    try:
        with socket.create_connection(address(tracker), timeout=_ANSWER_S) as connection:
            connection.sendall(struct.pack("<i", _MAGIC))
            if struct.unpack("<i", _receive(connection, 4))[0] != _MAGIC:
                raise ValueError("it is not a tracker")
            yield connection
    except BoardProblem:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        said = (error.strerror or str(error) or "no answer") if isinstance(error, OSError) else "it is not a tracker"
        raise BoardProblem(f"the tracker {tracker} does not answer ({said.lower()})") from error


def _ask(connection: socket.socket, message: list[Any]) -> Any:
    data = json.dumps(message).encode()
    connection.sendall(struct.pack("<i", len(data)) + data)
    (length,) = struct.unpack("<i", _receive(connection, 4))
    if not 0 < length <= _MAX_BYTES:
        raise ValueError(length)
    return json.loads(_receive(connection, length))


def _receive(connection: socket.socket, length: int) -> bytes:
    """Receive bytes. The time-out of the connection is for all of them."""
    data = b""
    limit = connection.gettimeout()
    until = None if limit is None else time.monotonic() + limit
    while len(data) < length:
        if until is not None and time.monotonic() >= until:
            raise TimeoutError("timed out")
        chunk = connection.recv(length - len(data))
        if not chunk:
            raise ConnectionError("it closed the connection")
        data += chunk
    return data
