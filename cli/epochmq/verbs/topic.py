"""Implements `epochmq topic`: creates, lists, describes, changes and deletes topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import ClusterVerb, confirm
from epochmq.verbs.name_checks import check_topic
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq_protocol.bodies import TopicConfigAndQueueMapping, TopicStatsTable
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.headers_admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from epochmq_protocol.headers_namesrv import (
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    PutKVConfigRequestHeader,
)
from epochmq_protocol.route import TopicRouteData
from epochmq_protocol.topics import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    PERM_READ,
    PERM_WRITE,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Where nameservers keep the queues of ordered topics (NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG)."""
QUEUES_DEFAULT = 8
PERMS = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE}


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What the options of `create` and `alter` say. None: as it is, or the default."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    attributes: Mapping[str, str | None] = field(default_factory=dict)
    """None: the attribute is removed."""


def parse_perm(text: str | None) -> int | None:
    """The permission bits of `r`, `w`, `rw`, or of RocketMQ's 2, 4 and 6. Raises UsageError."""
    if text is None:
        return None
    perm = PERMS.get(text) or {str(bits): bits for bits in PERMS.values()}.get(text)
    if perm is None:
        raise UsageError(f"--perm {text}: expected r, w or rw (or RocketMQ's 4, 2 or 6)")
    return perm


def perm_text(perm: int) -> str:
    """`rw` for 6."""
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "none"


def list_topics(verb: ClusterVerb, *, everything: bool) -> int:
    """Prints the topics; without `everything` those that applications have made."""
    result = verb.run(lambda client: listed_topics(client, everything=everything))
    print_result(result, verb.output)
    if not result.names:
        print_error(
            "there are no topics" + ("" if everything else " of applications; --all shows the others")
        )
    return ExitCode.OK


async def listed_topics(client: AdminClient, *, everything: bool) -> VerbResult:
    """The topics; without `everything` those that applications have made."""
    brokers = await client.brokers()
    names, clusters = {one.broker_name for one in brokers}, {one.cluster for one in brokers}
    topics = [
        name for name in await client.topics() if everything or not is_of_brokers(name, names, clusters)
    ]
    routes = await client.gather(client.routes.lookup, topics)
    rows = [_listed(name, route) for name, route in zip(topics, routes, strict=True) if route is not None]
    return VerbResult(rows, [OutputTable(LIST_COLUMNS, rows)], [row["topic"] for row in rows])


LIST_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("BROKERS", "brokers"),
    Column("READ QUEUES", "readQueues"),
    Column("WRITE QUEUES", "writeQueues"),
    Column("PERM", "perm"),
    Column("CLUSTERS", "clusters", is_wide=True),
    Column("ORDER", "orderConf", is_wide=True),
)


def is_of_brokers(topic: str, broker_names: set[str], clusters: set[str]) -> bool:
    """Whether brokers make this topic for themselves, or for groups: system topics, their own names, retry
    and dead-letter topics."""
    return (
        is_system_topic(topic)
        or is_retry_topic(topic)
        or is_dlq_topic(topic)
        or topic in broker_names
        or topic in clusters
        or any(topic == f"{cluster}_REPLY_TOPIC" for cluster in clusters)
    )


def _listed(topic: str, route: TopicRouteData) -> dict[str, Any]:
    perms = sorted({perm_text(queues.perm) for queues in route.queue_datas})
    return {
        "topic": topic,
        "brokers": sorted(queues.broker_name for queues in route.queue_datas),
        "readQueues": sum(queues.read_queue_nums for queues in route.queue_datas),
        "writeQueues": sum(queues.write_queue_nums for queues in route.queue_datas),
        "perm": perms[0] if len(perms) == 1 else perms,
        "clusters": sorted({data.cluster for data in route.broker_datas}),
        "orderConf": route.order_topic_conf,
    }


def describe(verb: ClusterVerb, topic: str) -> int:
    """Prints a topic's settings on each broker, and its queues."""
    check_topic(topic)
    print_result(verb.run(lambda client: described_topic(client, topic)), verb.output)
    return ExitCode.OK


async def described_topic(client: AdminClient, topic: str) -> VerbResult:
    """A topic's settings on each broker, and its queues. Raises RequestError if there is no such topic."""
    masters = masters_of(await client.route(topic))
    settings = await client.gather(lambda broker: read_config(client, broker, topic), masters)
    stats = await client.gather(lambda broker: read_stats(client, broker, topic), masters)
    configs = [
        {
            "broker": broker.broker_name,
            "readQueues": config.read_queue_nums,
            "writeQueues": config.write_queue_nums,
            "perm": perm_text(config.perm),
            "order": config.order,
            "attributes": config.attributes,
            "address": broker.address,
            "inRate": table.topic_put_tps,
        }
        for broker, config, table in zip(masters, settings, stats, strict=True)
    ]
    queues = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "minOffset": offsets.min_offset,
            "maxOffset": offsets.max_offset,
            "messages": offsets.max_offset - offsets.min_offset,
            "lastStored": offsets.last_update_timestamp,
        }
        for table in stats
        for queue, offsets in sorted(table.offset_table.items())
    ]
    tables = [
        OutputTable(CONFIG_COLUMNS, configs, f"Topic {topic}"),
        OutputTable(QUEUE_COLUMNS, queues, "Queues"),
    ]
    return VerbResult({"topic": topic, "brokers": configs, "queues": queues}, tables, [topic])


