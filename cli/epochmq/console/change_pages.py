"""Serves the forms that change something: consumer groups, dead letters, topics, masterships and passwords.

Each change takes two requests: the first shows what would happen, the second, with `confirmed`, does it. A
password takes one request, which has it twice, so that no page has a password in it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from epochmq.console.cluster_facts import ClusterFacts
from epochmq.console.cluster_pages import DEAD_LETTERS_SHOWN
from epochmq.console.page_renderer import PageRenderer
from epochmq.console.page_views import link_to, view_of
from epochmq.console.topic_pages import parse_number
from epochmq.exits import UsageError, print_error
from epochmq.verbs import message, offset_reset
from epochmq.verbs.cluster_calls import parse_pairs, parse_time
from epochmq.verbs.offset_reset import ResetPoint
from epochmq.verbs.output import OutputTable
from epochmq.verbs.password_input import checked_password
from epochmq.verbs.topic import TopicChange

FORM_BYTES_MAX: Final = 16 * 1024
FORM_FIELDS_MAX: Final = 20
FORM_TYPE: Final = "application/x-www-form-urlencoded"
OFFSET_LIMIT: Final = 1 << 63
QUEUES_MAX: Final = 65535
KINDS: Final = ("latest", "earliest", "time", "offset", "delta")


class FormRejectedError(Exception):
    """A form does not come from a page of this console process. The text says what to do."""


class ChangePages:
    """The handlers of the forms. `form_token` is on every form of this process: a page of another site cannot
    know it, so no such page changes something through a browser that has the admin token."""

    def __init__(self, facts: ClusterFacts, renderer: PageRenderer, form_token: str) -> None:
        self._facts = facts
        self._show = renderer.show
        self._form_token = form_token

    async def reset(self, request: Request) -> Response:
        """Sets where a consumer group continues to read a topic."""
        form = await self._form(request)
        name, topic = form.get("name", ""), form.get("topic", "")
        kind, value = form.get("kind", ""), form.get("value", "").strip()
        point = point_of(kind, value)
        if form.get("confirmed") != "true":
            rows = await self._facts.planned_reset(name, topic, point)
            if point.time_ms is not None:
                value = str(point.time_ms)  # the same time when it is confirmed
            return self._show(
                "confirm.html",
                section="Consumer groups",
                title=f"Reset group {name}?",
                text=offset_reset.effect_text(rows),
                table_view=view_of(OutputTable(offset_reset.COLUMNS, rows, "Queues")),
                action="/group/reset",
                fields={"name": name, "topic": topic, "kind": kind, "value": value},
                button="Reset",
                back=link_to("group", name=name),
            )
        rows = await self._facts.reset(name, topic, point)
        print_error(f"console: group {name} was reset in {len(rows)} queues of topic {topic}")
        return RedirectResponse(link_to("group", name=name, done="true"), 303)

    async def resend(self, request: Request) -> Response:
        """Sends dead letters again."""
        form = await self._form(request)
        name, message_id = form.get("name", ""), form.get("id", "")
        to_topic = form.get("to") == "topic"
        who = "every group of their topics" if to_topic else f"group {name}"
        if form.get("confirmed") != "true":
            count = 1 if message_id else len(await self._facts.dead_letters_of(name, DEAD_LETTERS_SHOWN))
            what = f"dead letter {message_id}" if message_id else f"{count} dead letters"
            return self._show(
                "confirm.html",
                section="Dead letters",
                title=f"Send {what} again?",
                text=f"They go to {who}. The dead letters stay where they are until they expire.",
                table_view=None,
                action="/dead-letter-group/resend",
                fields={"name": name, "id": message_id, "to": form.get("to", "")},
                button="Send again",
                back=link_to("dead-letter-group", name=name),
            )
        rows = await self._facts.resend(name, message_id or None, DEAD_LETTERS_SHOWN, to_topic=to_topic)
        print_error(f"console: {len(rows)} dead letters of group {name} were sent again to {who}")
        columns = [column for column in message.SENT_COLUMNS if not column.is_wide]
        return self._show(
            "sent.html",
            name=name,
            who=who,
            table_view=view_of(OutputTable(columns, rows, "Sent"), links={"topic": "topic"}),
        )

    async def create_topic(self, request: Request) -> Response:
        """Creates a topic."""
        form = await self._form(request)
        name = form.get("name", "").strip()
        fields = {key: form.get(key, "").strip() for key in ("name", "queues", "type", "attributes")}
        change = topic_change_of(fields)
        is_confirmed = form.get("confirmed") == "true"
        table = await self._facts.create_topic(name, change, dry_run=not is_confirmed)
        if not is_confirmed:
            return self._show(
                "confirm.html",
                section="Topics",
                title=f"Create topic {name}?",
                text="Every broker group gets it.",
                table_view=view_of(OutputTable(table.columns, table.rows, "Topic")),
                action="/topics/create",
                fields=fields,
                button="Create",
                back=link_to("topics"),
            )
        print_error(f"console: topic {name} was created")
        return RedirectResponse(link_to("topic", name=name), 303)

    async def promote(self, request: Request) -> Response:
        """Makes a replica of a run the master."""
        form = await self._form(request)
        broker_name, replica = form.get("name", ""), form.get("replica", "")
        if replica not in await self._facts.replicas(broker_name):
            raise UsageError(f"replica {replica:.100}: expected one of broker group {broker_name:.100}")
        if form.get("confirmed") != "true":
            return self._show(
                "confirm.html",
                section="Brokers",
                title=f"Make {replica} the master?",
                text="The master holds new sends until the replica has caught up. No send fails.",
                table_view=None,
                action="/broker/promote",
                fields={"name": broker_name, "replica": replica},
                button="Promote",
                back=link_to("broker", name=broker_name),
            )
        done = await self._facts.promote(replica)
        print_error(f"console: {done}")
        return RedirectResponse(link_to("broker", name=broker_name, done=done), 303)

    async def set_password(self, request: Request) -> Response:
        """Gives a user a new password."""
        form = await self._form(request)
        name, password = form.get("name", ""), form.get("password", "")
        if password != form.get("again", ""):
            raise UsageError("the two passwords differ; nothing was changed")
        rows = await self._facts.set_password(name, checked_password("the form", password.encode()))
        print_error(f"console: user {name} has a new password at {len(rows)} brokers")
        return RedirectResponse(link_to("access", done=name), 303)

    async def _form(self, request: Request) -> Mapping[str, str]:
        """The fields of a form of this process. Raises UsageError or FormRejectedError."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
            raise UsageError(f"a form is sent as {FORM_TYPE}")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise UsageError(f"the form has more than {FORM_BYTES_MAX} bytes")
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
        except ValueError:
            raise UsageError(f"the form cannot be read; it has at most {FORM_FIELDS_MAX} fields") from None
        form = dict(pairs)
        if not secrets.compare_digest(form.get("form_token", "").encode(), self._form_token.encode()):
            raise FormRejectedError(
                "This form is not of this console process, which may have been restarted since. "
                "Load the page again, and repeat."
            )
        return form


