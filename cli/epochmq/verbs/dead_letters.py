"""Implements `epochmq dlq`: shows dead letters, and gives them to their consumer group again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epochmq.client import ReceivedMessage
from epochmq.client.admin import AdminClient
from epochmq.exits import ExitCode, print_error
from epochmq.verbs.cluster_calls import ClusterVerb, confirm
from epochmq.verbs.group import check_group
from epochmq.verbs.message import MessageRange, messages_of_topic, messages_result, send_again
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq.verbs.topic import masters_of, read_stats
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.message_const import PROPERTY_DLQ_ORIGIN_TOPIC, PROPERTY_RETRY_TOPIC
from epochmq_protocol.topics import DLQ_GROUP_TOPIC_PREFIX, dlq_topic, is_dlq_topic, retry_topic

RESENT_MAX = 10_000

COLUMNS = (
    Column("GROUP", "group"),
    Column("DEAD LETTERS", "messages"),
    Column("NEWEST", "newest", is_time=True),
    Column("TOPIC", "topic", is_wide=True),
)


def list_dead_letters(verb: ClusterVerb, group: str | None, *, count: int) -> int:
    """Prints the groups that have dead letters; for one group its newest dead letters."""
    if group is not None:
        check_group(group)
        return _list_of_group(verb, group, count)

    result = verb.run(listed_dead_letters)
    print_result(result, verb.output)
    if not result.names:
        print_error("no group has dead letters")
    return ExitCode.OK


async def listed_dead_letters(client: AdminClient) -> VerbResult:
    """The groups that have dead letters, with their numbers."""

    async def counted(topic: str) -> dict[str, Any]:
        masters = masters_of(await client.route(topic))
        tables = await client.gather(lambda broker: read_stats(client, broker, topic), masters)
        offsets = [one for table in tables for one in table.offset_table.values()]
        return {
            "group": topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX),
            "messages": sum(one.max_offset - one.min_offset for one in offsets),
            "newest": max((one.last_update_timestamp for one in offsets), default=0),
            "topic": topic,
        }

    rows = await client.gather(counted, [one for one in await client.topics() if is_dlq_topic(one)])
    rows = [row for row in rows if row["messages"]]
    return VerbResult(rows, [OutputTable(COLUMNS, rows)], [row["group"] for row in rows])


def _list_of_group(verb: ClusterVerb, group: str, count: int) -> int:
    found = verb.run(lambda client: dead_letters_of(client, group, count))
    print_result(messages_result(found, with_ids=True), verb.output)
    if not found:
        print_error(f"group {group} has no dead letters")
    return ExitCode.OK


async def dead_letters_of(client: AdminClient, group: str, count: int) -> list[ReceivedMessage]:
    """The newest dead letters of a group; none if it has no topic for them."""
    try:
        return await messages_of_topic(client, dlq_topic(group), MessageRange(), count)
    except RequestError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        raise


def resend(
    verb: ClusterVerb, group: str, *, message_id: str | None, count: int, to_topic: bool, yes: bool
) -> int:
    """Sends dead letters again: to the retry topic of the group, which only this group reads, or to the topic
    that they came from. The dead letters stay."""
    check_group(group)
    found = verb.run(lambda client: chosen_dead_letters(client, group, message_id, count))
    if not found:
        print_error(f"group {group} has no dead letters")
        return ExitCode.OK
    sent = journeys(found, group, to_topic=to_topic)
    who = "every group of their topics" if to_topic else f"group {group}"
    confirm(f"Send {len(sent)} dead letters again to {who}?", yes=yes)
    return send_again(verb, sent)


async def chosen_dead_letters(
    client: AdminClient, group: str, message_id: str | None, count: int
) -> list[ReceivedMessage]:
    """The newest dead letters of a group, or the one with an id. Raises RequestError if there is none with
    this id."""
    found = await dead_letters_of(client, group, RESENT_MAX if message_id else count)
    if message_id is None:
        return found
    found = [one for one in found if message_id in (one.msg_id, one.record.msg_id)]
    if not found:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND,
            f"group {group} has no dead letter {message_id:.100}; see `epochmq dlq list {group}`",
        )
    return found


def journeys(
    found: Sequence[ReceivedMessage], group: str, *, to_topic: bool
) -> list[tuple[str, ReceivedMessage, dict[str, str]]]:
    """To which topic each dead letter goes again, and with which further properties. Raises RequestError for
    one that does not say where it came from."""
    sent: list[tuple[str, ReceivedMessage, dict[str, str]]] = []
    for one in found:
        origin = one.properties.get(PROPERTY_DLQ_ORIGIN_TOPIC) or one.properties.get(PROPERTY_RETRY_TOPIC)
        if origin is None:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"dead letter {one.msg_id} does not say which topic it came from",
            )
        target = origin if to_topic else retry_topic(group)
        sent.append((target, one, {} if to_topic else {PROPERTY_RETRY_TOPIC: origin}))
    return sent
