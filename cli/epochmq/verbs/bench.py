"""Implements `epochmq bench`: sends to a topic, or consumes it, and prints rates and latencies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from epochmq.client import Consumer, Producer
from epochmq.exits import ExitCode, UsageError, error_text, print_error
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.group import check_group
from epochmq.verbs.latency_histogram import LatencyHistogram
from epochmq.verbs.name_checks import check_topic
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq_protocol.errors import EpochMQError

SIZE_BYTES_MAX = 4 * 1024 * 1024
IN_FLIGHT_MAX = 1024
DURATION_DEFAULT_S = 10.0
PROGRESS_S = 1.0
COLUMNS = (
    Column("TOPIC", "topic"),
    Column("MESSAGES", "messages"),
    Column("FAILED", "failed"),
    Column("SECONDS", "seconds"),
    Column("PER SECOND", "perSecond"),
    Column("MIB/S", "mebibytesPerSecond"),
    Column("P50 MS", "p50Ms"),
    Column("P99 MS", "p99Ms"),
    Column("MAX MS", "maxMs"),
)


@dataclass(frozen=True, slots=True)
class BenchLimits:
    """When a measurement ends: after a time in s, or a number of messages, whichever comes first."""

    duration_s: float
    count: int | None = None


def limits(duration_s: float | None, count: int | None) -> BenchLimits:
    """The limits of the options: with a count alone there is no limit of time."""
    if duration_s is not None:
        return BenchLimits(duration_s, count)
    return BenchLimits(DURATION_DEFAULT_S if count is None else float("inf"), count)


@dataclass(slots=True)
class Measured:
    """What a measurement has counted until now. Times are in s of a monotonic clock."""

    topic: str
    started_s: float
    ended_s: float = 0.0
    messages: int = 0
    size_bytes: int = 0
    failed: int = 0
    first_error: str | None = None
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)

    def result(self) -> dict[str, Any]:
        """A row of `COLUMNS`."""
        seconds = max(self.ended_s - self.started_s, 1e-9)
        return {
            "topic": self.topic,
            "messages": self.messages,
            "failed": self.failed,
            "seconds": round(seconds, 3),
            "perSecond": round(self.messages / seconds, 1),
            "mebibytesPerSecond": round(self.size_bytes / seconds / (1 << 20), 3),
            "p50Ms": _rounded(self.latencies.percentile_ms(50)),
            "p99Ms": _rounded(self.latencies.percentile_ms(99)),
            "maxMs": _rounded(self.latencies.highest_ms if self.latencies.count else None),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def produce(
    verb: ClusterVerb,
    topic: str,
    *,
    size_bytes: int,
    rate: float | None,
    in_flight: int,
    ends: BenchLimits,
) -> int:
    """Sends messages of a size, `in_flight` at a time, at a rate (messages a second) or as fast as they are
    acknowledged. The latency of a message is the time from its send to its acknowledgement."""
    check_topic(topic)
    if not 1 <= size_bytes <= SIZE_BYTES_MAX:
        raise UsageError(f"--size {size_bytes}: expected 1 to {SIZE_BYTES_MAX} bytes")
    if not 1 <= in_flight <= IN_FLIGHT_MAX:
        raise UsageError(f"--in-flight {in_flight}: expected 1 to {IN_FLIGHT_MAX}")
    if rate is not None and rate <= 0:
        raise UsageError(f"--rate {rate}: expected a number of messages a second above 0")
    nameservers, credentials, tls = verb.target.nameservers(), verb.target.credentials(), verb.target.tls()
    body = os.urandom(size_bytes // 2 + 1).hex().encode()[:size_bytes]

    async def main() -> Measured:
        producer = Producer(
            nameservers, "epochmq_bench", timeout_ms=verb.timeout_s * 1000, credentials=credentials, tls=tls
        )
        measured = Measured(topic, time.monotonic())
        schedule = _Schedule(measured.started_s, rate, ends)

        async def send_all() -> None:
            while schedule.take():
                await schedule.wait_due()
                started_s = time.monotonic()
                try:
                    await producer.send(topic, body)
                except EpochMQError as error:
                    measured.failed += 1
                    measured.first_error = measured.first_error or error_text(error)
                    continue
                measured.latencies.add((time.monotonic() - started_s) * 1000)
                measured.messages += 1
                measured.size_bytes += size_bytes

        try:
            async with _progress(measured):
                await asyncio.gather(*(send_all() for _ in range(in_flight)))
        finally:
            await producer.close()
        measured.ended_s = time.monotonic()
        return measured

    return _print(verb, asyncio.run(main()))


class _Schedule:
    """When which message is due. A sender that is late sends at once: the rate holds on average."""

    def __init__(self, started_s: float, rate: float | None, ends: BenchLimits) -> None:
        self._started_s = started_s
        self._period_s = 0.0 if rate is None else 1 / rate
        self._ends = ends
        self._taken = 0
        self._due_s = started_s

    def take(self) -> bool:
        """Takes the next message; false if the measurement is over."""
        self._due_s = self._started_s + self._taken * self._period_s
        if self._ends.count is not None and self._taken >= self._ends.count:
            return False
        if max(time.monotonic(), self._due_s) - self._started_s >= self._ends.duration_s:
            return False
        self._taken += 1
        return True

    async def wait_due(self) -> None:
        """Waits until the message that was taken last is due."""
        left_s = self._due_s - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)


def consume(verb: ClusterVerb, topic: str, *, group: str, ends: BenchLimits) -> int:
    """Consumes messages as a member of a group, and acknowledges them. The latency of a message is the time
    from its birth, by the clock of its producer, to its delivery here."""
    check_topic(topic)
    check_group(group)
    nameservers, credentials, tls = verb.target.nameservers(), verb.target.credentials(), verb.target.tls()

    async def main() -> Measured:
        measured = Measured(topic, time.monotonic())

        async def receive() -> None:
            consumer = Consumer(
                nameservers, group, topic, notice=print_error, credentials=credentials, tls=tls
            )
            async with consumer, contextlib.aclosing(consumer.messages()) as messages:
                async for one in messages:
                    if not measured.messages:
                        measured.started_s = time.monotonic()
                    measured.messages += 1
                    measured.size_bytes += len(one.body)
                    measured.latencies.add(time.time() * 1000 - one.record.born_timestamp)
                    measured.ended_s = time.monotonic()
                    consumer.acknowledge()
                    if ends.count is not None and measured.messages >= ends.count:
                        return

        async with _progress(measured):
            with contextlib.suppress(TimeoutError):
                duration_s = None if ends.duration_s == float("inf") else ends.duration_s
                async with asyncio.timeout(duration_s):
                    await receive()
        if not measured.messages:
            measured.ended_s = time.monotonic()
        return measured

    return _print(verb, asyncio.run(main()))


@contextlib.asynccontextmanager
async def _progress(measured: Measured) -> AsyncIterator[None]:
    """Prints once a second how many messages there are, if the standard error is a terminal."""

    async def report() -> None:
        before = 0
        while True:
            await asyncio.sleep(PROGRESS_S)
            count = measured.messages
            print(
                f"\r{count} messages, {count - before} in the last second ",
                end="",
                file=sys.stderr,
                flush=True,
            )
            before = count

    task = asyncio.create_task(report()) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            print(file=sys.stderr)


def _print(verb: ClusterVerb, measured: Measured) -> int:
    row = measured.result()
    print_result(VerbResult(row, [OutputTable(COLUMNS, [row])], [measured.topic]), verb.output)
    if measured.failed:
        print_error(f"{measured.failed} sends failed; the first: {measured.first_error}")
    if not measured.messages:
        print_error("no message was sent or received")
    return ExitCode.FAILED if measured.failed or not measured.messages else ExitCode.OK
