"""The load program of the benchmarks notices wrong responses of a broker; otherwise its numbers would mean
nothing."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.build import CompilerMissingError, load_program
from tests.support.net import loopback
from tests.support.remoting import read_frame

OCTET = 57
GET_MAX_OFFSET = 30
WRONG_ANSWERS = 5

Reply = Callable[
    [int, dict[str, Any]], dict[str, Any]
]  # (number of the send, request header) -> header fields


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return load_program()
    except CompilerMissingError as error:
        pytest.skip(str(error))


def _frame(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text), len(text)) + text


def _serve(listener: socket.socket, reply: Reply) -> None:
    """Serves one connection until it is closed."""
    connection, _ = listener.accept()
    sends = 0
    with connection:
        while True:
            try:
                header, _ = read_frame(connection)
            except ConnectionError:
                return
            response: dict[str, Any] = {"code": 0, "flag": 1, "opaque": header["opaque"]}
            if header["code"] == GET_MAX_OFFSET:
                response["extFields"] = {"offset": "7"}
            else:
                response.update(reply(sends, header))
                sends += 1
            connection.sendall(_frame(response))


@contextmanager
def broker(reply: Reply) -> Iterator[str]:
    """A broker of a few lines whose sends are answered by `reply`; yields its address."""
    with socket.create_server((loopback(OCTET), 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, reply), daemon=True)
        thread.start()
        host, port = listener.getsockname()
        yield f"host={host} port={port}"
        thread.join(60)


def stored(number: int, header: dict[str, Any]) -> dict[str, Any]:
    """The response of a correct broker with one queue that held 7 messages before."""
    return {"extFields": {"queueId": header["extFields"]["e"], "queueOffset": str(7 + number), "msgId": "0"}}


def run(
    program: Path, reply: Reply, options: tuple[str, ...] = ("queues=1", "count=50")
) -> tuple[int, dict[str, Any]]:
    with broker(reply) as address:
        command = [str(program), "send", *address.split(), "topic=t", "depth=4", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, json.loads(done.stdout)


def test_correct_responses_are_counted(program: Path) -> None:
    status, result = run(program, stored)
    assert (status, result["messages"], result["codes"]) == (0, 50, {"0": 50})


def test_an_offset_given_twice_is_noticed(program: Path) -> None:
    status, result = run(program, lambda n, h: stored(10 if n == 11 else n, h))
    assert (status, result["duplicates"]) == (WRONG_ANSWERS, 1)


def test_a_hole_in_the_offsets_is_noticed(program: Path) -> None:
    status, result = run(program, lambda n, h: stored(n + 1 if n > 20 else n, h))
    assert (status, result["holes"]) == (WRONG_ANSWERS, 1)


def test_an_offset_from_before_the_load_is_noticed(program: Path) -> None:
    status, result = run(program, lambda n, h: stored(-3 if n == 5 else n, h))
    assert (status, result["below"]) == (WRONG_ANSWERS, 1)


def test_a_rejection_is_noticed_and_not_counted_as_a_message(program: Path) -> None:
    status, result = run(program, lambda n, h: {"code": 2} if n == 49 else stored(n, h))
    assert (status, result["messages"], result["codes"]) == (WRONG_ANSWERS, 49, {"0": 49, "2": 1})


def test_new_topics_get_messages_in_turn_in_the_named_queue(program: Path) -> None:
    seen: list[tuple[str, str]] = []

    def reply(number: int, header: dict[str, Any]) -> dict[str, Any]:
        fields = header["extFields"]
        seen.append((fields["b"], fields["e"]))
        return {"extFields": {"queueId": fields["e"], "queueOffset": str(number // 3), "msgId": "0"}}

    status, result = run(program, reply, ("topics=3", "queue=1", "fresh=1", "count=6"))
    assert (status, result["messages"]) == (0, 6)
    assert seen == [(f"t{number:05d}", "1") for number in (0, 1, 2, 0, 1, 2)]


def test_queues_with_ids_of_any_length_get_their_messages(program: Path) -> None:
    seen: list[str] = []

    def reply(number: int, header: dict[str, Any]) -> dict[str, Any]:
        seen.append(header["extFields"]["e"])
        return {"extFields": {"queueId": seen[-1], "queueOffset": "0", "msgId": "0"}}

    status, _ = run(program, reply, ("queues=1200", "fresh=1", "count=1200"))
    assert status == 0
    assert seen == [str(number) for number in range(1200)]


def test_latency_at_a_fixed_rate_counts_from_the_moment_a_send_was_due(program: Path) -> None:
    """With one request in flight and a broker that takes 50 ms, the last of ten sends that are due at once
    has waited for the nine before it."""

    def slow(number: int, header: dict[str, Any]) -> dict[str, Any]:
        threading.Event().wait(0.05)
        return stored(number, header)

    status, result = run(program, slow, ("queues=1", "depth=1", "rate=100000", "count=10"))
    assert (status, result["messages"]) == (0, 10)
    assert result["max_ms"] >= 10 * 50
