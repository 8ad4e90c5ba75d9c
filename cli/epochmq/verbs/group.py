"""Implements `epochmq group`: lists and describes consumer groups, shows their lag, and deletes them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import ClusterVerb, confirm
from epochmq.verbs.lag_causes import causes_of_lag
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq_protocol.bodies import ConsumerConnection, ConsumeStats, MessageQueue, SubscriptionGroupWrapper
from epochmq_protocol.bodies_admin import OffsetWrapper
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.headers_admin import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
)
from epochmq_protocol.headers_namesrv import DeleteTopicFromNamesrvRequestHeader
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import (
    CID_ONSAPI_OWNER_GROUP,
    CID_ONSAPI_PERMISSION_GROUP,
    CID_ONSAPI_PULL_GROUP,
    CID_RMQ_SYS_PREFIX,
    DEFAULT_CONSUMER_GROUP,
    FILTERSRV_CONSUMER_GROUP,
    GROUP_LENGTH_MAX,
    MONITOR_CONSUMER_GROUP,
    ONS_HTTP_PROXY_GROUP,
    SCHEDULE_CONSUMER_GROUP,
    SELF_TEST_CONSUMER_GROUP,
    TOOLS_CONSUMER_GROUP,
    dlq_topic,
    is_topic_or_group_illegal,
    retry_topic,
)

GROUPS_OF_BROKERS = frozenset(
    {
        DEFAULT_CONSUMER_GROUP,
        FILTERSRV_CONSUMER_GROUP,
        MONITOR_CONSUMER_GROUP,
        SCHEDULE_CONSUMER_GROUP,
        SELF_TEST_CONSUMER_GROUP,
        TOOLS_CONSUMER_GROUP,
        CID_ONSAPI_OWNER_GROUP,
        CID_ONSAPI_PERMISSION_GROUP,
        CID_ONSAPI_PULL_GROUP,
        ONS_HTTP_PROXY_GROUP,
    }
)
WATCH_S = 2.0
NO_STATISTICS = (ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST)
"""How brokers respond for a group, or a topic, that they do not have."""


def check_group(group: str) -> str:
    """The group's name. Raises UsageError for one that no broker accepts."""
    if not group:
        raise UsageError("GROUP: the name is empty")
    if len(group) > GROUP_LENGTH_MAX:
        raise UsageError(f"GROUP {group[:40]}…: {len(group)} characters, expected at most {GROUP_LENGTH_MAX}")
    if is_topic_or_group_illegal(group):
        raise UsageError(f"GROUP {group!r}: expected letters, digits, '-', '_', '|' and '%'")
    return group


def list_groups(verb: ClusterVerb, *, everything: bool) -> int:
    """Prints the groups; without `everything` those of applications."""
    result = verb.run(lambda client: listed_groups(client, everything=everything))
    print_result(result, verb.output)
    if not result.names:
        print_error("there are no groups" + ("" if everything else " of applications; see also --all"))
    return ExitCode.OK


async def listed_groups(client: AdminClient, *, everything: bool) -> VerbResult:
    """The consumer groups with their lag; without `everything` those of applications."""
    masters = await client.masters()
    known = await _settings_of_all(client, masters)
    names = sorted(name for name in known if everything or not is_of_brokers(name))

    async def listed(name: str) -> dict[str, Any]:
        connection, stats = await asyncio.gather(
            _connection(client, masters, name), read_progress(client, masters, name, None)
        )
        return {
            "group": name,
            "members": len(connection.connection_set) if connection else 0,
            "lag": sum(_lag(one) for one in stats.values()),
            "consumption": connection.consume_type if connection else None,
            "model": connection.message_model if connection else None,
            "topics": sorted({queue.topic for queue in stats}),
            "brokers": sorted(known[name]),
        }

    rows = await client.gather(listed, names)
    return VerbResult(rows, [OutputTable(LIST_COLUMNS, rows)], names)


async def lags_of_groups(client: AdminClient, groups_max: int) -> dict[str, int]:
    """How many messages each of the first groups of applications has not consumed."""
    masters = await client.masters()
    known = await _settings_of_all(client, masters)
    names = sorted(name for name in known if not is_of_brokers(name))[:groups_max]

    async def behind(name: str) -> int:
        stats = await read_progress(client, masters, name, None)
        return sum(map(_lag, stats.values()))

    return dict(zip(names, await client.gather(behind, names), strict=True))


LIST_COLUMNS = (
    Column("GROUP", "group"),
    Column("MEMBERS", "members"),
    Column("LAG", "lag"),
    Column("CONSUMPTION", "consumption"),
    Column("MODEL", "model"),
    Column("TOPICS", "topics", is_wide=True),
    Column("BROKERS", "brokers", is_wide=True),
)


