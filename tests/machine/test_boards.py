"""What a real tracker says of its boards."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from autotune.device_settings import BoardSettings
from autotune.errors import BoardProblem
from autotune.machine import boards

from ..rpc_lab import KEY, Lab, free_port


@pytest.mark.parametrize(
    ("tracker", "expected"),
    [("127.0.0.1:9190", True), ("[::1]:9190", True), ("localhost:1", True), ("10.0.0.3:1", False), ("lab:1", False)],
)
def test_an_address_is_that_of_this_machine_or_not(tracker: str, expected: bool) -> None:
    assert boards.is_loopback(tracker) is expected


def test_a_tracker_without_boards_names_what_is_missing_and_a_request_that_was_given_up_takes_none(lab: Lab) -> None:
    with pytest.raises(BoardProblem, match=f"no free board with the key '{KEY}' for 0.2 s .none is known there"):
        boards.request(lab.board(request_timeout_s=0.2))
    lab.start_server()
    lab.await_boards(1)
    lent = boards.request(lab.board())
    assert lent.host == "127.0.0.1" and lent.word
    assert lab.counts().known == 1 and lab.counts().free == 0


def test_a_tracker_that_is_not_there_is_a_problem_of_the_board() -> None:
    with pytest.raises(BoardProblem, match="does not answer .connection refused"):
        boards.counts(BoardSettings(tracker=f"127.0.0.1:{free_port()}", key=KEY))


_MAGIC = b"\x71\xf2\x02\x00"


def _message(text: bytes) -> bytes:
    return _MAGIC + struct.pack("<i", len(text)) + text


@pytest.mark.parametrize("ask", [boards.counts, boards.request])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"",
        _MAGIC + b"\xff\xff\xff\x7f",
        _message(b"[0, {}]"),
        _message(b'[0, ["host", "port", "word"]]'),
    ],
)
def test_what_is_no_tracker_is_a_problem_of_the_board(answer: bytes, ask: Callable[[BoardSettings], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_answer, args=(listening, answer))
        thread.start()
        with pytest.raises(BoardProblem, match="does not answer"):
            ask(BoardSettings(tracker=f"127.0.0.1:{listening.getsockname()[1]}", key=KEY))
        thread.join()


def _answer(listening: socket.socket, answer: bytes) -> None:
    with listening.accept()[0] as connection:
        connection.sendall(answer)
