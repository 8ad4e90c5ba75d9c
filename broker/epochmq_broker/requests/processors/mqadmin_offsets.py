"""Serves mqadmin's requests about consumer offsets: progress of groups (208, 317, 303), resetting (222),
cloning (314) and correcting (308) offsets, and which groups and topics belong together (300, 343), as
RocketMQ's AdminBrokerProcessor and Broker2Client do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import cast

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.tables.stats import GROUP_GET_NUMS
from epochmq_protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    MessageQueue,
    MessageQueueForC,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    TopicList,
    to_json,
)
from epochmq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectionClosedError, RequestError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.headers_admin import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    ResetOffsetRequestHeader,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

LONG_MAX = (1 << 63) - 1

log = logging.getLogger(__name__)


class MqadminOffsetProcessor:
    """Serves requests about consumer offsets."""

    def __init__(self, components: MqadminDependencies) -> None:
        self._components = components

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
        }

    # progress of groups

    def consume_stats(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the progress of one group in the queues that it may read of the requested topics, else of
        all topics on which it has offsets."""
        header = GetConsumeStatsRequestHeader.decode(command.ext)
        group = header.consumer_group
        stats = ConsumeStats()
        for topic in self._requested_topics(header):
            config = self._components.topics.get(topic)
            if config is not None:
                # The offset of a static topic's queue may be on another broker.
                least = -1 if topic in self._components.static_topics.table else 0
                self._add_stats(stats, group, topic, config.read_queue_nums, least=least)
        return response(command, ResponseCode.SUCCESS, body=to_json(stats))

    def _requested_topics(self, header: GetConsumeStatsRequestHeader) -> Iterable[str]:
        listed = [topic for topic in (header.topic_list or "").split(";") if topic.strip()]
        if listed:
            return listed
        group = header.consumer_group
        topic = (header.topic or "").strip()
        found = {topic} if topic else self._components.offsets.topics_of(group)
        return [name for name in sorted(found) if self._components.subscribes(group, name)]

    def _add_stats(self, stats: ConsumeStats, group: str, topic: str, queues: int, *, least: int = 0) -> None:
        """`least`: the offset shown for a queue on which the group has none."""
        components = self._components
        for queue_id in range(queues):
            known = components.offsets.query(group, topic, queue_id)
            consumed = max(least, least if known is None else known)
            pulled = components.offsets.query_pull(group, topic, queue_id) or 0
            row = OffsetWrapper(
                broker_offset=max(0, components.max_offset(topic, queue_id)),
                consumer_offset=consumed,
                pull_offset=max(consumed, pulled),
            )
            if consumed > 0:
                row.last_timestamp = max(0, components.store.lookup.store_time(topic, queue_id, consumed - 1))
            stats.offset_table[components.message_queue(topic, queue_id)] = row
        stats.consume_tps += components.stats.tps(GROUP_GET_NUMS, f"{topic}@{group}")

    def broker_consume_stats(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the progress of every group in every topic on which it has offsets; with `isOrder`, in
        ordered topics only."""
        ordered_only = GetConsumeStatsInBrokerHeader.decode(command.ext).is_order
        components = self._components
        body = ConsumeStatsList(broker_addr=components.live.current.client_addr)
        topics_of: dict[str, list[str]] = {}
        for key in components.offsets.table:
            topic, _, group = key.partition("@")
            topics_of.setdefault(group, []).append(topic)
        for group in components.groups:
            rows = []
            for topic in topics_of.get(group, ()):
                config = components.topics.get(topic)
                if (
                    config is None
                    or (ordered_only and not config.order)
                    or not components.subscribes(group, topic)
                ):
                    continue
                stats = ConsumeStats()
                self._add_stats(stats, group, topic, config.write_queue_nums)
                for row in stats.offset_table.values():
                    row.pull_offset = 0  # RocketMQ does not set it here either; the sum below relies on that
                    body.total_diff += row.broker_offset - row.consumer_offset
                    body.total_inflight_diff += row.pull_offset - row.consumer_offset
                rows.append(stats)
            body.consume_stats_list.append({group: rows})
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def time_span(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the store times of the first, the last and the last consumed message of every queue, and
        the age of the first message that the group has not consumed. An empty queue has no last message, and
        a group without an offset no age: both are 0, for which RocketMQ calculates with a time of -1."""
        header = QueryConsumeTimeSpanRequestHeader.decode(command.ext)
        components, topic = self._components, header.topic
        lookup = components.store.lookup
        config = components.topic(topic)
        body = QueryConsumeTimeSpanBody()
        for queue_id in range(config.write_queue_nums):
            end = components.max_offset(topic, queue_id)
            oldest = lookup.earliest_time(topic, queue_id)
            consumed = components.offsets.query(header.group, topic, queue_id)
            consumed = -1 if consumed is None else consumed
            span = QueueTimeSpan(
                message_queue=components.message_queue(topic, queue_id),
                min_time_stamp=oldest,
                max_time_stamp=lookup.store_time(topic, queue_id, end - 1) if end > 0 else 0,
                consume_time_stamp=lookup.store_time(topic, queue_id, consumed - 1)
                if consumed > 0
                else oldest,
            )
            if 0 <= consumed < end:
                first = max(consumed, components.min_offset(topic, queue_id))
                stored_ms = lookup.store_time(topic, queue_id, first)
                span.delay_time = now_ms() - stored_ms if stored_ms >= 0 else 0
            body.consume_time_span_set.append(span)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    # changing offsets

    def reset(self, connection: RemotingConnection, command: Command) -> Command:
        """Sets a group's offsets on one queue or on all: to an offset, to a time (epoch ms), or to the end
        (-1). The broker does that itself; with useServerSideResetOffset off, it pushes the offsets to the
        online clients."""
        header = ResetOffsetRequestHeader.decode(command.ext)
        if not self._components.offsets.server_side_reset:
            return self._reset_at_clients(command, header)
        if not self._components.live.standing.capabilities.is_master:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        components, topic, group = self._components, header.topic, header.group
        config = components.topics.get(topic)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if group not in components.groups:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        wanted: dict[int, int] = {}
        if header.queue_id >= 0:
            offset = header.offset
            if offset is None or offset == -1:
                offset = self._offset_at(topic, header.queue_id, header.timestamp)
            else:
                low, high = (
                    components.min_offset(topic, header.queue_id),
                    components.max_offset(topic, header.queue_id),
                )
                if (low >= 0 and offset < low) or offset > high + 1:
                    raise RequestError(
                        ResponseCode.SYSTEM_ERROR,
                        f"Target offset {offset} not in consume queue range [{low}-{high}]",
                    )
            wanted[header.queue_id] = offset
        else:
            for queue_id in range(config.read_queue_nums):
                wanted[queue_id] = self._offset_at(topic, queue_id, header.timestamp)
        if not wanted:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        body = ResetOffsetBody()
        for queue_id, offset in wanted.items():
            components.offsets.set_pending_reset(group, topic, queue_id, offset)
            body.offset_table[components.message_queue(topic, queue_id)] = offset
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        if time_ms < 0:
            return self._components.max_offset(topic, queue_id)
        return self._components.compacted.offset_by_time(topic, queue_id, time_ms)

    def _reset_at_clients(self, command: Command, header: ResetOffsetRequestHeader) -> Command:
        """The former way: computes the offsets and pushes them to the group's online members (220)."""
        components, topic, group = self._components, header.topic, header.group
        config = components.topics.get(topic)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}",
            )
        table: dict[MessageQueue, int] = {}
        for queue_id in range(config.write_queue_nums):
            consumed = components.offsets.query(group, topic, queue_id)
            if consumed is None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            offset = max(0, self._offset_at(topic, queue_id, header.timestamp))
            takes_effect = header.is_force or offset < consumed
            table[components.message_queue(topic, queue_id)] = offset if takes_effect else consumed
        members = components.clients.group(group)
        if members is None or not members.clients:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {header.timestamp}",
            )
        body: ResetOffsetBody | ResetOffsetBodyForC = ResetOffsetBody(offset_table=table)
        response_body = to_json(body)
        if command.language == LanguageCode.CPP:
            rows = [
                MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in table.items()
            ]
            body = ResetOffsetBodyForC(offset_table=rows)
        pushed = ResetOffsetRequestHeader(
            topic=topic, group=group, timestamp=header.timestamp, is_force=header.is_force
        )
        for channel in members.clients:
            try:
                cast(RemotingConnection, channel).oneway(
                    request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, pushed, to_json(body))
                )
            except ConnectionClosedError:
                log.info("could not push reset offsets to %s of group %s: it is gone", channel.remote, group)
        return response(command, ResponseCode.SUCCESS, body=response_body)

    def clone(self, connection: RemotingConnection, command: Command) -> Command:
        """Copies the offsets of one group to another, on one topic or on all on which it has offsets."""
        header = CloneGroupOffsetRequestHeader.decode(command.ext)
        components, source = self._components, header.src_group
        topic = (header.topic or "").strip()
        for name in [topic] if topic else sorted(components.offsets.topics_of(source)):
            if name in components.topics and (header.offline or components.subscribes(source, name)):
                components.offsets.clone(source, header.dest_group, name)
        return response(command, ResponseCode.SUCCESS)

    def correction(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns queue → the lowest offset of any group on the topic, or the largest integer where
        `compareGroup` is behind it. Groups in `filterGroups` do not count."""
        header = QueryCorrectionOffsetHeader.decode(command.ext)
        components, topic = self._components, header.topic
        skipped = [name for name in (header.filter_groups or "").split(",") if name]
        lowest = components.offsets.lowest(
            topic, lambda queue_id: components.min_offset(topic, queue_id), skipped
        )
        for queue_id, offset in components.offsets.queues(header.compare_group, topic).items():
            if lowest.get(queue_id, LONG_MAX) > offset:
                lowest[queue_id] = LONG_MAX
        body = QueryCorrectionOffsetBody(correction_offsets=lowest)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    # groups of a topic, topics of a group

    def groups_of_topic(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the groups that have offsets on a topic or subscribe to it."""
        topic = QueryTopicConsumeByWhoRequestHeader.decode(command.ext).topic
        groups = self._components.clients.consumers_of(topic) | self._components.offsets.groups_of(topic)
        body = GroupList(group_list=sorted(groups))
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def topics_of_group(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the topics on which a group has offsets."""
        group = QueryTopicsByConsumerRequestHeader.decode(command.ext).group
        body = TopicList(
            topic_list=sorted(self._components.offsets.topics_of(group)),
            broker_addr=self._components.live.current.client_addr,
        )
        return response(command, ResponseCode.SUCCESS, body=to_json(body))