CONFIG_COLUMNS = (
    Column("BROKER", "broker"),
    Column("READ QUEUES", "readQueues"),
    Column("WRITE QUEUES", "writeQueues"),
    Column("PERM", "perm"),
    Column("ORDER", "order"),
    Column("ATTRIBUTES", "attributes"),
    Column("ADDRESS", "address", is_wide=True),
    Column("IN/S", "inRate", is_wide=True),
)
QUEUE_COLUMNS = (
    Column("BROKER", "broker"),
    Column("QUEUE", "queue"),
    Column("MIN OFFSET", "minOffset"),
    Column("MAX OFFSET", "maxOffset"),
    Column("MESSAGES", "messages"),
    Column("LAST STORED", "lastStored", is_time=True),
)


def masters_of(route: TopicRouteData) -> list[BrokerAddress]:
    """The masters that have the topic. Raises RequestError if a group has none."""
    found, lacking = [], []
    for data in sorted(route.broker_datas, key=lambda one: one.broker_name):
        address = data.broker_addrs.get(0)
        if address is None:
            lacking.append(data.broker_name)
        else:
            found.append(BrokerAddress(data.cluster, data.broker_name, 0, address))
    if lacking:
        raise RequestError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"broker group {', '.join(lacking)} has no master now; see `epochmq status`, and try again",
        )
    return found


async def read_config(client: AdminClient, broker: BrokerAddress, topic: str) -> TopicConfigAndQueueMapping:
    """A topic's settings at a broker."""
    header = GetTopicConfigRequestHeader(topic=topic)
    return await client.read(TopicConfigAndQueueMapping, broker.address, RequestCode.GET_TOPIC_CONFIG, header)


async def read_stats(client: AdminClient, broker: BrokerAddress, topic: str) -> TopicStatsTable:
    """The offsets of a topic's queues at a broker."""
    header = GetTopicStatsInfoRequestHeader(topic=topic)
    return await client.read(TopicStatsTable, broker.address, RequestCode.GET_TOPIC_STATS_INFO, header)


async def topic_totals(client: AdminClient, topic: str) -> dict[str, Any]:
    """What all queues of a topic hold together, and the messages a second that enter it."""
    masters = masters_of(await client.route(topic))
    tables = await client.gather(lambda broker: read_stats(client, broker, topic), masters)
    queues = [offsets for table in tables for offsets in table.offset_table.values()]
    return {
        "messages": sum(one.max_offset - one.min_offset for one in queues),
        "inRate": sum(table.topic_put_tps for table in tables),
        "lastStored": max((one.last_update_timestamp for one in queues), default=0),
    }


def create(
    verb: ClusterVerb,
    topic: str,
    change: TopicChange,
    *,
    cluster: str | None,
    broker_names: Sequence[str],
    dry_run: bool,
) -> int:
    """Creates a topic on the masters of a cluster, or of the named groups."""
    check_topic(topic)
    if any(value is None for value in change.attributes.values()):
        raise UsageError("--attribute: expected KEY=VALUE")

    async def action(client: AdminClient) -> VerbResult:
        masters = await client.masters(cluster=cluster, broker_names=broker_names)
        return await created_topic(client, topic, change, masters, dry_run=dry_run)

    print_result(verb.run(action), verb.output)
    if dry_run:
        print_error("nothing was changed (--dry-run)")
    return ExitCode.OK


async def created_topic(
    client: AdminClient,
    topic: str,
    change: TopicChange,
    masters: Sequence[BrokerAddress],
    *,
    dry_run: bool,
) -> VerbResult:
    """Creates a topic at these masters; with `dry_run` only what would be created. Raises RequestError if one
    of them has it."""
    present = await client.found(
        lambda broker: read_config(client, broker, topic), masters, ResponseCode.TOPIC_NOT_EXIST
    )
    if present:
        raise RequestError(
            ResponseCode.TOPIC_EXIST_ALREADY,
            f"topic {topic} exists; change it with `epochmq topic alter {topic}`",
        )
    headers = [_header(topic, TopicConfigAndQueueMapping(topic_name=topic), change, is_new=True)]
    return await _apply(client, topic, masters, headers * len(masters), dry_run=dry_run)


