"""Serves mqadmin's requests about consumer offsets: progress of groups (208, 317, 303), resetting (222),
cloning (314) and correcting (308) offsets, and which groups and topics belong together (300, 343), as
RocketMQ's AdminBrokerProcessor and Broker2Client do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
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
from epochmq_protocol.bodies_in_turns import map_entry, with_items
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
from epochmq_protocol.transport.turns import Turns, in_turns

LONG_MAX = (1 << 63) - 1
LONG = 1000
"""Entries of a list that takes a turn of its own to be joined."""

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

    def consume_stats(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Returns the progress of one group in the queues that it may read of the requested topics, else of
        all topics on which it has offsets."""
        return in_turns(self._consume_stats(command, Turns()))

    async def _consume_stats(self, command: Command, turns: Turns) -> Command:
        header = GetConsumeStatsRequestHeader.decode(command.ext)
        group, tps = header.consumer_group, 0.0
        rows: dict[str, list[bytes]] = {}
        listed = [topic for topic in (header.topic_list or "").split(";") if topic.strip()]
        for topic in listed or await self._topics_with_offsets(header, turns):
            await turns.pause()
            config = self._components.topics.get(topic)
            if config is None or not (listed or self._components.subscribes(group, topic)):
                continue
            tps += self._tps(group, topic)
            # The offset of a static topic's queue may be on another broker.
            least = -1 if topic in self._components.static_topics.table else 0
            encoded = []
            for queue_id in range(config.read_queue_nums):
                await turns.pause()
                row = self._progress(group, topic, queue_id, least)
                encoded.append(map_entry(self._components.message_queue(topic, queue_id), row))
            rows[topic] = encoded
        entries = [entry for _, encoded in sorted(rows.items()) for entry in encoded]
        if len(entries) > LONG:
            await turns.end()
        body = _consume_stats_body(tps, entries)
        if len(entries) > LONG:
            await turns.end()
        return response(command, ResponseCode.SUCCESS, body=body)

    async def _topics_with_offsets(self, header: GetConsumeStatsRequestHeader, turns: Turns) -> list[str]:
        topic = (header.topic or "").strip()
        if topic:
            return [topic]
        found = await turns.run(self._components.offsets.topics_steps(header.consumer_group))
        if len(found) > LONG:
            await turns.end()
        return sorted(found)

    def _progress(self, group: str, topic: str, queue_id: int, least: int = 0) -> OffsetWrapper:
        """The progress of a group on a queue. `least`: the offset shown if the group has none."""
        components = self._components
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
        return row

    def _tps(self, group: str, topic: str) -> float:
        return self._components.stats.tps(GROUP_GET_NUMS, f"{topic}@{group}")

    def broker_consume_stats(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command]:
        """Returns the progress of every group in every topic on which it has offsets; with `isOrder`, in
        ordered topics only."""
        return in_turns(self._broker_consume_stats(command, Turns()))

    async def _broker_consume_stats(self, command: Command, turns: Turns) -> Command:
        ordered_only = GetConsumeStatsInBrokerHeader.decode(command.ext).is_order
        components = self._components
        summary = ConsumeStatsList(broker_addr=components.live.current.client_addr)
        topics_of: dict[str, list[str]] = {}
        for key in list(components.offsets.table):
            await turns.pause()
            topic, _, group = key.partition("@")
            topics_of.setdefault(group, []).append(topic)
        groups: list[bytes] = []
        for group in list(components.groups):
            encoded: list[bytes] = []
            for topic in topics_of.get(group, ()):
                await turns.pause()
                config = components.topics.get(topic)
                if (
                    config is None
                    or (ordered_only and not config.order)
                    or not components.subscribes(group, topic)
                ):
                    continue
                entries = []
                for queue_id in range(config.write_queue_nums):
                    await turns.pause()
                    row = self._progress(group, topic, queue_id)
                    row.pull_offset = 0  # RocketMQ does not set it here either; the sum below relies on that
                    summary.total_diff += row.broker_offset - row.consumer_offset
                    summary.total_inflight_diff += row.pull_offset - row.consumer_offset
                    entries.append(map_entry(components.message_queue(topic, queue_id), row))
                encoded.append(_consume_stats_body(self._tps(group, topic), entries))
            groups.append(b"{%b:[%b]}" % (to_json(group), b",".join(encoded)))
            await turns.pause()
        joined = b",".join(groups)
        if len(groups) > LONG:
            await turns.end()
        body = with_items(to_json(summary), "consumeStatsList", b"[%b]" % joined)
        if len(groups) > LONG:
            await turns.end()
        return response(command, ResponseCode.SUCCESS, body=body)

    def time_span(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Returns the store times of the first, the last and the last consumed message of every queue, and
        the age of the first message that the group has not consumed. An empty queue has no last message, and
        a group without an offset no age: both are 0, for which RocketMQ calculates with a time of -1."""
        return in_turns(self._time_span(command, Turns()))

    async def _time_span(self, command: Command, turns: Turns) -> Command:
        header = QueryConsumeTimeSpanRequestHeader.decode(command.ext)
        components, topic = self._components, header.topic
        lookup = components.store.lookup
        config = components.topic(topic)
        spans: list[bytes] = []
        for queue_id in range(config.write_queue_nums):
            await turns.pause()
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
            spans.append(to_json(span))
        body = with_items(
            to_json(QueryConsumeTimeSpanBody()), "consumeTimeSpanSet", b"[%b]" % b",".join(spans)
        )
        return response(command, ResponseCode.SUCCESS, body=body)

    # changing offsets

    def reset(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Sets a group's offsets on one queue or on all: to an offset, to a time (epoch ms), or to the end
        (-1). The broker does that itself; with useServerSideResetOffset off, it pushes the offsets to the
        online clients."""
        header = ResetOffsetRequestHeader.decode(command.ext)
        if not self._components.offsets.server_side_reset:
            return self._reset_at_clients(command, header)
        return in_turns(self._reset(command, header, Turns()))

    async def _reset(self, command: Command, header: ResetOffsetRequestHeader, turns: Turns) -> Command:
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
                await turns.pause()
                wanted[queue_id] = self._offset_at(topic, queue_id, header.timestamp)
        if not wanted:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        entries = []
        for queue_id, offset in wanted.items():
            await turns.pause()
            components.offsets.set_pending_reset(group, topic, queue_id, offset)
            entries.append(map_entry(components.message_queue(topic, queue_id), offset))
        body = with_items(to_json(ResetOffsetBody()), "offsetTable", b"{%b}" % b",".join(entries))
        return response(command, ResponseCode.SUCCESS, body=body)

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

    def clone(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Copies the offsets of one group to another, on one topic or on all on which it has offsets."""
        return in_turns(self._clone(command, Turns()))

    async def _clone(self, command: Command, turns: Turns) -> Command:
        header = CloneGroupOffsetRequestHeader.decode(command.ext)
        components, source = self._components, header.src_group
        topic = (header.topic or "").strip()
        found = [topic] if topic else sorted(await turns.run(components.offsets.topics_steps(source)))
        if len(found) > LONG:
            await turns.end()
        for name in found:
            await turns.pause()
            if name in components.topics and (header.offline or components.subscribes(source, name)):
                components.offsets.clone(source, header.dest_group, name)
        return response(command, ResponseCode.SUCCESS)

    def correction(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Returns queue → the lowest offset of any group on the topic, or the largest integer where
        `compareGroup` is behind it. Groups in `filterGroups` do not count."""
        return in_turns(self._correction(command, Turns()))

    async def _correction(self, command: Command, turns: Turns) -> Command:
        header = QueryCorrectionOffsetHeader.decode(command.ext)
        components, topic = self._components, header.topic
        skipped = _ListedNames(header.filter_groups or "")
        lowest = await turns.run(
            components.offsets.lowest_steps(
                topic, lambda queue_id: components.min_offset(topic, queue_id), skipped
            )
        )
        for queue_id, offset in components.offsets.queues(header.compare_group, topic).items():
            if lowest.get(queue_id, LONG_MAX) > offset:
                lowest[queue_id] = LONG_MAX
        body = QueryCorrectionOffsetBody(correction_offsets=lowest)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    # groups of a topic, topics of a group

    def groups_of_topic(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command]:
        """Returns the groups that have offsets on a topic or subscribe to it."""
        return in_turns(self._groups_of_topic(command, Turns()))

    async def _groups_of_topic(self, command: Command, turns: Turns) -> Command:
        topic = QueryTopicConsumeByWhoRequestHeader.decode(command.ext).topic
        groups = await turns.run(self._components.offsets.groups_steps(topic))
        groups |= self._components.clients.consumers_of(topic)
        body = GroupList(group_list=sorted(groups))
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def topics_of_group(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command]:
        """Returns the topics on which a group has offsets."""
        return in_turns(self._topics_of_group(command, Turns()))

    async def _topics_of_group(self, command: Command, turns: Turns) -> Command:
        group = QueryTopicsByConsumerRequestHeader.decode(command.ext).group
        topics = await turns.run(self._components.offsets.topics_steps(group))
        if len(topics) > LONG:
            await turns.end()
        body = TopicList(topic_list=sorted(topics), broker_addr=self._components.live.current.client_addr)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))


class _ListedNames:
    """The names in a list with commas, which may be a whole header long and is not split."""

    def __init__(self, names: str) -> None:
        self._names = f",{names},"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and "," not in name and f",{name}," in self._names


def _consume_stats_body(tps: float, entries: list[bytes]) -> bytes:
    """A ConsumeStats with these entries of its offset table."""
    return with_items(to_json(ConsumeStats(consume_tps=tps)), "offsetTable", b"{%b}" % b",".join(entries))
