"""The console with a fake source of facts: what its pages show, what they escape, and how they fail."""

from __future__ import annotations

import asyncio
import base64
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from epochmq.console.access_guard import given_token, is_loopback
from epochmq.console.page_views import SHOWN_BYTES_MAX, body_view
from epochmq.console.web_app import make_console
from epochmq.exits import UsageError
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import ConnectError, RequestError
from tests.unit.console.fake_facts import ODD, FakeFacts, received

HERE = "http://127.0.0.1:9888"
PAGES = {
    "/": {},
    "/overview-fragment": {},
    "/topics": {},
    "/topic": {"name": ODD},
    "/message": {"topic": ODD, "id": "x"},
    "/groups": {},
    "/group": {"name": ODD},
    "/brokers": {},
    "/broker": {"name": ODD},
    "/controllers": {},
    "/clients": {},
    "/dead-letters": {},
    "/dead-letter-group": {"name": ODD},
    "/access": {},
    "/audits": {},
    "/about": {},
}
OF_FILES = ("/audits", "/about")
OF_THE_CLUSTER = [path for path in PAGES if path not in OF_FILES]
VOID = {"meta", "link", "img", "input"}


@pytest.fixture
def facts() -> FakeFacts:
    return FakeFacts()


class Browser:
    """Sends requests to an application in this process."""

    def __init__(self, app: FastAPI, base_url: str = HERE) -> None:
        self._app = app
        self._base_url = base_url

    def request(self, method: str, path: str, **values: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=self._base_url) as client:
                return await client.request(method, path, **values)

        return asyncio.run(send())

    def get(self, path: str, **values: Any) -> httpx.Response:
        return self.request("GET", path, **values)


@pytest.fixture
def client(facts: FakeFacts) -> Browser:
    return Browser(make_console(facts, None))


