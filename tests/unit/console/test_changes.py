"""The forms of `epochmq console --allow-changes`: what they ask for, and which requests are rejected."""

from __future__ import annotations

import re

import pytest

from epochmq.console.change_pages import FORM_BYTES_MAX, point_of
from epochmq.console.web_app import make_console
from epochmq.exits import UsageError
from epochmq.verbs.offset_reset import ResetPoint
from tests.unit.console.fake_facts import ODD, FakeFacts
from tests.unit.console.test_pages import HERE, Browser, Markup

TOKEN = "a-long-admin-token"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
RESET, RESEND = "/group/reset", "/dead-letter-group/resend"


@pytest.fixture
def facts() -> FakeFacts:
    return FakeFacts()


@pytest.fixture
def client(facts: FakeFacts) -> Browser:
    return Browser(make_console(facts, TOKEN.__eq__, allows_changes=True), HERE)


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a page, and what its selections and buttons would send."""
    fields: dict[str, str] = {}
    for tag, values in Markup(page).elements:
        if tag == "input" and values.get("type") == "hidden":
            fields[values["name"] or ""] = values.get("value") or ""
    return fields


def group_form(client: Browser) -> dict[str, str]:
    return hidden(client.get("/group", params={"name": ODD}, headers=ADMIN).text)


def test_a_reset_is_shown_before_it_is_made(client: Browser, facts: FakeFacts) -> None:
    form = group_form(client) | {"topic": ODD, "kind": "time", "value": "15m"}
    shown = client.request("POST", RESET, data=form, headers=ADMIN)
    assert shown.status_code == 200
    assert "It reads 5 messages again and skips 0." in Markup(shown.text).texts
    assert facts.changed == [], "nothing changes before it is confirmed"
    confirmed = hidden(shown.text)
    assert re.fullmatch(r"\d{13}", confirmed["value"]), "the time of the first page"

    done = client.request("POST", RESET, data=confirmed, headers=ADMIN)
    assert done.status_code == 303
    ((name, topic, point),) = facts.changed
    assert (name, topic, point) == (ODD, ODD, ResetPoint(time_ms=int(confirmed["value"])))
    assert "continues at the new offsets" in client.get(done.headers["location"], headers=ADMIN).text


@pytest.mark.parametrize("to", ["group", "topic"])
def test_dead_letters_are_sent_again_when_that_is_confirmed(
    client: Browser, facts: FakeFacts, to: str
) -> None:
    page = client.get("/dead-letter-group", params={"name": ODD}, headers=ADMIN).text
    form = hidden(page) | {"id": "X<1>", "to": to}
    shown = client.request("POST", RESEND, data=form, headers=ADMIN)
    assert facts.changed == []
    sent = client.request("POST", RESEND, data=hidden(shown.text), headers=ADMIN)
    assert sent.status_code == 200
    assert facts.changed == [(ODD, "X<1>", 100, to == "topic")]
    assert ODD in " ".join(Markup(sent.text).texts)


@pytest.mark.parametrize("path", [RESET, RESEND])
@pytest.mark.parametrize("token", ["", "x", None])
def test_a_form_of_another_page_changes_nothing(
    client: Browser, facts: FakeFacts, path: str, token: str | None
) -> None:
    form = group_form(client) | {"topic": ODD, "kind": "latest", "value": "", "confirmed": "true"}
    form.pop("form_token")
    if token is not None:
        form["form_token"] = token
    response = client.request("POST", path, data=form, headers=ADMIN)
    assert response.status_code == 403
    assert "not of this console process" in response.text
    assert facts.changed == []


def test_a_form_of_another_process_changes_nothing(client: Browser, facts: FakeFacts) -> None:
    other = Browser(make_console(facts, TOKEN.__eq__, allows_changes=True), HERE)
    form = group_form(other) | {"topic": ODD, "kind": "latest", "value": "", "confirmed": "true"}
    assert client.request("POST", RESET, data=form, headers=ADMIN).status_code == 403
    assert facts.changed == []


def test_a_form_without_the_admin_token_changes_nothing(client: Browser, facts: FakeFacts) -> None:
    form = group_form(client) | {"topic": ODD, "kind": "latest", "value": "", "confirmed": "true"}
    assert client.request("POST", RESET, data=form).status_code == 401
    assert facts.changed == []


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"x" * (FORM_BYTES_MAX + 1), "application/x-www-form-urlencoded"),
        (b"a=1&" * 100, "application/x-www-form-urlencoded"),
        (b"\xff", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"", ""),
    ],
)
def test_what_is_no_form_is_rejected(client: Browser, facts: FakeFacts, content: bytes, kind: str) -> None:
    headers = ADMIN | ({"Content-Type": kind} if kind else {})
    assert client.request("POST", RESET, content=content, headers=headers).status_code == 400
    assert facts.planned == []


@pytest.mark.parametrize(
    ("kind", "value", "point"),
    [
        ("latest", "", ResetPoint(end="latest")),
        ("earliest", "5", ResetPoint(end="earliest")),
        ("offset", "12", ResetPoint(offset=12)),
        ("delta", "-12", ResetPoint(delta=-12)),
        ("time", "1700000000000", ResetPoint(time_ms=1700000000000)),
    ],
)
def test_the_form_names_a_point(kind: str, value: str, point: ResetPoint) -> None:
    assert point_of(kind, value) == point


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("offset", "-1"),
        ("offset", ""),
        ("delta", "x"),
        ("delta", "--1"),
        ("offset", "9" * 19),
        ("x", "1"),
        ("time", "y"),
    ],
)
def test_a_wrong_point_is_named(kind: str, value: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        point_of(kind, value)


def test_changes_need_tokens(facts: FakeFacts) -> None:
    with pytest.raises(AssertionError, match="changes need a token"):
        make_console(facts, None, allows_changes=True)
