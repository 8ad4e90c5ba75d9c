"""A consumer: a member of a group that shares a topic's queues with the other members.

Each queue is read by one task, which pulls (the broker holds a pull until something comes), hands the
messages over, waits until all of them were dealt with, commits the offset at the broker, and pulls on.
`_rebalance` decides which queues are this member's: whenever the broker says that the group changed, and from
time to time.

What RocketMQ's groups promise holds: every message reaches the group at least once. A queue that changes
hands is given up with its offset committed, and taken over a moment after the change, so that in an orderly
change nothing is read twice; after a crash what was not committed is read again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from epochmq.client.allocate import allocate_averagely
from epochmq.client.ids import client_id
from epochmq.client.routes import RouteLookup, masters, readable_queues
from epochmq_protocol import message
from epochmq_protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from epochmq_protocol.bodies_base import MessageQueue, from_json, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError, EpochMQError, RequestError, RetryableError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.message import MessageExt
from epochmq_protocol.transport import RemotingClient, RemotingConnection

CALL_TIMEOUT_MS = 3000
SUSPEND_MS = 15_000
"""How long a broker may hold a pull (Java: brokerSuspendMaxTimeMillis)."""
PULL_TIMEOUT_MS = 30_000
PULL_COUNT_MAX = 32
HANDED_OVER_MAX = 16
"""Batches that wait for the reader, over all queues."""
REBALANCE_S = 20.0
HEARTBEAT_S = 30.0
RETRY_S = 1.0
TAKE_OVER_S = 0.3
"""A queue that may have been another member's is left to it for this long, to commit what it has dealt
with."""

NOTICES_MAX = 100

SUSPEND_FLAG = 2
SUBSCRIPTION_FLAG = 4
"""PullSysFlag: the broker may hold the pull; it carries its own subscription, so that a subscription that the
broker learnt another way, or not yet, does not matter."""
PULL_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message, with its body as the producer gave it."""

    queue: MessageQueue
    record: MessageExt
    body: bytes
    properties: dict[str, str]

    @property
    def msg_id(self) -> str:
        """The producer's unique key; the offset id for a message that has none."""
        return self.properties.get(message.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, self.record.msg_id)