class Markup(HTMLParser):
    """Collects the elements of a page, and checks that they are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())

    def links(self) -> list[str]:
        return [values["href"] or "" for tag, values in self.elements if tag == "a"]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_odd_names_as_text(client: Browser, path: str) -> None:
    response = client.get(path, params=PAGES[path])
    assert response.status_code == 200
    markup = Markup(response.text)
    for tag, values in markup.elements:
        assert not any(name.startswith("on") or name == "style" for name in values), (tag, values)
        assert tag != "img" or values["src"] == "/static/icon.svg"
    if path not in OF_FILES:
        assert ODD in " ".join(markup.texts), "the name is there, as it is written"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_nothing_from_elsewhere(client: Browser, path: str) -> None:
    response = client.get(path, params=PAGES[path])
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"
    for tag, values in Markup(response.text).elements:
        for name in ("href", "src", "action"):
            address = values.get(name) or "/"
            assert address.startswith(("/", "#")), (tag, values)
            assert not address.startswith("//"), (tag, values)
            if address.startswith("/static/"):
                assert client.get(address).status_code == 200
        assert tag != "style"
        assert tag != "script" or values.keys() == {"src", "defer"}


def test_links_lead_to_pages_of_the_named_thing(client: Browser) -> None:
    for path in ("/topics", "/groups", "/topic", "/brokers", "/dead-letters", "/dead-letter-group"):
        links = Markup(client.get(path, params=PAGES[path]).text).links()
        inner = [link for link in links if "?" in link]
        assert inner
        for link in inner:
            assert client.get(link).status_code == 200, link


@pytest.mark.parametrize("path", OF_THE_CLUSTER)
def test_a_page_says_why_the_cluster_does_not_respond(client: Browser, facts: FakeFacts, path: str) -> None:
    facts.error = ConnectError("no nameserver responds: <127.0.0.1:9876>")
    response = client.get(path, params=PAGES[path])
    assert response.status_code == 503
    assert "no nameserver responds: <127.0.0.1:9876>" in Markup(response.text).texts
    facts.error = None
    assert client.get(path, params=PAGES[path]).status_code == 200, "each page asks anew"


@pytest.mark.parametrize("path", OF_THE_CLUSTER)
def test_a_page_says_that_nothing_runs(client: Browser, facts: FakeFacts, path: str) -> None:
    facts.error = UsageError("nothing runs in .epochmq")
    response = client.get(path, params=PAGES[path])
    assert response.status_code in (400, 503)
    assert "nothing runs in .epochmq" in Markup(response.text).texts


def test_an_empty_cluster_has_no_topics(client: Browser, facts: FakeFacts) -> None:
    facts.topic_count = 0
    assert "There is no such topic on this page." in client.get("/topics").text


def test_topics_have_pages(client: Browser, facts: FakeFacts) -> None:
    facts.topic_count = 250
    markup = Markup(client.get("/topics", params={"page": 2, "find": "a&b"}).text)
    assert "/topics?find=a%26b&everything=false&page=1" in markup.links()
    assert "/topics?find=a%26b&everything=false&page=3" in markup.links()
    assert "page 2 of 3, 250 topics" in markup.texts


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, 404),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, 404),
        (ResponseCode.SERVICE_NOT_AVAILABLE, 503),
        (ResponseCode.NO_PERMISSION, 503),
    ],
)
def test_the_status_says_whose_fault_it_is(
    client: Browser, facts: FakeFacts, code: ResponseCode, status: int
) -> None:
    facts.error = RequestError(code, "why")
    response = client.get("/group", params={"name": "g"})
    assert response.status_code == status
    assert f"{code.name}: why" in response.text


def test_a_topic_without_a_route_is_not_found(client: Browser) -> None:
    response = client.get("/topic", params={"name": "gone"})
    assert response.status_code == 404
    assert "topic gone does not exist" in response.text


def test_a_search_asks_for_what_the_form_says(client: Browser, facts: FakeFacts) -> None:
    form = {"name": ODD, "queue": "a:3", "offset": "7", "since": "1700000000000", "count": "25", "key": "k"}
    response = client.get("/topic", params=form)
    assert response.status_code == 200
    ((name, span, key, count),) = facts.asked
    assert (name, span.queue, span.offset, span.from_ms, key, count) == (
        ODD,
        ("a", 3),
        7,
        1700000000000,
        "k",
        25,
    )


def test_a_search_shows_at_most_what_the_form_offers(client: Browser, facts: FakeFacts) -> None:
    client.get("/topic", params={"name": ODD, "count": "100000000"})
    assert facts.asked[0][3] == 10


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("offset", "-1", "offset -1: expected a whole number from 0 on"),
        ("offset", "9" * 19, "expected a whole number from 0 on"),
        ("queue", "nothing", "expected BROKER:NUMBER"),
        ("since", "yesterday", "stored since yesterday: expected a time"),
        ("until", "<b>", "stored until &lt;b&gt;: expected a time"),
    ],
)
def test_a_wrong_search_keeps_the_form(client: Browser, field: str, value: str, text: str) -> None:
    response = client.get("/topic", params={"name": ODD, field: value})
    assert response.status_code == 400
    assert text in response.text
    assert "<form" in response.text


def test_a_message_id_leads_to_the_message(client: Browser) -> None:
    response = client.get("/topic", params={"name": ODD, "message_id": " A&B "})
    assert response.status_code == 303
    assert response.headers["location"].endswith("&id=A%26B")
    assert client.get(response.headers["location"]).status_code == 200


def test_a_message_is_found_at_its_place_only(client: Browser, facts: FakeFacts) -> None:
    facts.found = [received(b"x", offset=8)]
    place = {"topic": ODD, "queue": f"{ODD}:0"}
    assert client.get("/message", params={**place, "offset": "8"}).status_code == 200
    absent = client.get("/message", params={**place, "offset": "7"})
    assert absent.status_code == 404, "the next message is another one"
    facts.found = []
    assert client.get("/message", params={**place, "offset": "8"}).status_code == 404
    assert client.get("/message", params=place).status_code == 400


def test_a_body_that_is_no_text_is_shown_in_hexadecimal(client: Browser, facts: FakeFacts) -> None:
    facts.found = [received(b"\x00\xffA<")]
    text = client.get("/message", params=PAGES["/message"]).text
    assert "The body is no UTF-8 text." in text
    assert re.search(r"00000000  00 ff 41 3c +\.\.A&lt;", text)


def test_a_text_keeps_its_lines_and_loses_control_characters() -> None:
    view = body_view("a\tb\r\nc\x1b[2J\u202e".encode())
    assert view.text == "a\tb\nc\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    assert view.cut_bytes == 0


def test_a_long_body_is_cut_between_characters() -> None:
    body = ("x" + "é" * SHOWN_BYTES_MAX).encode()
    view = body_view(body)
    assert view.cut_bytes == len(body) - SHOWN_BYTES_MAX
    assert view.text is not None
    assert set(view.text) == {"x", "é"}


def test_an_empty_body_is_shown() -> None:
    assert body_view(b"").text == ""


@pytest.mark.parametrize("path", ["/nothing", "/static/nothing.css", "/static/../web_app.py", "/docs"])
def test_there_are_no_other_pages(client: Browser, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(client: Browser, method: str) -> None:
    for path in PAGES:
        assert client.request(method, path).status_code == 405
    for path in ("/group/reset", "/dead-letter-group/resend"):
        assert client.request(method, path).status_code == 404
        assert path not in client.get("/group", params={"name": ODD}).text


def test_a_page_without_its_name_is_rejected(client: Browser) -> None:
    response = client.get("/topic")
    assert response.status_code == 400
    assert "name" in response.text


def test_a_long_query_is_rejected(client: Browser) -> None:
    assert client.get("/topic", params={"name": "x" * 4000}).status_code == 414


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:9888", "[::1", ""])
def test_without_a_token_only_this_machine_is_served(client: Browser, host: str) -> None:
    response = client.get("/", headers={"Host": host})
    assert response.status_code == 421
    assert "127.0.0.1" in response.text


@pytest.mark.parametrize("host", ["localhost:9888", "127.0.0.7", "[::1]:9888"])
def test_names_of_this_machine_are_served(client: Browser, host: str) -> None:
    assert client.get("/about", headers={"Host": host}).status_code == 200


def test_with_a_token_every_path_needs_it(facts: FakeFacts) -> None:
    client = Browser(make_console(facts, "a-long-token".__eq__), "http://console.example")
    for path in ("/", "/overview-fragment", "/static/console.css", "/nothing"):
        response = client.get(path)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Basic ")
        assert ODD not in response.text
    assert client.get("/", auth=("anybody", "another-token")).status_code == 401
    assert client.get("/", auth=("anybody", "a-long-token")).status_code == 200
    assert client.get("/", headers={"Authorization": "Bearer a-long-token"}).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !", "Basic " + base64.b64encode(b"\xff").decode(), "Digest x", "Bearer"],
)
def test_a_header_without_a_token_has_none(header: str) -> None:
    assert given_token(header) == ""


def test_a_name_may_only_look_like_loopback() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("localhost.example")
