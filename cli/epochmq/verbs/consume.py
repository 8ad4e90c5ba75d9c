"""Implements `epochmq consume`: prints the messages of a topic."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from epochmq.client import Consumer, ReceivedMessage
from epochmq.exits import ExitCode, print_error
from epochmq.verbs.message_json import message_object
from epochmq.verbs.name_checks import check_group, check_tags, check_topic
from epochmq.verbs.target import NameserverTarget


def run(
    target: NameserverTarget,
    topic: str,
    *,
    group: str,
    tags: str,
    count: int | None,
    as_json: bool,
    timeout_s: float | None,
) -> int:
    """Prints messages until Ctrl-C, until `count` messages, or until none arrives for `timeout_s`."""
    check_topic(topic)
    check_group(group)
    check_tags("--tags", tags)
    nameservers, credentials, tls = target.nameservers(), target.credentials(), target.tls()

    async def main() -> int:
        async with Consumer(
            nameservers, group, topic, tags=tags, notice=print_error, credentials=credentials, tls=tls
        ) as consumer:
            return await _print_all(consumer, count, as_json, timeout_s)

    if sys.stderr.isatty():
        print_error(f"consuming {topic} as consumer group {group}; press Ctrl-C to stop")
    return asyncio.run(main())


async def _print_all(consumer: Consumer, count: int | None, as_json: bool, timeout_s: float | None) -> int:
    messages = consumer.messages()
    printed = 0
    try:
        while count is None or printed < count:
            try:
                async with asyncio.timeout(timeout_s):
                    received = await anext(messages)
            except TimeoutError:
                print_error(f"no message arrived for {timeout_s:g} s; {printed} printed so far")
                return ExitCode.FAILED
            _print(received, as_json)
            consumer.acknowledge()
            printed += 1
    finally:
        await messages.aclose()
    return ExitCode.OK


def _print(received: ReceivedMessage, as_json: bool) -> None:
    """Prints a message as JSON, or its unchanged body and a line feed."""
    output = sys.stdout.buffer
    output.write(msgspec.json.encode(message_object(received)) if as_json else received.body)
    output.write(b"\n")
    output.flush()
