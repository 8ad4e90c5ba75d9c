"""Serves the overview, and the pages of topics, messages and consumer groups."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Response
from fastapi.responses import RedirectResponse

from epochmq.console.cluster_facts import TOPICS_PAGE, ClusterFacts
from epochmq.console.page_renderer import ERRORS, PageRenderer, status_of
from epochmq.console.page_views import (
    OverviewView,
    ViewTable,
    link_to,
    message_view,
    messages_view,
    view_of,
    with_lines,
)
from epochmq.console.rate_samples import SampleRing, SeriesName
from epochmq.exits import UsageError, error_text
from epochmq.verbs.cluster_calls import parse_queue, parse_time
from epochmq.verbs.message import MessageRange
from epochmq.verbs.output import OutputTable
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

COUNTS: Final = (10, 25, 100)
"""How many messages a search may show."""
NUMBER_DIGITS_MAX: Final = 19
PROGRESS_FIRST: Final = ("topic", "queue", "lag")
"""The fields of a group's progress that a narrow window shows."""
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")
"""The values of a topic's attribute `message.type` (TopicMessageType)."""


class TopicPages:
    """The overview, and the pages of topics, messages and consumer groups."""

    def __init__(
        self, facts: ClusterFacts, renderer: PageRenderer, ring: SampleRing, *, has_bundle: bool
    ) -> None:
        self._facts = facts
        self._ring = ring
        self._has_bundle = has_bundle
        self._show = renderer.show

    async def overview(self) -> Response:
        """Groups, replicas and controllers. It also stands while the cluster does not respond."""
        view, status = await self._overview()
        return self._show("overview.html", status, overview=view)

    async def overview_fragment(self) -> Response:
        """The part of the overview that the script renews."""
        view, status = await self._overview()
        return self._show("overview_fragment.html", status, overview=view)

    async def _overview(self) -> tuple[OverviewView, int]:
        try:
            return await self._facts.overview(), 200
        except ERRORS as error:
            return OverviewView("", notes=[error_text(error)]), status_of(error, absent=503, usage=503)

    async def topics(self, find: str = "", everything: bool = False, page: int = 1) -> Response:
        """A page of the topics."""
        page = min(max(page, 1), 1_000_000)
        table, count = await self._facts.topics(everything=everything, find=find.strip(), page=page)
        pages = max(-(-count // TOPICS_PAGE), 1)
        view = view_of(
            table, title="Topics", links={"topic": "topic"}, empty="There is no such topic on this page."
        )
        return self._show(
            "topics.html",
            table_view=view,
            find=find,
            everything=everything,
            page=page,
            pages=pages,
            count=count,
            types=MESSAGE_TYPES,
        )

    async def topic(
        self,
        name: str,
        queue: str = "",
        offset: str = "",
        key: str = "",
        message_id: str = "",
        since: str = "",
        until: str = "",
        count: int = COUNTS[0],
    ) -> Response:
        """A topic with its queues, and messages of it: the newest ones, or those that the form asks for."""
        described = await self._facts.topic(name)
        wanted = {
            "queue": queue.strip(),
            "offset": offset.strip(),
            "key": key.strip(),
            "message_id": message_id.strip(),
            "since": since.strip(),
            "until": until.strip(),
        }
        if wanted["message_id"]:
            return RedirectResponse(link_to("message", topic=name, id=wanted["message_id"]), 303)
        problem, found, status = "", ViewTable("", (), ()), 200
        try:
            span = span_of(wanted)
            limit = count if count in COUNTS else COUNTS[0]
            found = messages_view(
                await self._facts.messages(name, span, key=wanted["key"] or None, count=limit)
            )
        except ERRORS as error:
            problem, status = error_text(error), status_of(error)
        settings, queues = described.tables
        return self._show(
            "topic.html",
            status,
            name=name,
            settings=view_of(settings, title="Settings"),
            queues=view_of(queues),
            places=[f"{row['broker']}:{row['queue']}" for row in queues.rows],
            wanted=wanted,
            count=count,
            counts=COUNTS,
            searched=any(wanted.values()),
            problem=problem,
            messages=found,
        )

    async def message(
        self,
        topic: str,
        queue: str = "",
        offset: str = "",
        wanted: Annotated[str, Query(alias="id")] = "",
    ) -> Response:
        """One message, by its id or by its place."""
        if wanted.strip():
            found = await self._facts.message_with_id(topic, wanted.strip())
            return self._show("message.html", message=message_view(found))
        place, number = parse_queue(queue or None), parse_number("offset", offset)
        if place is None or number is None:
            raise UsageError("a message is named by its id, or by its queue and offset")
        span = MessageRange(queue=place, offset=number)
        for one in await self._facts.messages(topic, span, key=None, count=1):
            if one.record.queue_offset == number:
                return self._show("message.html", message=message_view(one))
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND, f"topic {topic} has no message at {queue}, offset {number}"
        )

    async def groups(self, find: str = "", everything: bool = False) -> Response:
        """The consumer groups."""
        listed = await self._facts.groups(everything=everything)
        (table,) = listed.tables
        rows = [row for row in table.rows if find.strip() in row["group"]]
        view = view_of(
            OutputTable(table.columns, rows, "Consumer groups"),
            links={"group": "group"},
            empty="There is no such consumer group.",
        )
        view = with_lines(view, self._ring, [row["group"] for row in rows], {"lag": ("LAG", "LAG OVER TIME")})
        return self._show("groups.html", table_view=view, find=find, everything=everything)

    async def group(self, name: str, done: bool = False) -> Response:
        """A consumer group with its members and its lag."""
        described = await self._facts.group(name)
        settings, *tables, progress = described.tables
        columns = sorted(progress.columns, key=lambda one: one.field not in PROGRESS_FIRST)
        tables.append(OutputTable(columns, progress.rows, progress.title))
        lag = sum(row["lag"] for row in described.document["queues"])
        return self._show(
            "group.html",
            name=name,
            done=done,
            document=described.document,
            lag=lag,
            lag_line=self._ring.drawing(SeriesName("lag", name)),
            topics=sorted({row["topic"] for row in described.document["queues"]}),
            tables=[
                *(view_of(one, links={"topic": "topic"}, empty="There are none.") for one in tables),
                view_of(settings, title="Settings"),
            ],
        )

    async def about(self) -> Response:
        """What the console is."""
        return self._show("about.html", is_run=self._facts.is_run(), has_bundle=self._has_bundle)


def span_of(wanted: dict[str, str]) -> MessageRange:
    """The messages that the form asks for. Raises UsageError."""
    return MessageRange(
        queue=parse_queue(wanted["queue"] or None),
        offset=parse_number("offset", wanted["offset"]),
        from_ms=parse_time("stored since", wanted["since"]) if wanted["since"] else None,
        until_ms=parse_time("stored until", wanted["until"]) if wanted["until"] else None,
    )


def parse_number(name: str, text: str) -> int | None:
    """A whole number; None for no text. Raises UsageError."""
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > NUMBER_DIGITS_MAX or int(text) >= 1 << 63:
        raise UsageError(f"{name} {text:.40}: expected a whole number from 0 on")
    return int(text)
