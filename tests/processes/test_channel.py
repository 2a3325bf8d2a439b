"""Messages arrive whole and in order, however the pipe takes and gives them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.processes.message_stream import MessageReader, encode
from autotune.storage.atomic import write_all


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_messages_come_back_in_order_but_for_one_torn_by_the_end_which_is_noticed(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    sent: list[dict[str, Any]] = [{"a": 1}, {"text": "line\nbreak ü"}, {"list": [1.5, None]}]
    for message in sent:
        write_all(writer, encode(message))
    with pytest.raises(TypeError):
        encode({"a": object()})
    os.write(writer, b'{"b": 2}')
    os.close(writer)
    messages = MessageReader(reader)
    assert messages.receive() == sent
    assert not messages.ended
    assert messages.receive() == []
    assert messages.ended


def test_a_message_that_comes_in_pieces_is_returned_once_it_is_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    messages = MessageReader(reader)
    os.write(writer, b'{"a": ')
    assert messages.receive() == []
    os.write(writer, b'1}\n{"b"')
    assert messages.receive() == [{"a": 1}]
    os.write(writer, b": 2}\n")
    assert messages.receive() == [{"b": 2}]


def test_a_message_larger_than_the_pipe_is_written_whole(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:70_000]))
    message = {"text": "x" * 1_000_000}
    thread = threading.Thread(target=lambda: write_all(writer, encode(message)))
    thread.start()
    assert next(iter(MessageReader(reader))) == message
    thread.join()
