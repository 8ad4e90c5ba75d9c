"""The forms of `epochmq console --allow-changes`: what they ask for, and which requests are rejected."""

from __future__ import annotations

import re

import pytest

from epochmq.console.change_pages import FORM_BYTES_MAX, point_of
from epochmq.console.web_app import make_console
from epochmq.exits import UsageError
from epochmq.verbs.offset_reset import ResetPoint
from epochmq.verbs.topic import TopicChange
from tests.unit.console.fake_facts import ODD, FakeFacts, received
from tests.unit.console.test_pages import HERE, Browser, Markup

TOKEN = "a-long-admin-token"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
RESET, RESEND = "/group/reset", "/dead-letter-group/resend"
CREATE, PROMOTE, PASSWORD = "/topics/create", "/broker/promote", "/access/password"


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


def test_a_dead_letter_is_shown_with_the_id_that_the_form_offers(client: Browser, facts: FakeFacts) -> None:
    facts.found = [received(b"dead", {"UNIQ_KEY": "7F00<1>"})]
    markup = Markup(client.get("/dead-letter-group", params={"name": ODD}, headers=ADMIN).text)
    assert markup.texts.count("7F00<1>") == 2, "in the form, and in the row of the message"


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


def test_a_topic_is_shown_before_it_is_created(client: Browser, facts: FakeFacts) -> None:
    form = hidden(client.get("/topics", headers=ADMIN).text)
    form |= {"name": "sales", "queues": "4", "type": "FIFO", "attributes": "a=1 b=2"}
    shown = client.request("POST", CREATE, data=form, headers=ADMIN)
    assert shown.status_code == 200
    assert facts.changed == []
    done = client.request("POST", CREATE, data=hidden(shown.text), headers=ADMIN)
    assert (done.status_code, done.headers["location"]) == (303, "/topic?name=sales")
    attributes = {"a": "1", "b": "2", "message.type": "FIFO"}
    assert facts.changed == [("sales", TopicChange(4, 4, attributes=attributes))]


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("queues", "0", "queues 0: expected 1 to 65535"),
        ("queues", "65536", "queues 65536: expected 1 to 65535"),
        ("queues", "x", "queues x: expected a whole number"),
        ("attributes", "a", "attributes a: expected KEY=VALUE"),
        ("attributes", "a=1 a=2", "a is given twice"),
    ],
)
def test_a_wrong_field_of_a_topic_is_named(
    client: Browser, facts: FakeFacts, field: str, value: str, problem: str
) -> None:
    form = hidden(client.get("/topics", headers=ADMIN).text)
    form |= {"name": "sales", "queues": "", "type": "", "attributes": "", field: value, "confirmed": "true"}
    response = client.request("POST", CREATE, data=form, headers=ADMIN)
    assert response.status_code == 400
    assert problem in " ".join(Markup(response.text).texts)
    assert facts.changed == []


def test_a_replica_is_promoted_when_that_is_confirmed(client: Browser, facts: FakeFacts) -> None:
    form = hidden(client.get("/broker", params={"name": ODD}, headers=ADMIN).text) | {"replica": f"{ODD}/1"}
    shown = client.request("POST", PROMOTE, data=form, headers=ADMIN)
    assert facts.changed == []
    done = client.request("POST", PROMOTE, data=hidden(shown.text), headers=ADMIN)
    assert done.status_code == 303
    assert facts.changed == [(f"{ODD}/1",)]
    page = client.get(done.headers["location"], headers=ADMIN).text
    assert f"{ODD}/1 is the master of epoch 2" in Markup(page).texts


def test_a_replica_of_another_group_is_not_promoted(client: Browser, facts: FakeFacts) -> None:
    form = hidden(client.get("/broker", params={"name": ODD}, headers=ADMIN).text)
    form |= {"replica": "other/0", "confirmed": "true"}
    assert client.request("POST", PROMOTE, data=form, headers=ADMIN).status_code == 400
    assert facts.changed == []


def test_a_password_is_set_and_never_shown(client: Browser, facts: FakeFacts) -> None:
    form = hidden(client.get("/access", headers=ADMIN).text)
    form |= {"name": "shop", "password": "new secret", "again": "new secret"}
    done = client.request("POST", PASSWORD, data=form, headers=ADMIN)
    assert (done.status_code, done.headers["location"]) == (303, "/access?done=shop")
    assert facts.changed == [("shop", "new secret")]
    page = client.get(done.headers["location"], headers=ADMIN).text
    assert "User shop has the new password." in page
    assert "new secret" not in page


@pytest.mark.parametrize(("password", "again"), [("a", "b"), (" ", " "), ("a\nb", "a\nb"), ("x" * 1025,) * 2])
def test_a_password_that_cannot_be_used_changes_nothing(
    client: Browser, facts: FakeFacts, password: str, again: str
) -> None:
    form = hidden(client.get("/access", headers=ADMIN).text)
    form |= {"name": "shop", "password": password, "again": again}
    response = client.request("POST", PASSWORD, data=form, headers=ADMIN)
    assert response.status_code == 400
    assert facts.changed == []


def test_a_bundle_for_support_needs_a_token(facts: FakeFacts) -> None:
    guarded = Browser(make_console(facts, TOKEN.__eq__), HERE)
    assert guarded.get("/support-bundle").status_code == 401
    found = guarded.get("/support-bundle", headers=ADMIN)
    assert found.content == b"bundle"
    assert "attachment" in found.headers["content-disposition"]
    assert "/support-bundle" in Markup(guarded.get("/about", headers=ADMIN).text).links()
    opened = Browser(make_console(facts, None), HERE)
    assert opened.get("/support-bundle").status_code == 404
    assert "/support-bundle" not in Markup(opened.get("/about").text).links()


@pytest.mark.parametrize("path", [RESET, RESEND, CREATE, PROMOTE, PASSWORD])
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
