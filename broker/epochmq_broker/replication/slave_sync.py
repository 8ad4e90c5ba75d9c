"""Copies a master's tables to this slave: topics with the mappings of static topics, subscription groups,
message request modes, delay offsets, consumer offsets, and the timer's checkpoint and metrics (RocketMQ's
SlaveSynchronize); and the users and ACLs of the access control, which RocketMQ's brokers do not copy.

A table is replaced as a whole or not at all. RocketMQ's slave empties its topic table and then fills it
through the rules for administrators. One topic with an attribute violates these rules, and the table then
stays incomplete for ever. Here an entry that cannot be read is skipped and logged, and the others are copied.

An EpochMQ master is asked every second, at almost no cost (see `processors.table_sync`), so that a failover
loses at most a second of changes to the tables. A RocketMQ master is asked every 10 s, as by RocketMQ's
slaves. A master that does not respond is asked again after 1, 2, 4, 8, 10 s.

The copied tables may be ahead of this broker's log, or behind it. `align_with_log` corrects that before the
broker becomes master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from epochmq_broker.auth.metadata import UsersAndAcls
from epochmq_broker.replication.offset_table_bodies import decode_consumer_offsets, decode_delay_offsets
from epochmq_broker.replication.table_state import KNOWN_STATE, KNOWN_UNTIL, STATE, UNCHANGED
from epochmq_broker.services.delay_service import DelayService
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_broker.services.transactions.half_messages import HALF_TOPIC
from epochmq_broker.tables.attributes import BATCH_CQ, QUEUE_TYPE
from epochmq_broker.tables.broker_tables import BrokerTables
from epochmq_broker.tables.topics import topic_config
from epochmq_broker.writing.message_writer import SCHEDULE_TOPIC
from epochmq_formats.timer_checkpoint import TimerCheckpoint
from epochmq_protocol import fastjson
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol.bodies import (
    MessageRequestModeSerializeWrapper,
    TimerMetricsSerializeWrapper,
    convert,
    from_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import BodyError, EpochMQError, RemoteProtocolError, RetryableError
from epochmq_protocol.frame import request
from epochmq_protocol.message import MessageExt
from epochmq_protocol.replica_control import ReplicaControlCode
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from epochmq_protocol.topics import (
    TIMER_TOPIC,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicQueueMappingDetail,
    is_lmq,
)
from epochmq_protocol.transport.request_client import RequestClient
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue

T = TypeVar("T")

log = logging.getLogger(__name__)

PERIOD_S = 1.0
PERIOD_OF_JAVA_S = 10.0
RETRY_MIN_S, RETRY_MAX_S = 1.0, 10.0
CALL_TIMEOUT_MS = 3000
FAILURE_LOG_INTERVAL_S = 60.0
"""How often a lasting failure is logged."""
_NO_TABLE = "none"
"""The state of a table that the master does not have."""
AUTO_CREATE_QUEUES = 4
"""How many queues a Java producer asks for when its first message creates a topic (defaultTopicQueueNums)."""

HOLDING_TOPICS = (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC)
HELD_MAX = 20_000
"""How many messages of one queue are read, the newest first."""
AGE_MAX_MS = 15_000
"""How much older than the newest message of its queue a message may be. Tables are copied at least every 10 s
and stored more often, so the settings of a topic with an older message are known."""

ApplyCopy = Callable[[], None]


class _SyncedTable:
    """One table. `code` is its request, `own_state` returns the state of the copy, and `read` decodes a
    response into the change to make. `state` is the master's table state of the last copy, `own` that of the
    copy then."""

    def __init__(
        self,
        name: str,
        code: int,
        own_state: Callable[[], object],
        read: Callable[[bytes], Awaitable[ApplyCopy]],
    ) -> None:
        self.name = name
        self.code = code
        self.own_state = own_state
        self.read = read
        self.state = ""
        self.own: object = None


class SlaveSync:
    """Copies the tables of the master that `follow` names."""

    def __init__(
        self,
        *,
        client: RequestClient,
        store: MessageStore,
        tables: BrokerTables,
        delays: DelayService,
        timer: TimerService | None,
    ) -> None:
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        request_modes, static_topics, auth = tables.request_modes, tables.static_topics, tables.auth
        self.master: str | None = None
        self.rounds = 0
        """How many times all tables were copied."""
        self._client = client
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self._modes = request_modes
        self._static = static_topics
        self._auth = auth
        self._one_round = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._parts = [
            _SyncedTable(
                "topics",
                RequestCode.GET_ALL_TOPIC_CONFIG,
                lambda: (topics.generation, topics.data_version, static_topics.generation),
                self._read_topics,
            ),
            _SyncedTable(
                "subscription groups",
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                lambda: (groups.generation, groups.data_version),
                self._read_groups,
            ),
            _SyncedTable(
                "message request modes",
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
                lambda: request_modes.changes,
                self._read_modes,
            ),
            _SyncedTable(
                "delay offsets",
                RequestCode.GET_ALL_DELAY_OFFSET,
                lambda: (delays.data_version, dict(delays.offsets)),
                self._read_delays,
            ),
            _SyncedTable(
                "consumer offsets",
                RequestCode.GET_ALL_CONSUMER_OFFSET,
                lambda: (offsets.changes, offsets.data_version),
                self._read_offsets,
            ),
            _SyncedTable(
                "users and ACLs",
                ReplicaControlCode.GET_ALL_USERS_AND_ACLS,
                lambda: auth.changes,
                self._read_users_and_acls,
            ),
        ]
        if timer is not None:
            self._parts += self._timer_parts(timer)

    def _timer_parts(self, timer: TimerService) -> list[_SyncedTable]:
        async def read_checkpoint(body: bytes) -> ApplyCopy:
            try:
                answer = TimerCheckpoint.decode(body)
            except ValueError as error:
                raise BodyError(str(error)) from None
            return lambda: timer.follow(answer)

        async def read_metrics(body: bytes) -> ApplyCopy:
            answer = from_json(TimerMetricsSerializeWrapper, body)
            return lambda: timer.metrics.replace_all(answer)

        return [
            _SyncedTable(
                "the timer's checkpoint",
                RequestCode.GET_TIMER_CHECK_POINT,
                lambda: timer.timers.checkpoint.data_version,
                read_checkpoint,
            ),
            _SyncedTable(
                "the timer's metrics",
                RequestCode.GET_TIMER_METRICS,
                lambda: timer.metrics.data_version,
                read_metrics,
            ),
        ]

    # The master to copy from

    def follow(self, master_address: str | None) -> None:
        """Copies the tables of this broker (host:port) from now on; None: of no broker. Responses of a former
        master are ignored. Needs a running loop."""
        if master_address == self.master:
            return
        self.master = master_address
        if self._topics.known_until is None and master_address is not None:
            self._topics.known_until = self._store.max_phy_offset
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for part in self._parts:
            part.state = ""
        if master_address is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(master_address), name=f"tables of {master_address}"
            )

    async def stop(self) -> None:
        """Stops copying."""
        task = self._task
        self.follow(None)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def refresh(self) -> None:
        """Copies all tables now. Raises EpochMQError if the master does not respond or none is followed, and
        OSError if a file cannot be written."""
        if self.master is None:
            raise EpochMQError("this broker follows no master whose tables it could copy")
        await self._round(self.master)

    def align_with_log(self) -> None:
        """Corrects the copied tables where they contradict the log, when this broker becomes the master and
        its queues hold the whole log.

        A topic whose first messages arrived after the last copy of the tables would have messages that no
        consumer can read. Nor could a message of it that waits be delivered: its clients would learn no new
        address from the nameserver, which knows no such topic, and the check of a half message finds no
        producer."""
        self.lower_offsets_to_log()
        store = self._store
        for topic, queues in self._unknown_topics().items():
            log.warning(
                "topic %s has messages, but its settings were not copied: it gets default settings", topic
            )
            config = topic_config(topic, queues)
            if any(isinstance(queue, BatchConsumeQueue) for queue in store.queues.of_topic(topic)):
                config.attributes[QUEUE_TYPE] = BATCH_CQ
            self._topics.create_if_absent(config)
        self._topics.known_until = None

    def lower_offsets_to_log(self) -> None:
        """Lowers consumer offsets that are ahead of the log to the ends of their queues, when this broker
        becomes or starts as the master. Such an offset would skip the messages that are stored there later
        (#4771). It was copied before the log was, or written before the log, which lost its end in a power
        loss."""

        def end(topic: str, queue_id: int) -> int:
            queue = self._store.lookup.existing_queue(topic, queue_id)
            return 0 if queue is None else queue.max_offset

        lowered = self._offsets.clamp(end)
        if lowered:
            log.warning(
                "%d consumer offsets were ahead of the log and were lowered to the end of their queues",
                lowered,
            )

    def _unknown_topics(self) -> dict[str, int]:
        """Topic → number of queues, of the topics without settings that have messages newer than the last
        copy, waiting ones included. (Older messages belong to deleted topics.)"""
        since = self._topics.known_until
        if since is None:
            return {}
        queues_held = topics_of_held_messages(self._store, since)
        for name in self._store.lookup.topics():
            if name in self._topics:
                continue  # before the search of its queues, which looks at all queues
            queues = self._store.queues.of_topic(name)
            if any(queue.max_physical > since for queue in queues):
                queues_held[name] = max(queues_held.get(name, 0), *(queue.queue_id + 1 for queue in queues))
        return {
            name: max(queues, 1 if name.startswith("%") else AUTO_CREATE_QUEUES)
            for name, queues in queues_held.items()
            if name not in self._topics and not is_lmq(name)
        }

    # Copying

    async def _run(self, master: str) -> None:
        complaints = _FailureLog(master)
        retry_s = RETRY_MIN_S
        while True:
            try:
                await self._round(master)
            except Exception as error:
                # No response, however wrong, may end the copying (#7219).
                complaints.failed(error, asyncio.get_running_loop().time())
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
                continue
            complaints.succeeded()
            retry_s = RETRY_MIN_S
            await asyncio.sleep(PERIOD_S if all(part.state for part in self._parts) else PERIOD_OF_JAVA_S)

    async def _round(self, master: str) -> None:
        """Copies every table; a failure of one does not prevent the others."""
        async with self._one_round:
            await self._ask_all(master)
        self.rounds += 1

    async def _ask_all(self, master: str) -> None:
        failure: Exception | None = None
        for part in self._parts:
            try:
                await self._copy(part, master)
            except RetryableError:
                raise  # the next table would fail, too
            except (EpochMQError, OSError) as error:
                failure = failure or EpochMQError(f"{part.name}: {error}")
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _copy(self, part: _SyncedTable, master: str) -> None:
        known = part.state if part.own == part.own_state() else ""
        end = self._store.max_phy_offset
        command = request(part.code, ext={KNOWN_STATE: known})
        answer = await self._client.call(master, command, CALL_TIMEOUT_MS)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            part.state = _NO_TABLE  # a RocketMQ broker, or an older one of EpochMQ
            return
        if answer.code != ResponseCode.SUCCESS:
            raise EpochMQError(
                f"the master responded with code {answer.code}: {answer.remark or 'no remark'}"
            )
        ext = answer.ext or {}
        if ext.get(UNCHANGED) != "true":
            adopt = await part.read(answer.body)
            if self.master != master:
                raise EpochMQError("this broker follows another master now")
            adopt()
            part.state, part.own = ext.get(STATE, ""), part.own_state()
        if part.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            known_until = fastjson.parse_int(ext.get(KNOWN_UNTIL, str(end)))
            if known_until is None:
                raise BodyError(f"{KNOWN_UNTIL}={ext[KNOWN_UNTIL]!r:.50}: expected an integer")
            self._topics.known_until = min(end, known_until)

    # Decoding responses

    async def _read_topics(self, body: bytes) -> ApplyCopy:
        try:
            answer = from_json(TopicConfigSerializeWrapper, body)
            table, version = answer.topic_config_table, answer.data_version
            mappings, mapping_version = answer.topic_queue_mapping_detail_map, answer.mapping_data_version
        except BodyError:
            table, version = _readable(body, "topicConfigTable", TopicConfig)
            mappings, mapping_version = _readable(
                body, "topicQueueMappingDetailMap", TopicQueueMappingDetail, "mappingDataVersion"
            )
        if not table:
            raise EpochMQError("the response has no topic, and every broker has some")

        def adopt() -> None:
            if version != self._topics.data_version or table != self._topics.table:
                self._topics.replace_all(table, version)
            self._static.replace_all(mappings, mapping_version)

        return adopt

    async def _read_groups(self, body: bytes) -> ApplyCopy:
        forbidden: dict[str, dict[str, int]] = {}
        try:
            answer = from_json(SubscriptionGroupWrapper, body)
            table, version = answer.subscription_group_table, answer.data_version
            forbidden = answer.forbidden_table
        except BodyError:
            table, version = _readable(body, "subscriptionGroupTable", SubscriptionGroupConfig)
        if not table:
            raise EpochMQError("the response has no subscription group, and every broker has some")

        def adopt() -> None:
            groups = self._groups
            if (version, table, forbidden) != (groups.data_version, groups.table, groups.forbidden_table):
                groups.replace_all(table, forbidden, version)

        return adopt

    async def _read_modes(self, body: bytes) -> ApplyCopy:
        answer = from_json(MessageRequestModeSerializeWrapper, body)
        return lambda: self._modes.replace_all(answer)

    async def _read_users_and_acls(self, body: bytes) -> ApplyCopy:
        answer = from_json(UsersAndAcls, body)
        return lambda: self._auth.replace_all(answer)

    async def _read_delays(self, body: bytes) -> ApplyCopy:
        answer = decode_delay_offsets(body)
        return lambda: self._delays.replace_all(answer.offset_table, answer.data_version)

    async def _read_offsets(self, body: bytes) -> ApplyCopy:
        answer = await decode_consumer_offsets(body)
        return lambda: self._offsets.restore(
            answer.offset_table, answer.data_version, answer.lmq_offset_table
        )


def _readable(
    body: bytes, field: str, cls: type[T], version: str = "dataVersion"
) -> tuple[dict[str, T], DataVersion]:
    """The readable entries of a table; the others are logged."""
    value = fastjson.loads(body)
    rows = value.get(field) if isinstance(value, dict) else None
    if not isinstance(rows, dict):
        raise BodyError(f"{field}: expected an object")
    table: dict[str, T] = {}
    for name, row in rows.items():
        try:
            table[name] = convert(cls, row)
        except BodyError as error:
            log.error("the master's entry %s could not be copied: %s", name, error)
    return table, convert(DataVersion, value.get(version) or {})


class _FailureLog:
    """Logs the failures of a master: the first one, then now and then, and the recovery."""

    def __init__(self, master: str) -> None:
        self._master = master
        self._since: float | None = None
        self._said = 0.0
        self._count = 0

    def failed(self, error: Exception, now_s: float) -> None:
        self._count += 1
        if self._since is None:
            self._since = now_s
        elif now_s - self._said < FAILURE_LOG_INTERVAL_S:
            return
        self._said = now_s
        known = isinstance(error, EpochMQError | OSError)
        log.warning(
            "the tables of %s could not be copied (%d failures in %d s): %s",
            self._master, self._count, now_s - self._since, error,
            exc_info=None if known else error,
        )  # fmt: skip

    def succeeded(self) -> None:
        if self._since is not None:
            log.info("the tables of %s are copied again", self._master)
            self._since = None
            self._count = 0


def topics_of_held_messages(store: MessageStore, since: int) -> dict[str, int]:
    """The topics of messages that wait in topics of the system (half messages, delay levels and timers), and
    were stored after this physical offset: name → the least number of queues that it must have. Before they
    are delivered, their own topics have no queue that would name them. At most HELD_MAX messages of each
    queue are read, at most AGE_MAX_MS old."""
    queue_counts: dict[str, int] = {}
    for holding in HOLDING_TOPICS:
        for queue in store.queues.of_topic(holding):
            for message in _newest(store, queue, since):
                properties = records.parse_properties(message.properties)
                topic = properties.get(const.PROPERTY_REAL_TOPIC)
                queue_id = properties.get(const.PROPERTY_REAL_QUEUE_ID, "")
                if topic and queue_id.isascii() and queue_id.isdigit():
                    queue_counts[topic] = max(queue_counts.get(topic, 0), int(queue_id) + 1)
    return queue_counts


def _newest(store: MessageStore, queue: ConsumeQueue, since: int) -> Iterator[MessageExt]:
    """The messages of a queue after this physical offset, the newest first. Skips damaged ones."""
    newest_ms: int | None = None
    for offset in range(queue.max_offset - 1, max(queue.min_offset, queue.max_offset - HELD_MAX) - 1, -1):
        unit = queue.unit(offset)
        if unit is None or unit[0] < since:
            return
        record = store.reader.read(unit[0], unit[1])
        if record is None:
            continue
        try:
            message = records.decode_record(record, check_crc=False)
        except RemoteProtocolError:
            continue
        newest_ms = message.store_timestamp if newest_ms is None else newest_ms
        if message.store_timestamp < newest_ms - AGE_MAX_MS:
            return
        yield message
