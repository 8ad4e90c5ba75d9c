"""The store by administration: raw consume queues (321), cleaning (306, 329), the timer for slaves (60, 61)
and what there is of replication (907, 908, 1007), as RocketMQ's AdminBrokerProcessor does it.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_protocol.bodies import (
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers import QueryConsumeQueueRequestHeader
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

UNITS_MAX = 10_000
"""Units of a consume queue in one answer; RocketMQ has no limit but the frame's."""


class MqadminStoreProcessor:
    """What an administrator asks of the files."""

    def __init__(self, parts: MqadminDependencies) -> None:
        self._parts = parts

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_consume_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_commit_log,
            RequestCode.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.timer_metrics,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_master_flush_offset,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
            RequestCode.POP_ROLLBACK: self.pop_rollback,
        }

    def consume_queue(self, connection: RemotingConnection, command: Command) -> Command:
        """Units of a consume queue from an index on, and how a group would filter them."""
        header = QueryConsumeQueueRequestHeader.decode(command.ext)
        parts, topic = self._parts, header.topic or ""
        queue = parts.store.lookup.existing_queue(topic, header.queue_id)
        if queue is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(
            max_queue_index=queue.max_offset, min_queue_index=queue.min_offset, queue_data=[]
        )
        if header.consumer_group is not None:
            body.subscription_data = parts.clients.subscription(header.consumer_group, topic)
            body.filter_data = (
                "null" if body.subscription_data else f"{header.consumer_group}@{topic} is not online!"
            )
        if not queue.min_offset <= header.index < queue.max_offset:
            remark = f"Index {header.index} of {header.queue_id}@{topic} is not exist!"
            return response(command, ResponseCode.SUCCESS, remark)
        rows = []
        for offset in range(header.index, min(header.index + min(header.count, UNITS_MAX), queue.max_offset)):
            unit = queue.unit(offset)
            if unit is None:
                break
            rows.append(ConsumeQueueData(physic_offset=unit[0], physic_size=unit[1], tags_code=unit[2]))
        body.queue_data = rows
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def clean_consume_queues(self, connection: RemotingConnection, command: Command) -> Command:
        """Deletes consume queue files whose messages are all gone."""
        self._parts.store.clean_expired_consume_queues()
        return response(command, ResponseCode.SUCCESS)

    def delete_commit_log(self, connection: RemotingConnection, command: Command) -> Command:
        """Has the next round of cleaning delete expired files, whatever the hour."""
        self._parts.store.log_expiry.request_expiry()
        return response(command, ResponseCode.SUCCESS)

    def timer_checkpoint(self, connection: RemotingConnection, command: Command) -> Command:
        """There is no timer wheel; what RocketMQ says without one."""
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")

    def timer_metrics(self, connection: RemotingConnection, command: Command) -> Command:
        """There is no timer wheel; what RocketMQ says without one."""
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The timer message store is null")

    def ha_status(self, connection: RemotingConnection, command: Command) -> Command:
        """A master's replicas, or a replica's master."""
        return response(command, ResponseCode.SUCCESS, body=to_json(self._parts.ha.runtime_info()))

    def reset_master_flush_offset(self, connection: RemotingConnection, command: Command) -> Command:
        """Concerns slaves only; a master takes it and does nothing."""
        return response(command, ResponseCode.SUCCESS)

    def epochs(self, connection: RemotingConnection, command: Command) -> Command:
        """Epochs exist in controller mode only."""
        ha = self._parts.ha
        if not ha.controlled:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        body = ha.epoch_cache(self._parts.live.current.broker_id)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def pop_rollback(self, connection: RemotingConnection, command: Command) -> Command:
        """There are no pop records that could be moved; RocketMQ without its pop store says the same."""
        return response(command, ResponseCode.SUCCESS)
