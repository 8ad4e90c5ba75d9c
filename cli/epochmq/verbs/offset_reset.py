"""Implements `epochmq group reset`: sets where a consumer group continues to read a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epochmq.client.admin import AdminClient
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import ClusterVerb, confirm, parse_time
from epochmq.verbs.group import check_group, read_progress, read_settings
from epochmq.verbs.name_checks import check_topic
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq.verbs.topic import masters_of, read_stats
from epochmq_protocol.bodies import MessageQueue
from epochmq_protocol.bodies_admin import TopicOffset
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.headers_admin import ResetOffsetRequestHeader
from epochmq_protocol.headers_client import (
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

COLUMNS = (
    Column("TOPIC", "topic"),
    Column("BROKER", "broker"),
    Column("QUEUE", "queue"),
    Column("MIN OFFSET", "minOffset"),
    Column("MAX OFFSET", "maxOffset"),
    Column("CONSUMED", "consumed"),
    Column("NEW OFFSET", "newOffset"),
    Column("CHANGE", "change"),
)


@dataclass(frozen=True, slots=True)
class ResetPoint:
    """Where a group is to continue: at an end of each queue, at the first message since a time (ms since
    1970), at an offset, or a number of messages from where it is."""

    end: str | None = None
    time_ms: int | None = None
    offset: int | None = None
    delta: int | None = None


def parse_point(to: str | None, time: str | None, offset: int | None, delta: int | None) -> ResetPoint:
    """The point that exactly one option names. Raises UsageError."""
    given = [one for one in (to, time, offset, delta) if one is not None]
    if len(given) != 1:
        raise UsageError("give one of --to earliest|latest, --time, --offset and --delta")
    if to is not None and to not in ("earliest", "latest"):
        raise UsageError(f"--to {to}: expected earliest or latest")
    time_ms = None if time is None else parse_time("--time", time)
    return ResetPoint(end=to, time_ms=time_ms, offset=offset, delta=delta)


def reset(
    verb: ClusterVerb,
    group: str,
    topic: str,
    point: ResetPoint,
    *,
    queue: tuple[str, int] | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Prints where the group continues and, if that is confirmed, sets it."""
    check_group(group)
    check_topic(topic)

    rows = verb.run(lambda client: planned_reset(client, group, topic, point, queue))
    print_result(VerbResult(rows, [OutputTable(COLUMNS, rows)], [group]), verb.output)
    if dry_run:
        print_error("nothing was changed (--dry-run)")
        return ExitCode.OK
    confirm(f"Reset group {group}? {effect_text(rows)}", yes=yes)
    verb.run(lambda client: write_offsets(client, group, topic, rows))
    print_error(f"group {group} continues at the new offsets with its next pulls")
    return ExitCode.OK


def effect_text(rows: Sequence[dict[str, Any]]) -> str:
    """What a reset means for the group, in a sentence. `rows` are those of `planned_reset`."""
    again = sum(max(-row["change"], 0) for row in rows)
    skipped = sum(max(row["change"], 0) for row in rows)
    return f"It reads {again} messages again and skips {skipped}."


async def write_offsets(client: AdminClient, group: str, topic: str, rows: Sequence[dict[str, Any]]) -> None:
    """Sets the new offsets of `planned_reset`."""
    await client.gather(lambda row: _set(client, group, topic, row), rows)


async def planned_reset(
    client: AdminClient, group: str, topic: str, point: ResetPoint, queue: tuple[str, int] | None
) -> list[dict[str, Any]]:
    """A row of `COLUMNS` for each queue: where the group is, and where it would continue. Raises RequestError
    if the group, the topic or the queue does not exist."""
    masters = masters_of(await client.route(topic))
    await read_settings(client, masters, group)
    address_of = {broker.broker_name: broker.address for broker in masters}
    tables = await client.gather(lambda broker: read_stats(client, broker, topic), masters)
    ends = {one: offsets for table in tables for one, offsets in sorted(table.offset_table.items())}
    if queue is not None:
        ends = {one: offsets for one, offsets in ends.items() if (one.broker_name, one.queue_id) == queue}
        if not ends:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic} has no queue {queue[0]}:{queue[1]}; see `epochmq topic describe {topic}`",
            )
    progress = await read_progress(client, masters, group, topic)

    async def row(item: tuple[MessageQueue, TopicOffset]) -> dict[str, Any]:
        one, offsets = item
        address = address_of[one.broker_name]
        consumed = progress[one].consumer_offset if one in progress else 0
        wanted = await _wanted(client, address, one, offsets, point, consumed)
        new = min(max(wanted, offsets.min_offset), offsets.max_offset)
        return {
            "topic": topic,
            "broker": one.broker_name,
            "queue": one.queue_id,
            "minOffset": offsets.min_offset,
            "maxOffset": offsets.max_offset,
            "consumed": consumed,
            "newOffset": new,
            "change": new - consumed,
            "address": address,
        }

    return await client.gather(row, ends.items())


async def _wanted(
    client: AdminClient,
    address: str,
    queue: MessageQueue,
    offsets: TopicOffset,
    point: ResetPoint,
    consumed: int,
) -> int:
    if point.end is not None:
        return offsets.min_offset if point.end == "earliest" else offsets.max_offset
    if point.offset is not None:
        return point.offset
    if point.delta is not None:
        return consumed + point.delta
    assert point.time_ms is not None, "a point names one of four"
    header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=point.time_ms)
    response = await client.call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return SearchOffsetResponseHeader.decode(response.ext).offset


async def _set(client: AdminClient, group: str, topic: str, row: dict[str, Any]) -> None:
    """Sets the offset of a queue. A broker with `useServerSideResetOffset` gives it to the members with their
    next pull. One without it knows only how to tell members; for a group without any, the offset is
    committed as its member would."""
    header = ResetOffsetRequestHeader(
        topic=topic,
        group=group,
        queue_id=row["queue"],
        offset=row["newOffset"],
        timestamp=-1,
        is_force=True,
    )
    accepted = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
    response = await client.call(
        row["address"], RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, accepted=accepted
    )
    if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
        commit = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=row["queue"], commit_offset=row["newOffset"]
        )
        await client.call(row["address"], RequestCode.UPDATE_CONSUMER_OFFSET, commit)