def alter(verb: ClusterVerb, topic: str, change: TopicChange, *, dry_run: bool) -> int:
    """Changes what the options name, on every broker that has the topic; the rest stays as it is."""
    check_topic(topic)
    if change == TopicChange():
        raise UsageError("nothing to change: give --queues, --perm, --order, --attribute or another setting")

    async def action(client: AdminClient) -> VerbResult:
        masters = masters_of(await client.route(topic))
        configs = await client.gather(lambda broker: read_config(client, broker, topic), masters)
        headers = [_header(topic, config, change, is_new=False) for config in configs]
        return await _apply(client, topic, masters, headers, dry_run=dry_run)

    print_result(verb.run(action), verb.output)
    if dry_run:
        print_error("nothing was changed (--dry-run)")
    return ExitCode.OK


def _header(
    topic: str, present: TopicConfigAndQueueMapping, change: TopicChange, *, is_new: bool
) -> CreateTopicRequestHeader:
    """The request that makes the change. RocketMQ keeps the attributes that a request does not name. Raises
    UsageError for queues that nobody could read."""

    def chosen(wanted: int | None, now: int, default: int) -> int:
        return wanted if wanted is not None else default if is_new else now

    read = chosen(change.read_queues, present.read_queue_nums, QUEUES_DEFAULT)
    write = chosen(change.write_queues, present.write_queue_nums, QUEUES_DEFAULT)
    names_queues = change.read_queues is not None or change.write_queues is not None
    if names_queues and read < write:
        raise UsageError(
            f"{read} read queues and {write} write queues: nobody could read the messages in the others; "
            f"expected --read-queues of at least {write}"
        )
    attributes = [
        f"-{key}" if value is None else f"+{key}={value}" for key, value in sorted(change.attributes.items())
    ]
    return CreateTopicRequestHeader(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
        read_queue_nums=read,
        write_queue_nums=write,
        perm=chosen(change.perm, present.perm, PERM_READ | PERM_WRITE),
        topic_filter_type=present.topic_filter_type.name,
        topic_sys_flag=present.topic_sys_flag,
        order=present.order if change.order is None else change.order,
        attributes=",".join(attributes) or None,
    )


async def _apply(
    client: AdminClient,
    topic: str,
    masters: Sequence[BrokerAddress],
    headers: Sequence[CreateTopicRequestHeader],
    *,
    dry_run: bool,
) -> VerbResult:
    rows = [
        {
            "topic": topic,
            "broker": broker.broker_name,
            "readQueues": header.read_queue_nums,
            "writeQueues": header.write_queue_nums,
            "perm": perm_text(header.perm),
            "order": header.order,
            "attributes": header.attributes,
            "address": broker.address,
        }
        for broker, header in zip(masters, headers, strict=True)
    ]
    if not dry_run:

        async def write(pair: tuple[BrokerAddress, CreateTopicRequestHeader]) -> None:
            broker, header = pair
            try:
                await client.call(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            except RequestError as error:
                if not header.attributes:
                    raise
                # RocketMQ names what is wrong with an attribute, but not which one it is.
                raise RequestError(error.code, f"{error.remark}; in {header.attributes}") from None

        await client.gather(write, zip(masters, headers, strict=True))
        if any(header.order for header in headers):
            # As `mqadmin updateTopic -o true`: producers of ordered messages read the queues from here.
            conf = ";".join(f"{row['broker']}:{row['writeQueues']}" for row in rows)
            header = PutKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic, value=conf)
            await client.every_nameserver(RequestCode.PUT_KV_CONFIG, header)
    return VerbResult(rows, [OutputTable((Column("TOPIC", "topic"), *CONFIG_COLUMNS), rows)], [topic])


def delete(verb: ClusterVerb, topic: str, *, yes: bool) -> int:
    """Deletes a topic with its messages, on every broker that has it."""
    check_topic(topic)
    verb.run(lambda client: client.route(topic))
    confirm(f"Delete topic {topic} with all its messages?", yes=yes)

    async def action(client: AdminClient) -> VerbResult:
        masters = masters_of(await client.route(topic))
        header = DeleteTopicRequestHeader(topic=topic)

        async def remove(broker: BrokerAddress) -> None:
            await client.call(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)

        await client.gather(remove, masters)
        await client.every_nameserver(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic=topic)
        )
        await client.every_nameserver(
            RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic)
        )
        rows = [{"topic": topic, "broker": broker.broker_name, "deleted": True} for broker in masters]
        columns = (Column("TOPIC", "topic"), Column("BROKER", "broker"), Column("DELETED", "deleted"))
        return VerbResult(rows, [OutputTable(columns, rows)], [topic])

    print_result(verb.run(action), verb.output)
    return ExitCode.OK
