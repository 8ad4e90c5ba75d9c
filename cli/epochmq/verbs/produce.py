"""Implements `epochmq produce`: sends messages to a topic."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from epochmq.client import Producer, SendResult
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.target import NameserverTarget

IN_FLIGHT_MAX = 64
LINE_BYTES_MAX = 16 * 1024 * 1024
"""Larger than any frame that a broker accepts."""


def run(
    target: NameserverTarget,
    topic: str,
    body: str | None,
    *,
    tags: str | None,
    keys: str | None,
    group: str,
    as_json: bool,
    timeout_s: float,
) -> int:
    """Sends the body, or each line of the input, and prints where each message was stored."""
    if body == "":
        raise UsageError("the message is empty; RocketMQ accepts no empty messages")
    nameservers, credentials, tls = target.nameservers(), target.credentials(), target.tls()

    async def main() -> int:
        producer = Producer(nameservers, group, timeout_ms=timeout_s * 1000, credentials=credentials, tls=tls)
        try:
            if body is not None:
                _print(await producer.send(topic, body.encode(), tags=tags, keys=keys), as_json)
                return ExitCode.OK
            return await _send_lines(producer, topic, tags=tags, keys=keys, as_json=as_json)
        finally:
            await producer.close()

    return asyncio.run(main())


async def _send_lines(
    producer: Producer, topic: str, *, tags: str | None, keys: str | None, as_json: bool
) -> int:
    """Sends several lines at a time; prints their results in the order of the lines."""
    if sys.stdin.isatty():
        print_error("type one message per line; press Ctrl-D to stop")
    in_flight: deque[asyncio.Task[SendResult]] = deque()
    empty = 0
    try:
        async for line in _lines():
            if not line:
                empty += 1
                continue
            in_flight.append(asyncio.create_task(producer.send(topic, line, tags=tags, keys=keys)))
            while in_flight and (in_flight[0].done() or len(in_flight) >= IN_FLIGHT_MAX):
                _print(await in_flight[0], as_json)
                in_flight.popleft()
        while in_flight:
            _print(await in_flight[0], as_json)
            in_flight.popleft()
    finally:
        for task in in_flight:
            task.cancel()
        if in_flight:
            await asyncio.wait(in_flight)
    if empty:
        print_error(f"{empty} empty lines were not sent; RocketMQ accepts no empty messages")
    return ExitCode.OK


async def _lines() -> AsyncIterator[bytes]:
    """The lines of the input, without line feeds, each as soon as it arrives."""
    descriptor = sys.stdin.fileno()
    if stat.S_ISREG(
        os.fstat(descriptor).st_mode
    ):  # epoll does not support regular files; they are always ready
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
            await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await _line(reader):
            yield line.rstrip(b"\r\n")
    finally:
        transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        raise UsageError(f"a line of the input is longer than {LINE_BYTES_MAX} bytes") from None


class _SendResultJson(msgspec.Struct, rename="camel"):
    """The JSON of a result."""

    status: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str


def _print(result: SendResult, as_json: bool) -> None:
    if as_json:
        sent = _SendResultJson(
            result.status,
            result.topic,
            result.broker_name,
            result.queue_id,
            result.queue_offset,
            result.msg_id,
            result.offset_msg_id,
        )
        print(msgspec.json.encode(sent).decode(), flush=True)
    else:
        place = f"{result.broker_name} queue {result.queue_id} offset {result.queue_offset}"
        print(f"{result.status} {place} id {result.msg_id}", flush=True)
