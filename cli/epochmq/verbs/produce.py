"""`epochmq produce`."""

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
"""More than any broker takes in one frame."""


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
    """Sends the body, or each line of the input, and prints where it went."""
    if body == "":
        raise UsageError("the message is empty; RocketMQ takes none such")
    nameservers = target.nameservers()

    async def main() -> int:
        producer = Producer(nameservers, group, timeout_ms=timeout_s * 1000)
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
    """Several sends are under way at a time; their results are printed in the order of the lines."""
    if sys.stdin.isatty():
        print_error("one message per line; Ctrl-D ends")
    under_way: deque[asyncio.Task[SendResult]] = deque()
    empty = 0
    try:
        async for line in _lines():
            if not line:
                empty += 1
                continue
            under_way.append(asyncio.create_task(producer.send(topic, line, tags=tags, keys=keys)))
            while under_way and (under_way[0].done() or len(under_way) >= IN_FLIGHT_MAX):
                _print(await under_way[0], as_json)
                under_way.popleft()
        while under_way:
            _print(await under_way[0], as_json)
            under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
    if empty:
        print_error(f"{empty} empty lines were not sent; RocketMQ takes no empty message")
    return ExitCode.OK


async def _lines() -> AsyncIterator[bytes]:
    """The lines of the input, without their ends, each as soon as it is there."""
    descriptor = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # always ready, and nothing that a loop could wait for
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
        raise UsageError(f"a line is longer than {LINE_BYTES_MAX} bytes") from None


class _SendResultJson(msgspec.Struct, rename="camel"):
    """A result as JSON."""

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