def is_of_brokers(group: str) -> bool:
    """Whether brokers, or RocketMQ's tools, use this group for themselves."""
    return group in GROUPS_OF_BROKERS or group.startswith(CID_RMQ_SYS_PREFIX)


async def _settings_of_all(
    client: AdminClient, masters: Sequence[BrokerAddress]
) -> dict[str, dict[str, SubscriptionGroupConfig]]:
    """Group to broker name to settings."""
    tables = await client.gather(
        lambda broker: client.read(
            SubscriptionGroupWrapper, broker.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        ),
        masters,
    )
    found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
    for broker, table in zip(masters, tables, strict=True):
        for name, config in table.subscription_group_table.items():
            found.setdefault(name, {})[broker.broker_name] = config
    return found


async def read_settings(
    client: AdminClient, masters: Sequence[BrokerAddress], group: str
) -> dict[str, SubscriptionGroupConfig]:
    """The settings of a group by broker name. Raises RequestError if no broker has it."""
    settings = (await _settings_of_all(client, masters)).get(group)
    if settings is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"consumer group {group} does not exist; `epochmq group list` shows those that do",
        )
    return settings


async def _connection(
    client: AdminClient, masters: Sequence[BrokerAddress], group: str
) -> ConsumerConnection | None:
    """The members of a group. They are connected with every broker, so the fullest list counts."""
    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    found = await client.found(
        lambda broker: client.read(
            ConsumerConnection, broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header
        ),
        masters,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.SYSTEM_ERROR,
    )
    return max(found, key=lambda one: len(one.connection_set), default=None)


async def members_by_broker(
    client: AdminClient, masters: Sequence[BrokerAddress], group: str | None
) -> list[tuple[str, str, ConsumerConnection]]:
    """(group, broker name, members) of every group that has members, or of one group."""
    known = await _settings_of_all(client, masters)
    pairs = [
        (name, broker)
        for name, settings in sorted(known.items())
        for broker in masters
        if broker.broker_name in settings and group in (None, name)
    ]
    found = await client.gather(lambda pair: _connection(client, [pair[1]], pair[0]), pairs)
    return [
        (name, broker.broker_name, connection)
        for (name, broker), connection in zip(pairs, found, strict=True)
        if connection is not None
    ]


async def read_progress(
    client: AdminClient, masters: Sequence[BrokerAddress], group: str, topic: str | None
) -> dict[MessageQueue, OffsetWrapper]:
    """The offsets of a group in every queue of a topic, or of all topics that it reads."""
    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic or "")
    tables = await client.found(
        lambda broker: client.read(ConsumeStats, broker.address, RequestCode.GET_CONSUME_STATS, header),
        masters,
        *NO_STATISTICS,
    )
    return {queue: offsets for table in tables for queue, offsets in sorted(table.offset_table.items())}


def _lag(offsets: OffsetWrapper) -> int:
    return max(offsets.broker_offset - offsets.consumer_offset, 0)


def describe(verb: ClusterVerb, group: str) -> int:
    """Prints the settings, the members and the progress of a group."""
    check_group(group)
    result = verb.run(lambda client: described_group(client, group))
    print_result(result, verb.output)
    for cause in result.document["causes"]:
        print_error(cause)
    return ExitCode.OK


async def described_group(client: AdminClient, group: str, topic: str | None = None) -> VerbResult:
    """The settings, the members and the progress of a group, in all topics or in one, and the causes of its
    lag. Raises RequestError if there is no such
    group."""
    masters = await client.masters()
    settings = await read_settings(client, masters, group)
    connection = await _connection(client, masters, group) or ConsumerConnection()
    queues = _queue_rows(await read_progress(client, masters, group, topic))
    configs = [
        {"broker": broker, **msgspec.to_builtins(config)} for broker, config in sorted(settings.items())
    ]
    members = [
        {"clientId": one.client_id, "address": one.client_addr, "language": one.language.name}
        for one in sorted(connection.connection_set, key=lambda one: one.client_id)
    ]
    subscriptions = [
        {"topic": one.topic, "expression": one.sub_string, "type": one.expression_type}
        for _, one in sorted(connection.subscription_table.items())
    ]
    document: dict[str, Any] = {
        "group": group,
        "consumption": connection.consume_type,
        "model": connection.message_model,
        "settings": configs,
        "members": members,
        "subscriptions": subscriptions,
        "queues": queues,
    }
    document["causes"] = causes_of_lag(document)
    tables = [
        OutputTable(SETTING_COLUMNS, configs, f"Group {group}"),
        OutputTable(MEMBER_COLUMNS, members, "Members"),
        OutputTable(SUBSCRIPTION_COLUMNS, subscriptions, "Subscriptions"),
        OutputTable(LAG_COLUMNS, queues, "Progress"),
    ]
    return VerbResult(document, tables, [group])