@dataclass(slots=True, eq=False)
class _AssignedQueue:
    """A queue that is this member's. `done` is the offset behind the last message that was dealt with,
    `committed` the one that the broker has; None before the first."""

    queue: MessageQueue
    is_mine: bool = True
    done: int | None = None
    committed: int | None = None
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class _PulledBatch:
    """What one pull brought. `given` counts the records that were looked at, `open` those of them that were
    handed on and not dealt with yet."""

    reading: _AssignedQueue
    records: Sequence[MessageExt]
    next_offset: int
    given: int = 0
    open: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class Consumer:
    """One member of a group, reading one topic. Use it as a context; `messages` gives the messages."""

    def __init__(
        self,
        nameservers: Sequence[str],
        group: str,
        topic: str,
        *,
        tags: str = "*",
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`tags`: `a || b`, or `*` for all. `notice` is told once of each thing that hinders reading; reading
        goes on when it is over."""
        self.client_id = client_id()
        self._group = group
        self._topic = topic
        self._subscription = subscription(topic, tags)
        self._notice = notice
        self._noticed: set[str] = set()
        self._remoting = RemotingClient(
            handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed},
            on_close=self._on_lost,
        )
        self._routes = RouteLookup(self._remoting, nameservers)
        self._addresses: dict[str, str] = {}
        self._got_through = False  # a nameserver has answered; the group may be without a master at times
        self._readings: dict[MessageQueue, _AssignedQueue] = {}
        self._handed_over: asyncio.Queue[_PulledBatch] = asyncio.Queue(HANDED_OVER_MAX)
        self._wake = asyncio.Event()
        self._heartbeat_at: dict[str, float] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._current: _PulledBatch | None = None
        self._last: tuple[_PulledBatch, int] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives up all queues with their offsets committed, and takes leave of the brokers."""
        assert self._keeper is not None, "it was entered"
        self._keeper.cancel()
        await asyncio.wait({self._keeper})
        await self._give_up(list(self._readings.values()))
        for address in self._addresses.values():
            header = UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=self._group)
            try:
                await self._call(address, request(RequestCode.UNREGISTER_CLIENT, header))
            except EpochMQError:
                continue  # it notices by itself that this client is gone
        await self._remoting.close()

    async def messages(self) -> AsyncGenerator[ReceivedMessage, None]:
        """The messages as they come, for ever; those of one queue in order. Call `done` after each that was
        dealt with."""
        while True:
            # What an earlier call left over comes first.
            batch = self._current = self._current or await self._next_batch()
            reading = batch.reading
            while reading.is_mine and batch.given < len(batch.records):  # else its new owner reads it
                record = batch.records[batch.given]
                batch.given += 1
                properties = message.parse_properties(record.properties)
                if self._is_wanted(properties):
                    self._last = batch, record.queue_offset
                    batch.open += 1
                    yield ReceivedMessage(
                        reading.queue, record, message.uncompressed_body(record), properties
                    )
            self._finish(batch)

    def done(self) -> None:
        """The message that `messages` gave last was dealt with: the group does not see it again."""
        assert self._last is not None, "a message was given and not dealt with yet"
        batch, offset = self._last
        self._last = None
        batch.open -= 1
        if batch.reading.is_mine and not batch.open:
            batch.reading.done = offset + 1
        if not batch.open and batch.given == len(batch.records):
            self._finish(batch)

    def _finish(self, batch: _PulledBatch) -> None:
        """All of it was given: its queue is read on, from behind it."""
        if not batch.open and batch.reading.is_mine:
            batch.reading.done = batch.next_offset
        if self._current is batch:
            self._current = None
        batch.finished.set()

    # inside: membership

    async def _keep(self) -> None:
        """Holds the membership, until cancelled."""
        while True:
            self._wake.clear()
            try:
                pause_s = await self._rebalance()
            except (RetryableError, RequestError) as error:
                if not self._got_through:
                    raise  # the address is wrong rather than something broken
                self._note(str(error))
                pause_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _rebalance(self) -> float:
        """Takes and gives up queues as the group's members stand now; after how many seconds to look
        again."""
        route = await self._routes.lookup(self._topic)
        if route is None:
            self._note(f"topic {self._topic} does not exist yet; waiting for it")
            return RETRY_S
        self._addresses = masters(route)
        self._got_through = True
        queues = readable_queues(self._topic, route)
        await self._heartbeat()
        members = await self._members()
        mine = set(allocate_averagely(queues, members, self.client_id))
        await self._give_up([r for queue, r in self._readings.items() if queue not in mine])
        for queue in sorted(mine.difference(self._readings)):
            reading = self._readings[queue] = _AssignedQueue(queue)
            pause_s = TAKE_OVER_S if len(members) > 1 else 0.0
            reading.task = asyncio.create_task(self._read(reading, pause_s))
        return REBALANCE_S if self.client_id in members else RETRY_S

    async def _heartbeat(self) -> None:
        """Tells every broker about this member that was not told lately."""
        beat = HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[
                ConsumerData(
                    group_name=self._group,
                    consume_type=ConsumeType.CONSUME_PASSIVELY,
                    message_model=MessageModel.CLUSTERING,
                    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                    subscription_data_set=[self._subscription],
                )
            ],
        )
        for address in self._addresses.values():
            if time.monotonic() - self._heartbeat_at.get(address, -HEARTBEAT_S) < HEARTBEAT_S - REBALANCE_S:
                continue
            await self._call(address, request(RequestCode.HEART_BEAT, body=to_json(beat)))
            self._heartbeat_at[address] = time.monotonic()

    async def _members(self) -> list[str]:
        """The group's members, in order, as the first broker knows them that can be asked."""
        failure: EpochMQError | None = None
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        for address in self._addresses.values():
            try:
                answer = await self._call(address, request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))
            except (RetryableError, RequestError) as error:
                failure = error
                continue
            return sorted(from_json(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list)
        raise failure or ConnectError(f"topic {self._topic} has no broker that can be asked")

    def _on_members_changed(self, connection: RemotingConnection, command: Command) -> None:
        """The broker says that members came or went."""
        self._wake.set()

    def _on_lost(self, connection: RemotingConnection) -> None:
        """The broker at the other end forgets its members when it ends: tell it again."""
        self._heartbeat_at.pop(connection.remote, None)
        self._wake.set()

    # inside: queues

    async def _read(self, reading: _AssignedQueue, pause_s: float) -> None:
        """Reads one queue, until cancelled."""
        await asyncio.sleep(pause_s)
        offset: int | None = None
        while True:
            try:
                if offset is None:
                    offset = await self._start_offset(reading)
                batch = await self._pull(reading, offset)
                offset = batch.next_offset
                if batch.records:
                    await self._handed_over.put(batch)
                    await batch.finished.wait()
                await self._commit(reading)
            except (RetryableError, RequestError) as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
            else:
                self._noticed.clear()

    async def _start_offset(self, reading: _AssignedQueue) -> int:
        """Where the group left off; the queue's beginning for a group that never read it."""
        queue, address = reading.queue, self._address(reading.queue)
        asked = QueryConsumerOffsetRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        answer = await self._remoting.call(
            address, request(RequestCode.QUERY_CONSUMER_OFFSET, asked), CALL_TIMEOUT_MS
        )
        if answer.code == ResponseCode.SUCCESS:
            reading.committed = QueryConsumerOffsetResponseHeader.decode(answer.ext).offset
            return reading.committed
        if answer.code != ResponseCode.QUERY_NOT_FOUND:
            raise _rejection(address, answer)
        first = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        answer = await self._call(address, request(RequestCode.GET_MIN_OFFSET, first))
        return max(GetMinOffsetResponseHeader.decode(answer.ext).offset, 0)

    async def _pull(self, reading: _AssignedQueue, offset: int) -> _PulledBatch:
        """What comes at or after the offset, as soon as something does; an empty batch when nothing did for
        long, or when reading must go on elsewhere."""
        queue, address = reading.queue, self._address(reading.queue)
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=PULL_COUNT_MAX,
            sys_flag=SUSPEND_FLAG | SUBSCRIPTION_FLAG,
            commit_offset=0,
            suspend_timeout_millis=SUSPEND_MS,
            subscription=self._subscription.sub_string,
            sub_version=self._subscription.sub_version,
            expression_type=self._subscription.expression_type,
        )
        answer = await self._remoting.call(
            address, request(RequestCode.PULL_MESSAGE, header), PULL_TIMEOUT_MS
        )
        if answer.code not in PULL_CODES:
            raise _rejection(address, answer)
        following = PullMessageResponseHeader.decode(answer.ext).next_begin_offset
        records = message.decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
        return _PulledBatch(reading, records, following)

    async def _commit(self, reading: _AssignedQueue) -> None:
        """Stores at the broker how far the group is in this queue."""
        if reading.done is None or reading.done == reading.committed:
            return
        queue, done = reading.queue, reading.done
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=done
        )
        await self._call(self._address(queue), request(RequestCode.UPDATE_CONSUMER_OFFSET, header))
        reading.committed = done

    async def _give_up(self, readings: Sequence[_AssignedQueue]) -> None:
        for reading in readings:
            reading.is_mine = False
            if reading.task is not None:
                reading.task.cancel()
        tasks = [reading.task for reading in readings if reading.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        for reading in readings:
            self._readings.pop(reading.queue, None)
            try:
                await self._commit(reading)
            except EpochMQError as error:
                self._note(f"an offset was not committed, some messages will come again: {error}")

    # inside: the rest

    async def _next_batch(self) -> _PulledBatch:
        assert self._keeper is not None, "messages come inside the context"
        if self._handed_over.empty():
            waiting = asyncio.ensure_future(self._handed_over.get())
            try:
                await asyncio.wait({waiting, self._keeper}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    self._keeper.result()  # it ends by its error only
                return await waiting
            finally:
                waiting.cancel()
        return self._handed_over.get_nowait()

    def _is_wanted(self, properties: dict[str, str]) -> bool:
        """The broker compares hashes of tags, so some that are not wanted come too."""
        wanted = self._subscription.tags_set
        return not wanted or properties.get(message.PROPERTY_TAGS) in wanted

    def _address(self, queue: MessageQueue) -> str:
        address = self._addresses.get(queue.broker_name)
        if address is None:
            raise ConnectError(f"{queue.broker_name} has no master now")
        return address

    async def _call(self, address: str, command: Command) -> Command:
        answer = await self._remoting.call(address, command, CALL_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise _rejection(address, answer)
        return answer

    def _note(self, text: str) -> None:
        if text not in self._noticed and len(self._noticed) < NOTICES_MAX:
            self._noticed.add(text)
            self._notice(text)


def subscription(topic: str, tags: str) -> SubscriptionData:
    """A subscription by tags: `a || b`, or `*` (or nothing) for all."""
    names = {name.strip() for name in tags.split("||") if name.strip()} - {"*"}
    return SubscriptionData(
        topic=topic,
        sub_string=" || ".join(sorted(names)) or "*",
        tags_set=names,
        code_set={tags_code(name) for name in names},
        sub_version=time.time_ns() // 1_000_000,
    )


def _rejection(address: str, answer: Command) -> RequestError:
    return RequestError(answer.code, f"{address}: {answer.remark or f'answered {answer.code}'}")
