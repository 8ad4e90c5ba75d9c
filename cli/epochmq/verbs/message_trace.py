"""Implements `epochmq message trace`: prints what RocketMQ's clients have traced of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epochmq.client.admin import AdminClient
from epochmq.client.stored_message_reader import StoredMessageReader
from epochmq.exits import ExitCode, print_error
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.name_checks import check_topic
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq.verbs.topic import masters_of
from epochmq_protocol.message import decode_host

FIELD_SEPARATOR, RECORD_SEPARATOR = "\x01", "\x02"
"""TraceConstants.CONTENT_SPLITOR and FIELD_SPLITOR."""
COLUMNS = (
    Column("TIME", "time", is_time=True),
    Column("EVENT", "event"),
    Column("GROUP", "group"),
    Column("CLIENT", "client"),
    Column("SUCCESS", "success"),
    Column("TOOK MS", "tookMs"),
    Column("RETRIES", "retries"),
    Column("TOPIC", "topic", is_wide=True),
    Column("STORED AT", "storeHost", is_wide=True),
)


def trace(verb: ClusterVerb, message_id: str, trace_topic: str) -> int:
    """Prints the sends and deliveries of a message, by the id that its producer gave it."""
    check_topic(trace_topic)

    async def action(client: AdminClient) -> VerbResult:
        masters = masters_of(await client.route(trace_topic))
        found = await StoredMessageReader(client).by_key(masters, trace_topic, message_id, unique=False)
        rows = [
            {**event, "client": decode_host(received.record.born_host)[0]}
            for received in found
            for event in trace_events(received.body.decode(errors="replace"))
            if event["msgId"] == message_id
        ]
        rows.sort(key=lambda row: row["time"])
        return VerbResult(rows, [OutputTable(COLUMNS, rows)], [message_id] if rows else [])

    result = verb.run(action)
    print_result(result, verb.output)
    if not result.names:
        print_error(
            f"no client has traced message {message_id} in {trace_topic}; clients trace if their "
            "enableMsgTrace is on, and brokers accept traces if traceTopicEnable is on"
        )
    return ExitCode.OK


def trace_events(text: str) -> list[dict[str, Any]]:
    """The events in the body of a trace message (TraceDataEncoder). Lines of other kinds are left out."""
    events = []
    for line in text.split(RECORD_SEPARATOR):
        fields = line.split(FIELD_SEPARATOR)
        decode = DECODERS.get(fields[0])
        if decode is not None:
            event = decode(_Fields(fields))
            events.append({"event": fields[0], **event})
    return events


class _Fields:
    """The fields of a line; a missing one is empty, as those of older clients are."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields

    def text(self, at: int) -> str:
        return self._fields[at] if at < len(self._fields) else ""

    def number(self, at: int) -> int:
        text = self.text(at)
        return int(text) if text.isascii() and text.isdecimal() else 0

    def __len__(self) -> int:
        return len(self._fields)


def _sent(fields: _Fields) -> dict[str, Any]:
    success_at = 12 if len(fields) == 13 else 13
    return {
        "time": fields.number(1),
        "group": fields.text(3),
        "topic": fields.text(4),
        "msgId": fields.text(5),
        "storeHost": fields.text(8),
        "tookMs": fields.number(10),
        "success": fields.text(success_at) == "true",
        "retries": None,
    }


def _received(fields: _Fields) -> dict[str, Any]:
    return {
        "time": fields.number(1),
        "group": fields.text(3),
        "topic": None,
        "msgId": fields.text(5),
        "storeHost": None,
        "tookMs": None,
        "success": None,
        "retries": fields.number(6),
    }


def _consumed(fields: _Fields) -> dict[str, Any]:
    return {
        "time": fields.number(7),
        "group": fields.text(8),
        "topic": None,
        "msgId": fields.text(2),
        "storeHost": None,
        "tookMs": fields.number(3),
        "success": fields.text(4) == "true",
        "retries": None,
    }


def _ended(fields: _Fields) -> dict[str, Any]:
    return {
        "time": fields.number(1),
        "group": fields.text(3),
        "topic": fields.text(4),
        "msgId": fields.text(5),
        "storeHost": fields.text(8),
        "tookMs": None,
        "success": fields.text(11) == "COMMIT_MESSAGE",
        "retries": None,
    }


DECODERS = {"Pub": _sent, "SubBefore": _received, "SubAfter": _consumed, "EndTransaction": _ended}