def topic_change_of(fields: Mapping[str, str]) -> TopicChange:
    """The topic that the form describes. Raises UsageError."""
    queues = parse_number("queues", fields["queues"])
    if queues is not None and not 1 <= queues <= QUEUES_MAX:
        raise UsageError(f"queues {queues}: expected 1 to {QUEUES_MAX}")
    attributes: dict[str, str | None] = dict(parse_pairs("attributes", fields["attributes"].split()))
    if fields["type"]:
        attributes["message.type"] = fields["type"]
    return TopicChange(read_queues=queues, write_queues=queues, attributes=attributes)


def point_of(kind: str, value: str) -> ResetPoint:
    """Where a group is to continue, as the form says. Raises UsageError."""
    if kind in ("latest", "earliest"):
        return ResetPoint(end=kind)
    if kind == "time":
        return ResetPoint(time_ms=parse_time("time", value))
    if kind not in KINDS:
        raise UsageError(f"continue at {kind:.40}: expected {', '.join(KINDS)}")
    digits = value.removeprefix("-") if kind == "delta" else value
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19 or int(digits) >= OFFSET_LIMIT:
        raise UsageError(f"{kind} {value:.40}: expected a whole number")
    return ResetPoint(offset=int(value)) if kind == "offset" else ResetPoint(delta=int(value))
