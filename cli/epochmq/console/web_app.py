"""Serves the pages: paths, forms, errors, and the headers that keep a browser from anything else."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException

from epochmq.console.cluster_facts import TOPICS_PAGE, ClusterFacts
from epochmq.console.page_views import (
    OverviewView,
    ViewTable,
    link_to,
    message_view,
    messages_view,
    view_of,
)
from epochmq.exits import UsageError, error_text
from epochmq.verbs.cluster_calls import parse_queue, parse_time
from epochmq.verbs.message import MessageRange
from epochmq.verbs.output import OutputTable
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError

FILES: Final = Path(__file__).parent
COUNTS: Final = (10, 25, 100)
"""How many messages a search may show."""
NUMBER_DIGITS_MAX: Final = 19
QUERY_MAX: Final = 2000
"""Characters of a request's query."""
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ABSENT: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
    }
)
ERRORS: Final = (UsageError, EpochMQError, OSError)


class ConsolePages:
    """The handlers of all pages."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts
        self._templates = Environment(
            loader=FileSystemLoader(FILES / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(link_to=link_to, version=version("epochmq"))

    def show(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A page from its template."""
        return HTMLResponse(self._templates.get_template(template).render(**values), status)

    def failure(self, error: Exception) -> HTMLResponse:
        """The page of an error."""
        return self.show("error.html", status_of(error), title="This cannot be shown", text=error_text(error))

    # pages

    async def overview(self) -> Response:
        """Groups, replicas and controllers. It also stands while the cluster does not respond."""
        view, status = await self._overview()
        return self.show("overview.html", status, overview=view)

    async def overview_fragment(self) -> Response:
        """The part of the overview that the script renews."""
        view, status = await self._overview()
        return self.show("overview_fragment.html", status, overview=view)

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
        return self.show(
            "topics.html",
            table_view=view,
            find=find,
            everything=everything,
            page=page,
            pages=pages,
            count=count,
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
        return self.show(
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
            return self.show("message.html", message=message_view(found))
        place, number = parse_queue(queue or None), parse_number("offset", offset)
        if place is None or number is None:
            raise UsageError("a message is named by its id, or by its queue and offset")
        span = MessageRange(queue=place, offset=number)
        for one in await self._facts.messages(topic, span, key=None, count=1):
            if one.record.queue_offset == number:
                return self.show("message.html", message=message_view(one))
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
        return self.show("groups.html", table_view=view, find=find, everything=everything)

    async def group(self, name: str) -> Response:
        """A consumer group with its members and its lag."""
        described = await self._facts.group(name)
        settings, *tables = described.tables
        lag = sum(row["lag"] for row in described.document["queues"])
        return self.show(
            "group.html",
            name=name,
            document=described.document,
            lag=lag,
            tables=[
                *(view_of(one, links={"topic": "topic"}, empty="There are none.") for one in tables),
                view_of(settings, title="Settings"),
            ],
        )

    async def about(self) -> Response:
        """What the console is."""
        return self.show("about.html")


def status_of(error: Exception, *, absent: int = 404, usage: int = 400) -> int:
    """The HTTP status of an error: a wrong question, something that does not exist, or a cluster that does
    not serve it now."""
    if isinstance(error, UsageError):
        return usage
    if isinstance(error, RequestError) and error.code in ABSENT:
        return absent
    return 503


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


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def given_token(header: str) -> str:
    """The token of an `Authorization` header: that of `Bearer`, or the password of `Basic`, for which
    browsers ask. Empty if there is none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def make_console(facts: ClusterFacts, accepts: Callable[[str], bool] | None) -> FastAPI:
    """The application. `accepts` decides about tokens; None: no token is needed, and only requests that name
    this machine are served, so that no page of another site reads a cluster through a browser on it."""
    pages = ConsolePages(facts)
    app = FastAPI(title="EpochMQ", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = rejection(request, accepts) or await call_next(request)
        response.headers.update(HEADERS)
        return response

    handlers: dict[str, Callable[..., Awaitable[Response]]] = {
        "/": pages.overview,
        "/overview-fragment": pages.overview_fragment,
        "/topics": pages.topics,
        "/topic": pages.topic,
        "/message": pages.message,
        "/groups": pages.groups,
        "/group": pages.group,
        "/about": pages.about,
    }
    for path, handler in handlers.items():
        app.add_api_route(path, handler, methods=["GET"], response_class=HTMLResponse)
    app.mount("/static", StaticFiles(directory=FILES / "static"))

    async def failed(request: Request, error: Exception) -> Response:
        return pages.failure(error)

    for kind in ERRORS:
        app.add_exception_handler(kind, failed)

    @app.exception_handler(HTTPException)
    async def rejected(request: Request, error: HTTPException) -> Response:
        return pages.show(
            "error.html", error.status_code, title=str(error.detail), text="The console has no such page."
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        names = ", ".join(str(one["loc"][-1]) for one in error.errors())
        text = f"The address of this page lacks a value, or has a wrong one: {names}."
        return pages.show("error.html", 400, title="This cannot be shown", text=text)

    return app


def rejection(request: Request, accepts: Callable[[str], bool] | None) -> Response | None:
    """The response to a request that is not served; None if it is."""
    if len(request.url.query) > QUERY_MAX:
        return PlainTextResponse("the query is too long\n", 414)
    if accepts is None:
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        except ValueError:
            host = ""
        if not is_loopback(host):
            return PlainTextResponse(
                "this console serves its own machine: use http://127.0.0.1 or http://localhost\n", 421
            )
    elif not accepts(given_token(request.headers.get("authorization", ""))):
        return PlainTextResponse(
            "this console needs a token: give it as the password, with any user name\n",
            401,
            {"WWW-Authenticate": 'Basic realm="EpochMQ console", charset="UTF-8"'},
        )
    return None
