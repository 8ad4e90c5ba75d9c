"""Requests are counted by code and result, and fall into the bucket of the time that they took."""

from __future__ import annotations

import asyncio
import time

import pytest

from epochmq_broker.requests import request_latencies
from epochmq_broker.requests.request_latencies import SENDS, RequestLatencies, watermarks
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, encode, response, response_code
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.server import RemotingServer
from tests.support.net import loopback

HOST = loopback(94)
BOUNDS = ("1.0", "3.0", "5.0", "7.0", "10.0", "100.0", "1000.0", "2000.0", "3000.0", "+Inf")


def counts(latencies: RequestLatencies) -> dict[tuple[str, str, str, str], float]:
    """(request code, response code, result, is_long_polling) → number of requests."""
    return {
        tuple(labels[name] for name in ("request_code", "response_code", "result", "is_long_polling")): value
        for name, value, labels in latencies.samples()
        if name == "rpc_latency_milliseconds_count"
    }


def buckets(latencies: RequestLatencies, code: str) -> list[float]:
    return [
        value
        for name, value, labels in latencies.samples()
        if name.endswith("_bucket") and labels["request_code"] == code
    ]


def test_the_fast_requests_of_a_slow_turn_take_as_long_as_the_turn() -> None:
    latencies = RequestLatencies()
    latencies.fast[SENDS] += 1000  # in turns of less than a millisecond
    latencies.marks = latencies.fast[:]
    latencies.fast[SENDS] += 3
    latencies.end_slow_turn(0.0065)
    latencies.marks = latencies.fast[:]
    latencies.fast[SENDS] += 2
    latencies.end_slow_turn(4.0)
    latencies.fast[SENDS] += 1
    assert buckets(latencies, "send_message_v2") == [
        1001,
        1001,
        1001,
        1004,
        1004,
        1004,
        1004,
        1004,
        1004,
        1006,
    ]
    total = {name: value for name, value, _ in latencies.samples()}
    assert total["rpc_latency_milliseconds_sum"] == 3 * 6 + 2 * 4000


def test_other_requests_have_their_own_time_code_and_result() -> None:
    latencies = RequestLatencies()
    now = time.monotonic()
    latencies.record(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, now - 0.05)
    latencies.fast[SENDS] += 1
    latencies.record(RequestCode.PULL_MESSAGE, ResponseCode.PULL_NOT_FOUND, now - 1.5, polls=True)
    latencies.record(RequestCode.HEART_BEAT, ResponseCode.SUCCESS, now, oneway=True)
    assert counts(latencies) == {
        ("send_message_v2", "success", "success", "false"): 2,
        ("pull_message", "pull_not_found", "success", "true"): 1,
        ("heart_beat", "success", "oneway", "false"): 1,
    }
    assert buckets(latencies, "send_message_v2") == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert buckets(latencies, "pull_message") == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_codes_of_clients_cannot_use_up_the_label_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies = RequestLatencies()
    for code in range(20_000, 21_000):
        latencies.record(code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, time.monotonic())
    assert counts(latencies) == {("unknown", "request_code_not_supported", "success", "false"): 1000}
    monkeypatch.setattr(request_latencies, "HISTOGRAMS_MAX", 10)
    for answer in range(1000):
        latencies.record(RequestCode.HEART_BEAT, answer, time.monotonic())
    assert len(counts(latencies)) == 2


@pytest.mark.parametrize("code", [0, 1, 19, 207, 2007])
def test_the_code_of_a_response_is_read_from_its_frame(code: int) -> None:
    request = Command(1, opaque=7)
    assert response_code(encode(response(request, code, "remark", ext={"a": "b"}))) == code


def test_requests_are_counted_by_the_processors_of_rocketmq() -> None:
    running = [RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.POP_MESSAGE, 9999]
    waiting = [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE_V2, RequestCode.ACK_MESSAGE]
    found = {labels["processor"]: value for _, value, labels in watermarks(running, waiting)}
    assert len(found) == 12
    assert {name: value for name, value in found.items() if value} == {
        "admin": 2,
        "pull": 1,
        "async_put": 2,
        "ack": 1,
    }


async def test_a_server_times_every_kind_of_response() -> None:
    """At once, by a task, deferred, with an error, and by a fast handler."""
    latencies = RequestLatencies()
    deferred: list[tuple[RemotingConnection, Command]] = []

    def at_once(_: RemotingConnection, command: Command) -> Command:
        return response(command, ResponseCode.SUCCESS)

    async def by_a_task(_: RemotingConnection, command: Command) -> Command:
        await asyncio.sleep(0.02)
        return response(command, ResponseCode.SYSTEM_BUSY)

    def later(connection: RemotingConnection, command: Command) -> None:
        connection.defer(command.opaque, command.code, polls=True)
        deferred.append((connection, command))
        asyncio.get_running_loop().call_later(0.02, respond)

    def respond() -> None:
        connection, command = deferred.pop()
        assert list(connection.deferred_codes()) == []  # it waits for messages
        connection.respond(response(command, ResponseCode.PULL_NOT_FOUND))

    def fails(_: RemotingConnection, command: Command) -> Command:
        raise RequestError(ResponseCode.NO_PERMISSION, "no")

    server = RemotingServer(
        {
            RequestCode.HEART_BEAT: at_once,
            RequestCode.QUERY_MESSAGE: by_a_task,
            RequestCode.PULL_MESSAGE: later,
            RequestCode.UNREGISTER_CLIENT: fails,
        },
        timer=latencies,
    )
    client = RemotingClient()
    await server.start(HOST, 0)
    try:
        for code in (
            RequestCode.HEART_BEAT,
            RequestCode.QUERY_MESSAGE,
            RequestCode.PULL_MESSAGE,
            RequestCode.UNREGISTER_CLIENT,
        ):
            await client.call(f"{HOST}:{server.port}", Command(code), 60_000)
    finally:
        await client.close()
        await server.stop()
    assert counts(latencies) == {
        ("heart_beat", "success", "success", "false"): 1,
        ("query_message", "system_busy", "success", "false"): 1,
        ("pull_message", "pull_not_found", "success", "true"): 1,
        ("unregister_client", "no_permission", "success", "false"): 1,
    }
    for code in ("query_message", "pull_message"):
        assert buckets(latencies, code)[BOUNDS.index("10.0")] == 0, "it took 20 ms"
        assert buckets(latencies, code)[-1] == 1