SETTING_COLUMNS = (
    Column("BROKER", "broker"),
    Column("CONSUME", "consumeEnable"),
    Column("BROADCAST", "consumeBroadcastEnable"),
    Column("ORDERLY", "consumeMessageOrderly"),
    Column("RETRY QUEUES", "retryQueueNums"),
    Column("RETRIES MAX", "retryMaxTimes"),
    Column("TIMEOUT MIN", "consumeTimeoutMinute", is_wide=True),
    Column("ATTRIBUTES", "attributes", is_wide=True),
)
MEMBER_COLUMNS = (
    Column("CLIENT", "clientId"),
    Column("ADDRESS", "address"),
    Column("LANGUAGE", "language"),
)
SUBSCRIPTION_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("EXPRESSION", "expression"),
    Column("TYPE", "type"),
)
LAG_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("BROKER", "broker"),
    Column("QUEUE", "queue"),
    Column("MAX OFFSET", "maxOffset"),
    Column("CONSUMED", "consumed"),
    Column("LAG", "lag"),
    Column("IN FLIGHT", "inFlight"),
    Column("LAST CONSUMED", "lastConsumed", is_time=True),
)


def _queue_rows(progress: dict[MessageQueue, OffsetWrapper]) -> list[dict[str, Any]]:
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "maxOffset": offsets.broker_offset,
            "consumed": offsets.consumer_offset,
            "lag": _lag(offsets),
            "inFlight": max(offsets.pull_offset - offsets.consumer_offset, 0),
            "lastConsumed": offsets.last_timestamp,
        }
        for queue, offsets in progress.items()
    ]


def lag(verb: ClusterVerb, group: str, topic: str | None, *, watch: bool) -> int:
    """Prints how far behind a group is, for each queue, and why; with `watch` again and again."""
    check_group(group)
    causes: list[str] = []

    async def action(client: AdminClient) -> VerbResult:
        described = await described_group(client, group, topic)
        causes[:] = described.document["causes"]
        rows = described.document["queues"]
        return VerbResult(rows, [OutputTable(LAG_COLUMNS, rows)], [group])

    async def again(client: AdminClient) -> None:
        while True:
            result = await action(client)
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            print_result(result, verb.output)
            await asyncio.sleep(WATCH_S)

    if watch:
        verb.run(again)
    result = verb.run(action)
    print_result(result, verb.output)
    rows = result.tables[0].rows
    if not rows:
        print_error(f"group {group} has consumed nothing yet" + (f" of topic {topic}" if topic else ""))
    else:
        print_error(f"{sum(row['lag'] for row in rows)} messages behind in {len(rows)} queues")
    for cause in causes:
        print_error(cause)
    return ExitCode.OK


def delete(verb: ClusterVerb, group: str, *, keep_offsets: bool, force: bool, yes: bool) -> int:
    """Deletes a group with its offsets, its retry topic and its dead letters, on every broker."""
    check_group(group)

    async def find(client: AdminClient) -> int:
        masters = await client.masters()
        await read_settings(client, masters, group)
        connection = await _connection(client, masters, group)
        return len(connection.connection_set) if connection else 0

    members = verb.run(find)
    if members and not force:
        raise UsageError(f"group {group} has {members} members; stop them, or give --force")
    confirm(f"Delete group {group}, its offsets, retries and dead letters?", yes=yes)

    async def action(client: AdminClient) -> VerbResult:
        masters = await client.masters()
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=not keep_offsets)

        async def remove(broker: BrokerAddress) -> None:
            await client.call(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
            for topic in (retry_topic(group), dlq_topic(group)):
                await client.call(
                    broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic)
                )

        await client.gather(remove, masters)
        for topic in (retry_topic(group), dlq_topic(group)):
            await client.every_nameserver(
                RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic=topic)
            )
        rows = [{"group": group, "broker": broker.broker_name, "deleted": True} for broker in masters]
        columns = (Column("GROUP", "group"), Column("BROKER", "broker"), Column("DELETED", "deleted"))
        return VerbResult(rows, [OutputTable(columns, rows)], [group])

    print_result(verb.run(action), verb.output)
    return ExitCode.OK
