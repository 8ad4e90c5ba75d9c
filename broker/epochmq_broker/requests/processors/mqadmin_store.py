"""Serves mqadmin's requests about the store: raw consume queues (321), cleaning (306, 329), RocksDB (354,
355) and replication (907, 908, 1007), as RocketMQ's AdminBrokerProcessor does."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Iterator, Mapping
from itertools import islice

from epochmq_broker.replication.ha.status import epoch_entry_cache, ha_runtime_info
from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.tables.filters.bloom import bits_as_text
from epochmq_broker.tables.filters.message_filter import MessageFilter, registered_filter, tag_filter
from epochmq_broker.tables.subscriptions import is_tag_type
from epochmq_formats.extension_unit import is_address
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import (
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
    to_json,
)
from epochmq_protocol.bodies_in_turns import with_items
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import (
    ExportRocksDBConfigToJsonRequestHeader,
    QueryConsumeQueueRequestHeader,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_turns
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue

UNITS_MAX = 10_000
"""The maximum number of consume-queue units in one response; in RocketMQ only the frame size limits it."""

CHECK_IN_PROGRESS = 2
"""A value of CheckRocksdbCqWriteResult's status."""
ROCKSDB_TABLES = frozenset(["topics", "subscriptiongroups", "consumeroffsets"])


class MqadminStoreProcessor:
    """Serves requests about the store's files."""

    def __init__(self, components: MqadminDependencies) -> None:
        self._components = components

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_consume_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_commit_log,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_master_flush_offset,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
            RequestCode.POP_ROLLBACK: self.pop_rollback,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: self.rocksdb_progress,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: self.rocksdb_export,
        }

    def consume_queue(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Returns units of a consume queue from an index on, and whether a group's subscription filters
        them."""
        return in_turns(self._consume_queue(command, Turns()))

    async def _consume_queue(self, command: Command, turns: Turns) -> Command:
        header = QueryConsumeQueueRequestHeader.decode(command.ext)
        components, topic = self._components, header.topic or ""
        queue = components.store.lookup.existing_queue(topic, header.queue_id)
        if queue is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(
            max_queue_index=queue.max_offset, min_queue_index=queue.min_offset, queue_data=[]
        )
        wanted: MessageFilter | None = None
        group = header.consumer_group
        if group is not None:
            body.subscription_data = subscription = components.clients.subscription(group, topic)
            if subscription is None:
                body.filter_data = f"{group}@{topic} is not online!"
            else:
                registered = components.filters.get(topic, group)
                body.filter_data = "null" if registered is None else registered.data.as_json()
                if is_tag_type(subscription.expression_type):
                    wanted = tag_filter(subscription)
                else:
                    wanted = MessageFilter() if registered is None else registered_filter(registered)
        if not queue.min_offset <= header.index < queue.max_offset:
            remark = f"Index {header.index} of {header.queue_id}@{topic} is not exist!"
            return response(command, ResponseCode.SUCCESS, remark)
        rows = []
        for unit in _units(queue, header.index, min(header.count, UNITS_MAX)):
            rows.append(to_json(_row(queue, unit, wanted)))
            await turns.pause()
        encoded = with_items(to_json(body), "queueData", b"[%b]" % b",".join(rows))
        return response(command, ResponseCode.SUCCESS, body=encoded)

    def clean_consume_queues(self, connection: RemotingConnection, command: Command) -> Command:
        """Deletes consume-queue files whose messages have all expired."""
        self._components.store.clean_expired_consume_queues()
        return response(command, ResponseCode.SUCCESS)

    def delete_commit_log(self, connection: RemotingConnection, command: Command) -> Command:
        """Makes the next cleaning round delete expired files at any hour."""
        self._components.store.log_expiry.request_expiry()
        return response(command, ResponseCode.SUCCESS)

    def ha_status(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns a master's replicas, or a replica's master."""
        info = ha_runtime_info(self._components.ha, self._components.live.current)
        return response(command, ResponseCode.SUCCESS, body=to_json(info))

    def reset_master_flush_offset(self, connection: RemotingConnection, command: Command) -> Command:
        """Concerns slaves only; succeeds and does nothing."""
        return response(command, ResponseCode.SUCCESS)

    def epochs(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the epochs of the log, in controller mode."""
        ha = self._components.ha
        if not ha.controlled:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        body = epoch_entry_cache(ha, self._components.live.current)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def pop_rollback(self, connection: RemotingConnection, command: Command) -> Command:
        """There are no pop records to move; responds as RocketMQ does without its pop store."""
        return response(command, ResponseCode.SUCCESS)

    def rocksdb_progress(self, connection: RemotingConnection, command: Command) -> Command:
        """There are no queues in RocksDB; responds as RocketMQ does without them, that a check has begun."""
        return response(command, ResponseCode.SUCCESS, body=b'{"checkStatus":%d}' % CHECK_IN_PROGRESS)

    def rocksdb_export(self, connection: RemotingConnection, command: Command) -> Command:
        """There are no tables in RocksDB; responds as RocketMQ does without them."""
        header = ExportRocksDBConfigToJsonRequestHeader.decode(command.ext)
        for name in filter(None, header.config_type.split(";")):
            if name.strip().lower() not in ROCKSDB_TABLES:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"Unknown config type: {name}")
        return response(command, ResponseCode.SUCCESS, "export done.")


def _units(queue: ConsumeQueue, index: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Up to `count` units of a queue from the one at this offset on; of a batch consume queue those of one
    file, as in RocketMQ."""
    if isinstance(queue, BatchConsumeQueue):
        for batch in islice(queue.batch_units(index), count):
            yield batch.physical, batch.size, batch.tags_code
        return
    for offset in range(index, min(index + count, queue.max_offset)):
        unit = queue.unit(offset)
        if unit is None:
            return
        yield unit


def _row(queue: ConsumeQueue, unit: tuple[int, int, int], wanted: MessageFilter | None) -> ConsumeQueueData:
    """A unit of a consume queue as its extension explains it, and whether `wanted` may select the message."""
    row = ConsumeQueueData(physic_offset=unit[0], physic_size=unit[1], tags_code=unit[2])
    extended = queue.extension_unit(unit[2])
    if extended is None:
        if is_address(unit[2]):
            row.msg = f"Cq extend not exist!addr: {unit[2]}"
        return row
    row.tags_code = extended.tags_code
    shown: dict[str, object] = {
        "msgStoreTime": extended.store_timestamp,
        "size": 20 + len(extended.bit_map),
        "tagsCode": extended.tags_code,
    }
    if extended.bit_map:
        shown = {"filterBitMap": base64.b64encode(extended.bit_map).decode(), **shown}
        row.bit_map = bits_as_text(extended.bit_map)
    row.extend_data_json = fastjson.dumps(shown).decode()
    if wanted is not None:
        row.eval = (wanted.tags is None or extended.tags_code in wanted.tags) and (
            wanted.excludes is None or not wanted.excludes(extended)
        )
    return row
