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

from epochmq_protocol import message as records
from tests.benchmarks.build import CompilerMissingError, load_program
from tests.support.net import loopback
from tests.support.remoting import read_frame

OCTET = 57
GET_MAX_OFFSET, GET_MIN_OFFSET = 30, 31
POP_MESSAGE, ACK_MESSAGE = 200050, 200051
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


def _frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


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
            elif header["code"] == GET_MIN_OFFSET:
                response["extFields"] = {"offset": "0"}
            else:
                response.update(reply(sends, header))
                sends += 1
            body = response.pop("body", b"")
            connection.sendall(_frame(response, body))


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
    program: Path, reply: Reply, options: tuple[str, ...] = ("queues=1", "count=50"), mode: str = "send"
) -> tuple[int, dict[str, Any]]:
    with broker(reply) as address:
        command = [str(program), mode, *address.split(), "topic=t", "depth=4", *options]
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


def test_sends_with_a_delivery_time_have_one_and_share_the_timers_queue(program: Path) -> None:
    seen: list[dict[str, str]] = []

    def reply(number: int, header: dict[str, Any]) -> dict[str, Any]:
        seen.append(records.parse_properties(header["extFields"]["i"]))
        return stored(number, header)

    status, result = run(program, reply, ("queues=3", "count=40", "due=1700000000000", "digit=1"))
    assert (status, result["messages"]) == (0, 40)
    assert [one["TIMER_DELIVER_MS"] for one in seen] == [str(1700000000000 + 25 * n) for n in range(40)]
    assert [one["a"] for one in seen] == [str(n // 3 % 10) for n in range(40)]


def record(queue: int, offset: int, properties: str = "") -> bytes:
    """A stored message."""
    return records.encode_record(
        records.MessageExt(
            "t", b"body", properties.encode(), queue_id=queue, queue_offset=offset, physical_offset=offset
        )
    )


def popped(first: int) -> dict[str, Any]:
    """The response to a POP with two messages of queue 0 and one of queue 1."""
    header = {
        "popTime": "1700000000000",
        "invisibleTime": "3600000",
        "reviveQid": "5",
        "restNum": "9",
        "startOffsetInfo": f"0 1 {first // 2};0 0 {first}",
        "msgOffsetInfo": "",
    }
    return {"extFields": header, "body": record(0, first) + record(0, first + 1) + record(1, first // 2)}


def run_pops(program: Path, reply: Reply) -> tuple[int, dict[str, Any]]:
    options = ("queues=2", "depth=1", "batch=3", "seconds=2", "warmup=0", "broker=b")
    return run(program, reply, options, "pop")


def test_popped_messages_are_acknowledged_by_their_names(program: Path) -> None:
    pops, acks = 0, []

    def reply(_: int, header: dict[str, Any]) -> dict[str, Any]:
        nonlocal pops
        fields = header["extFields"]
        if header["code"] == POP_MESSAGE:
            pops += 1
            return popped(2 * pops - 2)
        assert header["code"] == ACK_MESSAGE
        acks.append((fields["queueId"], fields["offset"], fields["extraInfo"]))
        return {}

    status, result = run_pops(program, reply)
    assert status == 0
    assert result["codes"] == {"0": pops + len(acks)}
    assert len(acks) == pops * 3
    assert 0 < result["messages"] <= len(acks)
    named = "1700000000000 3600000 5 0 b"
    assert acks[:3] == [
        ("0", "0", f"0 {named} 0 0"),
        ("0", "1", f"0 {named} 0 1"),
        ("1", "0", f"0 {named} 1 0"),
    ]


def test_a_message_popped_twice_is_noticed(program: Path) -> None:
    def reply(_: int, header: dict[str, Any]) -> dict[str, Any]:
        return popped(0) if header["code"] == POP_MESSAGE else {}

    status, result = run_pops(program, reply)
    assert status == WRONG_ANSWERS
    assert result["duplicates"] > 0


def test_a_rejected_acknowledgement_is_noticed(program: Path) -> None:
    pops = 0

    def reply(_: int, header: dict[str, Any]) -> dict[str, Any]:
        nonlocal pops
        pops += header["code"] == POP_MESSAGE
        return popped(2 * pops - 2) if header["code"] == POP_MESSAGE else {"code": 1}

    status, result = run_pops(program, reply)
    assert (status, result["messages"]) == (WRONG_ANSWERS, 0)


@pytest.mark.parametrize(("digit", "status"), [("2", 0), ("3", WRONG_ANSWERS)])
def test_a_message_that_does_not_match_the_expression_is_noticed(
    program: Path, digit: str, status: int
) -> None:
    def reply(_: int, header: dict[str, Any]) -> dict[str, Any]:
        fields = header["extFields"]
        assert (fields["expressionType"], fields["subscription"]) == ("SQL92", "a BETWEEN 0 AND 2")
        offset = int(fields["queueOffset"])
        if offset == 100:
            return {"code": 19, "extFields": {"nextBeginOffset": "100", "minOffset": "0"}}
        if offset % 20 == 0:  # nothing matched
            return {"code": 20, "extFields": {"nextBeginOffset": str(offset + 5), "minOffset": "0"}}
        body = record(0, offset + 3, f"x\x01y\x02a\x01{digit}\x02")
        return {"extFields": {"nextBeginOffset": str(offset + 5), "minOffset": "0"}, "body": body}

    found, result = run(program, reply, ("queues=1", "depth=1", "once=1", "sql=2"), "pull")
    assert (found, result["messages"]) == (status, 15)
