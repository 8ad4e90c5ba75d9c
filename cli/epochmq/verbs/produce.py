"""Implements `epochmq produce`: sends messages to a topic."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from epochmq.client import Producer, SendResult
from epochmq.exits import ExitCode, UsageError, error_text, print_error
from epochmq.verbs.message_input import input_lines, read_file
from epochmq.verbs.name_checks import check_group, check_property_text, check_topic
from epochmq.verbs.target import NameserverTarget
from epochmq_protocol import message_const
from epochmq_protocol.errors import EpochMQError

IN_FLIGHT_MAX = 64
IN_FLIGHT_BYTES_MAX = 32 * 1024 * 1024
RESERVED = frozenset(
    value
    for name, value in vars(message_const).items()
    if name.startswith("PROPERTY_") and isinstance(value, str)
)


@dataclass(frozen=True, slots=True)
class SentContent:
    """What all messages of a call have in common."""

    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def content(
    tags: str | None,
    keys: str | None,
    properties: Mapping[str, str],
    delay_ms: int | None,
    deliver_at_ms: int | None,
    priority: int | None,
) -> SentContent:
    """Checks what the options say. Raises UsageError."""
    if tags is not None and (not tags.strip() or "|" in tags):
        raise UsageError(f"--tag {tags}: expected one tag without '|', because consumers join tags by '||'")
    for option, text in (("--tag", tags), ("--key", keys)):
        check_property_text(option, text or "")
    for name, value in properties.items():
        check_property_text("--property", f"{name}={value}")
        if name in RESERVED:
            raise UsageError(
                f"--property {name}: RocketMQ uses this name; see --tag, --key, --delay, --priority"
            )
    if delay_ms is not None and deliver_at_ms is not None:
        raise UsageError("give --delay or --at, not both")
    if priority is not None and (delay_ms is not None or deliver_at_ms is not None):
        raise UsageError("give --priority, or --delay or --at, not both: a delayed message has no priority")
    all_properties = dict(properties)
    if priority is not None:
        all_properties[message_const.PROPERTY_PRIORITY] = str(priority)
    if delay_ms is not None:
        all_properties[message_const.PROPERTY_TIMER_DELAY_MS] = str(delay_ms)
    if deliver_at_ms is not None:
        all_properties[message_const.PROPERTY_TIMER_DELIVER_MS] = str(deliver_at_ms)
    return SentContent(tags, keys, all_properties)


def run(
    target: NameserverTarget,
    topic: str,
    body: str | None,
    sent: SentContent,
    *,
    file: Path | None = None,
    group: str,
    as_json: bool,
    timeout_s: float,
) -> int:
    """Sends the body, the file, or each line of the input, and prints where each message was stored."""
    check_topic(topic)
    check_group(group)
    if body == "":
        raise UsageError("the message is empty; RocketMQ accepts no empty messages")
    if body is not None and file is not None:
        raise UsageError("give the message as an argument or with --file, not both")
    whole = read_file(file) if file is not None else body.encode() if body is not None else None
    nameservers, credentials, tls = target.nameservers(), target.credentials(), target.tls()

    async def main() -> int:
        producer = Producer(nameservers, group, timeout_ms=timeout_s * 1000, credentials=credentials, tls=tls)
        try:
            if whole is not None:
                _print(await _send(producer, topic, whole, sent), as_json)
                return ExitCode.OK
            return await _LineSender(producer, topic, sent, as_json).send_all()
        finally:
            await producer.close()

    return asyncio.run(main())


async def _send(producer: Producer, topic: str, body: bytes, sent: SentContent) -> SendResult:
    return await producer.send(topic, body, tags=sent.tags, keys=sent.keys, properties=sent.properties)


class _LineSender:
    """Sends several lines at a time; prints their results in the order of the lines. After a failed line it
    sends no more, but waits for those under way: each stored message has its line of output."""

    def __init__(self, producer: Producer, topic: str, sent: SentContent, as_json: bool) -> None:
        self._producer, self._topic, self._sent, self._as_json = producer, topic, sent, as_json
        self._in_flight: deque[tuple[int, int, asyncio.Task[SendResult]]] = deque()
        self._bytes = 0
        self._failed = False

    async def send_all(self) -> int:
        """Sends all lines of the input; returns the exit code."""
        if sys.stdin.isatty():
            print_error("type one message per line; press Ctrl-D to stop")
        lines = empty = 0
        try:
            async for number, line in input_lines():
                lines = number
                if not line:
                    empty += 1
                    continue
                task = asyncio.create_task(_send(self._producer, self._topic, line, self._sent))
                self._in_flight.append((number, len(line), task))
                self._bytes += len(line)
                while self._in_flight and self._must_wait():
                    await self._finish_first()
                if self._failed:
                    break
            while self._in_flight:
                await self._finish_first()
        finally:
            for _, _, task in self._in_flight:
                task.cancel()
            if self._in_flight:
                await asyncio.wait([task for _, _, task in self._in_flight])
        if not lines:
            print_error("the input is empty; nothing was sent")
        if empty:
            print_error(f"{empty} empty lines were not sent; RocketMQ accepts no empty messages")
        if self._failed:
            print_error("the lines after the failed one, and after those under way with it, were not sent")
        return ExitCode.FAILED if self._failed else ExitCode.OK

    def _must_wait(self) -> bool:
        return (
            self._in_flight[0][2].done()
            or len(self._in_flight) >= IN_FLIGHT_MAX
            or self._bytes >= IN_FLIGHT_BYTES_MAX
        )

    async def _finish_first(self) -> None:
        number, size, task = self._in_flight[0]
        try:
            _print(await task, self._as_json)
        except EpochMQError as error:
            self._failed = True
            print_error(f"line {number} of the input ({size} bytes): {error_text(error)}")
        self._in_flight.popleft()
        self._bytes -= size


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
