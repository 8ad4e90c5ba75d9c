"""Consumes a topic as a member of a consumer group, which shares the queues with the other members.

One task reads each assigned queue. It pulls (the broker holds a pull until a message arrives), delivers the
messages, waits until all of them are acknowledged, commits the offset at the broker, and pulls again.
`_rebalance` determines the assigned queues, whenever the broker reports a change of the group, and
periodically.

Like RocketMQ's consumers it delivers every message to the group at least once. It releases a queue with its
offset committed, and starts to read a new queue only a moment after the change, so that an orderly change
delivers no message twice. After a crash, messages without a committed offset are delivered again."""

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
from epochmq.client.signing import environment_credentials
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
from epochmq_protocol.headers_client import (
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
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.transport import RemotingClient, RemotingConnection
from epochmq_protocol.transport.tls import TlsSettings

CALL_TIMEOUT_MS = 3000
SUSPEND_MS = 15_000
"""How long a broker may hold a pull (Java: brokerSuspendMaxTimeMillis)."""
PULL_TIMEOUT_MS = 30_000
PULL_COUNT_MAX = 32
WAITING_BATCHES_MAX = 16
"""Pulled batches that wait for delivery, over all queues."""
REBALANCE_S = 20.0
HEARTBEAT_S = 30.0
RETRY_S = 1.0
TAKE_OVER_DELAY_S = 0.3
"""The time for which another member can still commit its offset, before this one reads a queue that it
gets."""

NOTICES_MAX = 100

SUSPEND_FLAG = 2
SUBSCRIPTION_FLAG = 4
"""PullSysFlag: the broker may hold the pull; the pull carries its own subscription and does not depend on the
one that the broker has from heartbeats."""
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
    """A message, with its uncompressed body."""

    queue: MessageQueue
    record: MessageExt
    body: bytes
    properties: dict[str, str]

    @property
    def msg_id(self) -> str:
        """The unique key of the producer; for a message without one, the offset id."""
        return self.properties.get(message.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, self.record.msg_id)


@dataclass(slots=True, eq=False)
class _AssignedQueue:
    """A queue that is assigned to this member. `consumed_offset` is the offset after the last acknowledged
    message, `committed_offset` the one that the broker has; None before the first."""

    queue: MessageQueue
    is_assigned: bool = True
    consumed_offset: int | None = None
    committed_offset: int | None = None
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class _PulledBatch:
    """The result of one pull. `delivered` counts the records that were delivered or filtered out,
    `unacknowledged` those that were delivered and not acknowledged yet."""

    assigned: _AssignedQueue
    records: Sequence[MessageExt]
    next_offset: int
    delivered: int = 0
    unacknowledged: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class Consumer:
    """A member of a consumer group that reads one topic. It is an asynchronous context manager; `messages`
    delivers the messages."""

    def __init__(
        self,
        nameservers: Sequence[str],
        group: str,
        topic: str,
        *,
        tags: str = "*",
        notice: Callable[[str], None] = lambda text: None,
        credentials: SessionCredentials | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        """Without `credentials` those of the environment count.

        `tags`: `a || b`, or `*` for all. `notice` is called once for each problem; the consumer retries
        and continues when the problem is solved."""
        self.client_id = client_id()
        self._group = group
        self._topic = topic
        self._subscription = subscription(topic, tags)
        self._notice = notice
        self._noticed: set[str] = set()
        self._remoting = RemotingClient(
            handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed},
            on_close=self._on_lost,
            credentials=credentials or environment_credentials(),
            tls=tls,
        )
        self._routes = RouteLookup(self._remoting, nameservers)
        self._addresses: dict[str, str] = {}
        self._had_route = False  # a nameserver has returned a route: later errors are temporary
        self._assigned: dict[MessageQueue, _AssignedQueue] = {}
        self._batches: asyncio.Queue[_PulledBatch] = asyncio.Queue(WAITING_BATCHES_MAX)
        self._wake = asyncio.Event()
        self._heartbeat_at: dict[str, float] = {}
        self._membership_task: asyncio.Task[None] | None = None
        self._current: _PulledBatch | None = None
        self._last: tuple[_PulledBatch, int] | None = None

    async def __aenter__(self) -> Self:
        self._membership_task = asyncio.create_task(self._maintain_membership())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases all queues with their offsets committed, and unregisters at the brokers."""
        assert self._membership_task is not None, "the context was entered"
        self._membership_task.cancel()
        await asyncio.wait({self._membership_task})
        await self._release(list(self._assigned.values()))
        for address in self._addresses.values():
            header = UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=self._group)
            try:
                await self._call(address, request(RequestCode.UNREGISTER_CLIENT, header))
            except EpochMQError:
                continue  # the broker removes this client when the connection closes
        await self._remoting.close()

    async def messages(self) -> AsyncGenerator[ReceivedMessage, None]:
        """Delivers messages as they arrive, without end; those of one queue in order. Call `acknowledge`
        after each message that has been processed."""
        while True:
            # The rest of the batch of an earlier call comes first.
            batch = self._current = self._current or await self._next_batch()
            assigned = batch.assigned
            # If the queue was released, its new owner delivers the rest.
            while assigned.is_assigned and batch.delivered < len(batch.records):
                record = batch.records[batch.delivered]
                batch.delivered += 1
                properties = message.parse_properties(record.properties)
                if self._is_wanted(properties):
                    self._last = batch, record.queue_offset
                    batch.unacknowledged += 1
                    yield ReceivedMessage(
                        assigned.queue, record, message.uncompressed_body(record), properties
                    )
            self._finish(batch)

    def acknowledge(self) -> None:
        """Acknowledges the message that `messages` delivered last: the group does not get it again."""
        assert self._last is not None, "a message was delivered and not acknowledged yet"
        batch, offset = self._last
        self._last = None
        batch.unacknowledged -= 1
        if batch.assigned.is_assigned and not batch.unacknowledged:
            batch.assigned.consumed_offset = offset + 1
        if not batch.unacknowledged and batch.delivered == len(batch.records):
            self._finish(batch)

    def _finish(self, batch: _PulledBatch) -> None:
        """Ends a batch of which all messages are delivered; its queue is read on after it."""
        if not batch.unacknowledged and batch.assigned.is_assigned:
            batch.assigned.consumed_offset = batch.next_offset
        if self._current is batch:
            self._current = None
        batch.finished.set()

    # membership

    async def _maintain_membership(self) -> None:
        """Keeps this member in the group until cancelled."""
        while True:
            self._wake.clear()
            try:
                pause_s = await self._rebalance()
            except (RetryableError, RequestError) as error:
                if not self._had_route:
                    raise  # probably the address is wrong
                self._notify(str(error))
                pause_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _rebalance(self) -> float:
        """Takes and releases queues according to the present members of the group. Returns the seconds until
        the next rebalance."""
        route = await self._routes.lookup(self._topic)
        if route is None:
            self._notify(f"topic {self._topic} does not exist yet; waiting for it")
            return RETRY_S
        self._addresses = masters(route)
        self._had_route = True
        queues = readable_queues(self._topic, route)
        await self._heartbeat()
        members = await self._members()
        mine = set(allocate_averagely(queues, members, self.client_id))
        await self._release([r for queue, r in self._assigned.items() if queue not in mine])
        for queue in sorted(mine.difference(self._assigned)):
            assigned = self._assigned[queue] = _AssignedQueue(queue)
            pause_s = TAKE_OVER_DELAY_S if len(members) > 1 else 0.0
            assigned.task = asyncio.create_task(self._read(assigned, pause_s))
        return REBALANCE_S if self.client_id in members else RETRY_S

    async def _heartbeat(self) -> None:
        """Sends a heartbeat to every broker that had none recently."""
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
        """The sorted members of the group, from the first broker that responds."""
        failure: EpochMQError | None = None
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        for address in self._addresses.values():
            try:
                response = await self._call(address, request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))
            except (RetryableError, RequestError) as error:
                failure = error
                continue
            return sorted(from_json(GetConsumerListByGroupResponseBody, response.body).consumer_id_list)
        raise failure or ConnectError(f"topic {self._topic} has no broker with a master now")

    def _on_members_changed(self, connection: RemotingConnection, command: Command) -> None:
        """Rebalances, because the broker reports that members joined or left."""
        self._wake.set()

    def _on_lost(self, connection: RemotingConnection) -> None:
        """Sends the next heartbeat at once: a broker that ended has lost its members."""
        self._heartbeat_at.pop(connection.remote, None)
        self._wake.set()

    # queues

    async def _read(self, assigned: _AssignedQueue, pause_s: float) -> None:
        """Reads one queue until cancelled."""
        await asyncio.sleep(pause_s)
        offset: int | None = None
        while True:
            try:
                if offset is None:
                    offset = await self._start_offset(assigned)
                batch = await self._pull(assigned, offset)
                offset = batch.next_offset
                if batch.records:
                    await self._batches.put(batch)
                    await batch.finished.wait()
                await self._commit(assigned)
            except (RetryableError, RequestError) as error:
                self._notify(str(error))
                await asyncio.sleep(RETRY_S)
            else:
                self._noticed.clear()

    async def _start_offset(self, assigned: _AssignedQueue) -> int:
        """The committed offset of the group; the beginning of the queue if there is none."""
        queue, address = assigned.queue, self._address(assigned.queue)
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        response = await self._remoting.call(
            address, request(RequestCode.QUERY_CONSUMER_OFFSET, header), CALL_TIMEOUT_MS
        )
        if response.code == ResponseCode.SUCCESS:
            assigned.committed_offset = QueryConsumerOffsetResponseHeader.decode(response.ext).offset
            return assigned.committed_offset
        if response.code != ResponseCode.QUERY_NOT_FOUND:
            raise _rejection(address, response)
        first = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        response = await self._call(address, request(RequestCode.GET_MIN_OFFSET, first))
        return max(GetMinOffsetResponseHeader.decode(response.ext).offset, 0)

    async def _pull(self, assigned: _AssignedQueue, offset: int) -> _PulledBatch:
        """The next messages at or after the offset. The batch is empty if none arrived in time, or if the
        broker gives another offset to continue at."""
        queue, address = assigned.queue, self._address(assigned.queue)
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
        response = await self._remoting.call(
            address, request(RequestCode.PULL_MESSAGE, header), PULL_TIMEOUT_MS
        )
        if response.code not in PULL_CODES:
            raise _rejection(address, response)
        following = PullMessageResponseHeader.decode(response.ext).next_begin_offset
        records = message.decode_records(response.body) if response.code == ResponseCode.SUCCESS else []
        # An inner batch may begin before the offset.
        found = [
            one for record in records for one in message.messages_of(record) if one.queue_offset >= offset
        ]
        return _PulledBatch(assigned, found, following)

    async def _commit(self, assigned: _AssignedQueue) -> None:
        """Commits the consumed offset at the broker."""
        if assigned.consumed_offset is None or assigned.consumed_offset == assigned.committed_offset:
            return
        queue, offset = assigned.queue, assigned.consumed_offset
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._call(self._address(queue), request(RequestCode.UPDATE_CONSUMER_OFFSET, header))
        assigned.committed_offset = offset

    async def _release(self, queues: Sequence[_AssignedQueue]) -> None:
        for assigned in queues:
            assigned.is_assigned = False
            if assigned.task is not None:
                assigned.task.cancel()
        tasks = [assigned.task for assigned in queues if assigned.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        for assigned in queues:
            self._assigned.pop(assigned.queue, None)
            try:
                await self._commit(assigned)
            except EpochMQError as error:
                self._notify(
                    f"an offset was not committed, so some messages will be delivered again: {error}"
                )

    # helpers

    async def _next_batch(self) -> _PulledBatch:
        assert self._membership_task is not None, "the context was entered"
        if self._batches.empty():
            waiting = asyncio.ensure_future(self._batches.get())
            try:
                await asyncio.wait({waiting, self._membership_task}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    self._membership_task.result()  # raises its error: it ends in no other way
                return await waiting
            finally:
                waiting.cancel()
        return self._batches.get_nowait()

    def _is_wanted(self, properties: dict[str, str]) -> bool:
        """Whether the message has a wanted tag. The broker compares only the hashes of tags."""
        wanted = self._subscription.tags_set
        return not wanted or properties.get(message.PROPERTY_TAGS) in wanted

    def _address(self, queue: MessageQueue) -> str:
        address = self._addresses.get(queue.broker_name)
        if address is None:
            raise ConnectError(f"{queue.broker_name} has no master now")
        return address

    async def _call(self, address: str, command: Command) -> Command:
        response = await self._remoting.call(address, command, CALL_TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            raise _rejection(address, response)
        return response

    def _notify(self, text: str) -> None:
        if text not in self._noticed and len(self._noticed) < NOTICES_MAX:
            self._noticed.add(text)
            self._notice(text)


def subscription(topic: str, tags: str) -> SubscriptionData:
    """A subscription by tags: `a || b`; `*` or nothing for all."""
    names = {name.strip() for name in tags.split("||") if name.strip()} - {"*"}
    return SubscriptionData(
        topic=topic,
        sub_string=" || ".join(sorted(names)) or "*",
        tags_set=names,
        code_set={tags_code(name) for name in names},
        sub_version=time.time_ns() // 1_000_000,
    )


def _rejection(address: str, response: Command) -> RequestError:
    return RequestError(response.code, f"{address}: {response.remark or f'response code {response.code}'}")
