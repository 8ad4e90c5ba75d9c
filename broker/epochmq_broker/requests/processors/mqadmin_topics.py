"""Serves mqadmin's requests about topics: create and change (17, 18), delete (215), show (351), list the
system topics (305), and show their offsets (202), as RocketMQ's AdminBrokerProcessor does."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractContextManager

import msgspec

from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.requests.processors.topic_names import check_not_system_topic, check_topic_name
from epochmq_broker.tables.attributes import MESSAGE_TYPE, parse_attributes
from epochmq_broker.tables.stats import TOPIC_PUT_NUMS
from epochmq_protocol import topics as names
from epochmq_protocol.bodies import (
    CreateTopicListRequestBody,
    TopicConfigAndQueueMapping,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    to_json,
)
from epochmq_protocol.bodies_in_turns import decode_steps, map_entry, with_items
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from epochmq_protocol.topics import TopicConfig, TopicFilterType
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_turns

SLICE = 20
"""Topics of a list that are changed, and written to the disk, in one turn of the event loop."""


class MqadminTopicProcessor:
    """Serves requests about topics."""

    def __init__(self, components: MqadminDependencies) -> None:
        self._components = components

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
        }

    async def update(self, connection: RemotingConnection, command: Command) -> Command:
        """Creates or changes one topic; responds when the nameservers have it."""
        header = CreateTopicRequestHeader.decode(command.ext)
        with self._timed(header.topic):
            self._check_name(header.topic)
            filter_type = (
                TopicFilterType.MULTI_TAG
                if header.topic_filter_type == "MULTI_TAG"
                else TopicFilterType.SINGLE_TAG
            )
            config = TopicConfig(
                topic_name=header.topic,
                read_queue_nums=_checked_queues(header.read_queue_nums),
                write_queue_nums=_checked_queues(header.write_queue_nums),
                perm=header.perm,
                topic_filter_type=filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
                order=header.order,
                attributes=parse_attributes(header.attributes),
            )
            await self._apply([config], Turns())
        return response(command, ResponseCode.SUCCESS)

    async def update_list(self, connection: RemotingConnection, command: Command) -> Command:
        """Creates or changes many topics: all, or none if one is rejected."""
        turns = Turns()
        body = await turns.run(decode_steps(CreateTopicListRequestBody, command.body))
        configs = body.topic_config_list
        with self._timed(""):
            for config in configs:
                await turns.pause()
                self._check_name(config.topic_name)
                _checked_queues(config.read_queue_nums)
                _checked_queues(config.write_queue_nums)
            await self._apply(configs, turns)
        return response(command, ResponseCode.SUCCESS)

    def _timed(self, topic: str) -> AbstractContextManager[None]:
        """Measures the change of a topic; of many with "", which is no system topic."""
        components = self._components
        is_system = "true" if components.topics.is_system_topic(topic) else "false"
        return components.timed(components.stats.topic_changes_ms, is_system)

    async def _apply(self, configs: Iterable[TopicConfig], turns: Turns) -> None:
        components = self._components
        changed = []
        for config in configs:
            await turns.pause()
            if (
                not components.live.current.enable_mixed_message_type
                and config.attributes.get(f"+{MESSAGE_TYPE}") == "MIXED"
            ):
                raise RequestError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
            if config != components.topics.get(config.topic_name):
                components.topics.altered([config])
                changed.append(config)
        for start in range(0, len(changed), SLICE):
            components.topics.update(changed[start : start + SLICE])
            if len(changed) > SLICE:
                await turns.end()
        if changed:
            await components.registered()

    def _check_name(self, topic: str) -> None:
        check_topic_name(self._components.live.current, self._components.topics, topic)

    def delete(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Deletes a topic with its configuration, its consumers' offsets, its queues and its counters, and
        the retry topics that pop consumers made of it. Succeeds if the topic does not exist.

        A retry topic that has the name of another group's stays: that of the group `a` for the topic `b_c`
        in the form V1 is also that of the group `a_b_c`. RocketMQ deletes its messages."""
        return in_turns(self._delete(command, Turns()))

    async def _delete(self, command: Command, turns: Turns) -> Command:
        topic = DeleteTopicRequestHeader.decode(command.ext).topic
        if not topic.strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        components = self._components
        check_not_system_topic(components.live.current, components.topics, topic)
        deleted = [topic]
        if components.live.current.clear_retry_topic_when_delete_topic:
            for group in await turns.run(components.offsets.groups_steps(topic)):
                retries = (names.pop_retry_topic(topic, group, is_v2=v2) for v2 in (True, False))
                deleted += [
                    retry
                    for retry in retries
                    if retry in components.topics
                    and retry.removeprefix(names.RETRY_GROUP_TOPIC_PREFIX) not in components.groups
                ]
        for name in deleted:
            components.topics.delete(name)
            components.static_topics.delete(name)
            components.offsets.forget_topic(name)
            components.store.delete_topic(name)
            components.stats.forget_topic(name)
        return response(command, ResponseCode.SUCCESS)

    def clean_unused(self, connection: RemotingConnection, command: Command) -> Command:
        """Deletes the queues of topics that no longer have a configuration."""
        components = self._components
        for topic in components.store.lookup.topics():
            if topic not in components.topics and not components.topics.is_system_topic(topic):
                components.store.delete_topic(topic)
                components.stats.forget_topic(topic)
        return response(command, ResponseCode.SUCCESS)

    def topic_config(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns one topic's configuration; if asked, with its mapping."""
        header = GetTopicConfigRequestHeader.decode(command.ext)
        name = header.topic
        config = self._components.topics.get(name)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        body = TopicConfigAndQueueMapping(**msgspec.structs.asdict(config))
        if header.lo:
            body.mapping_detail = self._components.static_topics.table.get(name)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def system_topics(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the names of the system topics."""
        body = TopicList(topic_list=sorted(self._components.topics.system_topics))
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def topic_stats(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Returns the first and the next offset of every queue of a topic, and the time of its last
        message."""
        return in_turns(self._topic_stats(command, Turns()))

    async def _topic_stats(self, command: Command, turns: Turns) -> Command:
        components = self._components
        name = GetTopicStatsInfoRequestHeader.decode(command.ext).topic
        config = components.topic(name)
        stats = TopicStatsTable(topic_put_tps=components.stats.tps(TOPIC_PUT_NUMS, name))
        entries = []
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            await turns.pause()
            end = components.max_offset(name, queue_id)
            row = TopicOffset(
                min_offset=max(0, components.min_offset(name, queue_id)),
                max_offset=max(0, end),
                last_update_timestamp=components.store.lookup.store_time(name, queue_id, end - 1)
                if end > 0
                else 0,
            )
            entries.append(map_entry(components.message_queue(name, queue_id), row))
        body = with_items(to_json(stats), "offsetTable", b"{%b}" % b",".join(entries))
        return response(command, ResponseCode.SUCCESS, body=body)


def _checked_queues(count: int) -> int:
    """Returns `count`. Raises RequestError if no client could use so many queues, or it is negative; RocketMQ
    accepts any number."""
    if not 0 <= count <= QUEUES_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"{count} queues for a topic: expected 0 to {QUEUES_MAX}"
        )
    return count


QUEUES_MAX = 65_536
