"""Sends the messages of the special services to the masters of other groups, while this broker acts for its
own master (RocketMQ's EscapeBridge).

A message is sent until a group has stored it safely, with growing pauses. Until then the offset of its
service stays before it. When the role or the process ends, the messages on their way are given up; the next
master, or the next acting master, delivers them again. RocketMQ's timer drops a message after three attempts,
and its transaction checks after ten. Only a message that no group can ever store is given up (`quarantine`).

Bounds: `window.SPAN_MAX` messages of each service, `WAITING_BYTES_MAX` bytes, `IN_FLIGHT_MAX` sends at a
time, each with a time limit."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.writing.escape import rules
from epochmq_broker.writing.escape.lane import EscapeLane
from epochmq_broker.writing.escape.rules import Destination, EscapeKind, PublishRoute
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_broker.writing.quarantine import Origin, Quarantine, QuarantiningService
from epochmq_broker.writing.topic_routes import TopicRoutes
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, LocalProtocolError
from epochmq_protocol.route import TopicRouteData
from epochmq_protocol.topics import INNER_PRODUCER_GROUP_PREFIX
from epochmq_protocol.transport.request_client import RequestClient

log = logging.getLogger(__name__)

SEND_TIMEOUT_MS: Final = 3000
IN_FLIGHT_MAX: Final = 256
WAITING_BYTES_MAX: Final = 64 << 20
"""Bytes of bodies on their way; one message always fits."""
PAUSE_S: Final = 0.2
"""The pause after the first failed attempt; each further one is twice as long, up to `PAUSE_MAX_S`."""
PAUSE_MAX_S: Final = 10.0
ROUTE_FRESH_S: Final = 1.0
"""After a failed attempt, a route older than this is asked for again."""
TOPICS_MAX: Final = 10_000
ILLEGAL_ATTEMPTS_MAX: Final = 10
"""After so many attempts that other groups rejected with MESSAGE_ILLEGAL, a message is given up."""
LOG_INTERVAL_S: Final = 5.0
"""At most one log line in so many seconds for each kind of message."""


class EscapeCounts(Struct):
    """Messages of one kind since the start of the broker."""

    escaped: int = 0
    failed: int = 0
    """Attempts that did not succeed."""


class _FailedError(Exception):
    """A message could not be sent now."""


class _IllegalError(_FailedError):
    """Another group rejected a message as illegal."""


class _UnsendableError(Exception):
    """No request can be built for a message."""


class EscapeBridge:
    """The way of one broker's special messages to other groups. A master service: it stops after the services
    that use it."""

    def __init__(
        self,
        live: LiveConfig,
        *,
        writer: MessageWriter,
        routes: TopicRoutes,
        client: RequestClient,
        revive_topic: str,
        quarantine: Quarantine,
    ) -> None:
        self.counts = {kind: EscapeCounts() for kind in EscapeKind}
        self._live = live
        self._writer = writer
        self._routes = routes
        self._client = client
        self._revive_topic = revive_topic
        self._quarantine = quarantine
        self._lanes: list[EscapeLane] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._published: dict[str, tuple[TopicRouteData, PublishRoute]] = {}
        self._indexes: dict[str, int] = {}
        self._logged_s: dict[EscapeKind, float] = {}

    def lane(self, kind: EscapeKind) -> EscapeLane:
        """A new way out for one service."""
        made = EscapeLane(kind, self, self._writer)
        self._lanes.append(made)
        return made

    def start(self) -> None:
        """Nothing runs until a message is put."""

    def stop(self) -> None:
        """Gives up the messages on their way. Their services have stopped, and deliver them again when they
        start."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._bytes = 0
        for lane in self._lanes:
            lane.abandon()

    def destination(self) -> Destination:
        """Where messages go now."""
        allowed = self._live.standing.capabilities
        if allowed.delivers_here:
            return Destination.LOCAL
        return Destination.REMOTE if allowed.escapes else Destination.NONE

    def has_room(self, message: InnerMessage) -> bool:
        """See `EscapeSender`."""
        return self._bytes == 0 or self._bytes + len(message.body) <= WAITING_BYTES_MAX

    def waiting(self, kind: EscapeKind) -> int:
        """The number of messages of a kind that wait for another group."""
        return sum(lane.waiting for lane in self._lanes if lane.kind is kind)

    def metric_values(self) -> dict[str, float]:
        """Metric name and kind, separated by a colon → value."""
        found: dict[str, float] = {}
        for kind, counts in self.counts.items():
            found[f"broker_escape_waiting:{kind.value}"] = float(self.waiting(kind))
            found[f"broker_escaped_total:{kind.value}"] = float(counts.escaped)
            found[f"broker_escape_failures_total:{kind.value}"] = float(counts.failed)
        return found

    # sending

    def send(self, kind: EscapeKind, message: InnerMessage, done: Callable[[], None]) -> None:
        """See `EscapeSender`."""
        self._bytes += len(message.body)
        task = asyncio.get_running_loop().create_task(self._send(kind, message, done), name="escape")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, kind: EscapeKind, message: InnerMessage, done: Callable[[], None]) -> None:
        fresh_s: float | None = None
        pause_s = PAUSE_S
        illegal = 0
        while True:
            try:
                async with self._in_flight:
                    await self._attempt(kind, message, fresh_s)
                self.counts[kind].escaped += 1
                break
            except (_UnsendableError, LocalProtocolError) as error:
                self._set_aside(message, error)
                break
            except (_FailedError, EpochMQError) as error:
                self._log_failure(kind, message, error)
                illegal += isinstance(error, _IllegalError)
                if illegal >= ILLEGAL_ATTEMPTS_MAX:
                    self._set_aside(message, error)
                    break
            except Exception:  # the message must not be lost
                log.exception("a %s message of topic %s could not be sent", kind.value, message.topic)
            self.counts[kind].failed += 1
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            fresh_s = ROUTE_FRESH_S
        self._bytes -= len(message.body)
        done()

    def _set_aside(self, message: InnerMessage, error: Exception) -> None:
        """Gives a message up. Its record stays in this group's log."""
        origin = Origin(message.topic, message.queue_id, -1)
        reason = f"message {message.uniq_key}: {error}"
        self._quarantine.set_aside(QuarantiningService.ESCAPE, origin, None, reason)

    async def _attempt(self, kind: EscapeKind, message: InnerMessage, fresh_s: float | None) -> None:
        """Sends a message once. Raises _FailedError or EpochMQError if it has to be sent again, and
        _UnsendableError."""
        try:
            remote = rules.remote_form(message)
            rules.send_request(remote, 0, self._producer_group)
        except Exception as error:
            raise _UnsendableError(f"{type(error).__name__}: {error}") from error
        route = await self._route(remote.topic, fresh_s)
        new_queues = rules.NEW_TOPIC_QUEUES
        if not route.queues and remote.route_topic:
            new_queues = rules.NEW_RETRY_QUEUES
            route = rules.new_topic_route(await self._route(remote.route_topic, fresh_s))
        if not route.queues:
            raise _FailedError("no other group with a master has the topic")
        if rules.takes_specific_queue(kind, remote.topic, self._revive_topic):
            queue = rules.specific_queue(route, remote.topic, self._live.current.broker_name)
        else:
            queue = rules.next_queue(route, self._next_index(remote.topic))
        command = rules.send_request(remote, queue.queue_id, self._producer_group, new_queues)
        response = await self._client.call(route.masters[queue.broker_name], command, SEND_TIMEOUT_MS)
        if not rules.is_escaped(response.code):
            failure = _IllegalError if response.code == ResponseCode.MESSAGE_ILLEGAL else _FailedError
            raise failure(
                f"broker {queue.broker_name} responded with code {response.code}: {response.remark}"
            )

    async def _route(self, topic: str, fresh_s: float | None) -> PublishRoute:
        route = await self._routes.route(topic, fresh_s)
        if route is None:
            return PublishRoute()
        known = self._published.get(topic)
        if known is None or known[0] is not route:
            if len(self._published) >= TOPICS_MAX:
                self._published.clear()
                self._indexes.clear()
            known = route, rules.publish_route(topic, route, self._live.current.broker_name)
            self._published[topic] = known
        return known[1]

    def _next_index(self, topic: str) -> int:
        index = self._indexes.get(topic)
        index = random.getrandbits(31) if index is None else index + 1
        self._indexes[topic] = index
        return index

    @property
    def _producer_group(self) -> str:
        config = self._live.current
        return f"{INNER_PRODUCER_GROUP_PREFIX}{config.broker_name}_{config.broker_id}"

    def _log_failure(self, kind: EscapeKind, message: InnerMessage, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s.get(kind, float("-inf")) >= LOG_INTERVAL_S:
            self._logged_s[kind] = now_s
            log.warning(
                "a %s message of topic %s cannot leave for another group, and is sent again later: %s",
                kind.value,
                message.topic,
                error,
            )
