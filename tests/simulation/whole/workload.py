"""Producers and consumers of a scenario, made of the command's own clients, and what they have seen."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from epochmq.client import Consumer, Producer, SendStatus
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.message_const import PROPERTY_DELAY_TIME_LEVEL
from tests.simulation.whole.hosts import Process, Site

TOPIC = "orders"
SEND_PAUSE_S = 0.03
SEND_TIMEOUT_MS = 4000
BODY_BYTES_SMALL, BODY_BYTES_LARGE = 40, 1500
DELAYED = b"delayed-"
"""How the bodies of delayed messages begin."""
LEVELS_S = {1: 1.0, 2: 5.0, 3: 10.0}
"""The first delay levels."""
CLOCK_S = 0.002
"""Brokers count in milliseconds."""


class PromiseBrokenError(AssertionError):
    """Something happened that EpochMQ promises never to happen."""


@dataclass(frozen=True)
class Acknowledged:
    """A message whose sender got SEND_OK."""

    body: bytes
    broker_name: str
    queue_id: int
    queue_offset: int
    at_s: float


@dataclass
class Book:
    """What the clients of a run have sent and received."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    places: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    delivered: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    last_acknowledged_s: float = 0.0
    failed_sends: int = 0
    redelivered: int = 0
    delayed: dict[bytes, float] = field(default_factory=dict)
    """The delayed messages whose senders got SEND_OK, and when each is due at the earliest."""
    due_s: dict[bytes, float] = field(default_factory=dict)
    """The same of all that were sent."""
    arrived: set[bytes] = field(default_factory=set)
    """The delayed messages that a consumer got."""
    begins_anywhere: bool = False
    """The first message of a queue may have any offset: consumers have got those before."""
    unsafe: int = 0
    """Messages that were stored with less safety than configured; no promise is made about them."""

    def acknowledge(self, one: Acknowledged) -> None:
        """Notes a message that was acknowledged. PromiseBrokenError: another one has its place."""
        place = one.broker_name, one.queue_id, one.queue_offset
        other = self.places.setdefault(place, one.body)
        if other != one.body:
            raise PromiseBrokenError(
                f"two messages were acknowledged in one place {place}: {other!r}, {one.body!r}"
            )
        self.acknowledged.append(one)
        self.last_acknowledged_s = one.at_s

    def deliver(self, broker_name: str, queue_id: int, offset: int, body: bytes, now_s: float) -> None:
        """Notes a message that a consumer got. PromiseBrokenError: it is the wrong one, or too early."""
        if body.startswith(DELAYED):
            self.arrived.add(body)
            if now_s < self.due_s.get(body, 0.0) - CLOCK_S:
                raise PromiseBrokenError(
                    f"{body!r} arrived at {now_s:.3f} s, and is due {self.due_s[body]:.3f} s"
                )
        seen = self.delivered[broker_name, queue_id]
        if offset in seen:
            self.redelivered += 1
            if seen[offset] != body:
                raise PromiseBrokenError(
                    f"queue {queue_id} has {body!r} at {offset}, where it delivered {seen[offset]!r} before"
                )
            return
        first = next(iter(seen)) if seen else offset if self.begins_anywhere else 0
        expected = first + len(seen)
        if offset != expected:
            raise PromiseBrokenError(f"queue {queue_id} delivered offset {offset} instead of {expected}")
        seen[offset] = body
        known = self.places.get((broker_name, queue_id, offset), body)
        if known != body:
            raise PromiseBrokenError(f"{known!r} was acknowledged in the place of {body!r}")

    def delayed_not_delivered(self) -> list[bytes]:
        """The acknowledged delayed messages that no consumer has got."""
        return [body for body in self.delayed if body not in self.arrived]

    def not_delivered(self) -> list[Acknowledged]:
        """The acknowledged messages that no consumer has got."""
        return [
            one
            for one in self.acknowledged
            if self.delivered[one.broker_name, one.queue_id].get(one.queue_offset) != one.body
        ]


def start_producer(site: Site, name: str, nameservers: list[str], book: Book) -> Process:
    """Starts a producer that sends one message after the other until its process ends."""

    async def main() -> None:
        producer = Producer(nameservers, "producers", timeout_ms=SEND_TIMEOUT_MS)
        number = 0
        while True:
            number += 1
            size = BODY_BYTES_SMALL if number % 3 else BODY_BYTES_LARGE
            await send(site, producer, (b"%s-%d" % (name.encode(), number)).ljust(size, b"."), book)
            await asyncio.sleep(SEND_PAUSE_S)

    return site.start(name, main)


async def send(site: Site, producer: Producer, body: bytes, book: Book) -> Acknowledged | None:
    """Sends a message; returns where it was acknowledged, None if it was not."""
    try:
        result = await producer.send(TOPIC, body)
    except EpochMQError as error:
        book.failed_sends += 1
        site.trace.add(f"not sent: {error!r}")
        return None
    if result.status is not SendStatus.SEND_OK:
        book.unsafe += 1
        return None
    one = Acknowledged(body, result.broker_name, result.queue_id, result.queue_offset, site.loop.time())
    note(site, lambda: book.acknowledge(one))
    return one


async def send_delayed(site: Site, producer: Producer, number: int, book: Book) -> None:
    """Sends a message with one of the first delay levels."""
    level = number % len(LEVELS_S) + 1
    body = DELAYED + b"%d-%d" % (number, int(site.loop.time() * 1000))
    book.due_s[body] = site.loop.time() + LEVELS_S[level]
    try:
        result = await producer.send(TOPIC, body, properties={PROPERTY_DELAY_TIME_LEVEL: str(level)})
    except EpochMQError as error:
        book.failed_sends += 1
        site.trace.add(f"not sent: {error!r}")
        return
    if result.status is SendStatus.SEND_OK:
        book.delayed[body] = book.due_s[body]


def start_consumer(
    site: Site, name: str, nameservers: list[str], book: Book, group: str = "consumers"
) -> Process:
    """Starts a consumer that joins its group again after every error."""

    async def main() -> None:
        while True:
            try:
                await _consume(site, nameservers, group, book)
            except EpochMQError as error:
                site.trace.add(f"{name} begins anew: {error!r}")
                await asyncio.sleep(1.0)

    return site.start(name, main)


async def _consume(site: Site, nameservers: list[str], group: str, book: Book) -> None:
    async with Consumer(nameservers, group, TOPIC) as consumer:
        async for message in consumer.messages():
            queue, record = message.queue, message.record
            note(
                site,
                lambda: book.deliver(
                    queue.broker_name,  # noqa: B023 — called at once
                    queue.queue_id,  # noqa: B023
                    record.queue_offset,  # noqa: B023
                    message.body,  # noqa: B023
                    site.loop.time(),
                ),
            )
            consumer.acknowledge()


def note(site: Site, check: object) -> None:
    """Runs a check. A broken promise ends the run, not only the client that saw it."""
    assert callable(check)
    try:
        check()
    except PromiseBrokenError as error:
        site.trace.tell(f"{site.loop.time():.3f} BROKEN: {error}")
        site.broken.append(str(error))
