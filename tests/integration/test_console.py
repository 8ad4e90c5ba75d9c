"""`epochmq console` beside a group under `epochmq up`: what its pages show over HTTP while the group lives,
and after its master was killed."""

from __future__ import annotations

import html
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.console_process import FACT, Console
from tests.integration.up_run import THREE_REPLICAS, UpRun, alive
from tests.support.process import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpRun]:
    run = UpRun(tmp_path_factory.mktemp("console"), "orders")
    run.file.write_text(THREE_REPLICAS)
    try:
        run.up()
        yield run
    finally:
        run.here("down")


@pytest.fixture(scope="module")
def console(run: UpRun) -> Iterator[Console]:
    console = Console("--state", str(run.state))
    yield console
    console.stop()


def master(run: UpRun) -> dict[str, Any] | None:
    """The replica that leads the group, if one does."""
    (group,) = run.status()["brokerGroups"]
    return next((one for one in group["replicas"] if one["role"] == "master" and one["pid"]), None)


def test_a_produced_message_is_on_the_pages(run: UpRun, console: Console) -> None:
    assert "There is no such topic on this page." in console.page("/topics")
    run.ok("topic", "create", "sales", "--queues", "2")
    sent = run.ok("produce", "sales", "<b>hello</b>", "--keys", "k1", "--property", "odd=<i>", "-o", "json")
    (message_id,) = re.findall(r'"msgId": *"(\w+)"', sent)

    assert ">sales</a>" in console.page("/topics")
    topic = console.client.get("/topic", params={"name": "sales", "key": "k1"}).text
    assert "&lt;b&gt;hello&lt;/b&gt;" in topic
    assert "<b>" not in topic
    (link,) = re.findall(r'href="(/message\?[^"]*offset=[^"]*)"', topic)
    by_place = console.page(html.unescape(link))
    by_id = console.page("/message", topic="sales", id=message_id)
    assert by_place == by_id
    assert "<b>hello</b>" in by_id
    assert "<dt>odd</dt><dd><i></dd>" in by_id

    offset_id = dict(FACT.findall(by_id))["offsetMsgId"]
    assert f"Message {message_id}" in console.page("/message", topic="sales", id=offset_id)
    assert "has no message" not in console.page("/topic", name="sales", since="1h")


def test_the_lag_of_a_consumer_group_is_on_the_pages(run: UpRun, console: Console) -> None:
    run.ok("topic", "create", "lagging", "--queues", "1")
    run.ok("produce", "lagging", stdin="".join(f"{n}\n" for n in range(10)))
    run.ok("consume", "lagging", "--group", "behind", "--count", "4")
    assert ">behind</a>" in console.page("/groups")
    facts = dict(FACT.findall(console.page("/group", name="behind")))
    assert (facts["lag"], facts["members"]) == ("6", "0")


def test_what_does_not_exist_is_said(console: Console) -> None:
    assert "topic gone does not exist" in console.page("/topic", 404, name="gone")
    assert "consumer group gone does not exist" in console.page("/group", 404, name="gone")
    assert "no message has the id 00" in console.page("/message", 404, topic="lagging", id="00")


def test_a_console_of_nameservers_shows_the_same_group(run: UpRun) -> None:
    (group,) = run.status()["brokerGroups"]
    other = Console("--nameserver", ";".join(group["nameservers"]))
    try:
        page = other.page("/")
        for title in ("Brokers", "Replica groups", "Controllers"):
            assert f">{title} <" in page
        assert "orders-a" in page
        assert ">lagging</a>" in other.page("/topics")
    finally:
        other.stop()


def test_the_new_master_is_on_the_overview(run: UpRun, console: Console) -> None:
    shown: list[tuple[dict[str, Any], dict[str, str]]] = []

    def both_name_it() -> bool:
        old, facts = master(run), console.facts()
        if old is None or "epoch" not in facts or facts["master"] != old["pod"]:
            return False
        shown.append((old, facts))
        return True

    wait_until(both_name_it, timeout_s=2 * PATIENCE_S, what="status and overview name the same master")
    ((old, before),) = shown
    os.kill(old["pid"], signal.SIGKILL)
    wait_until(lambda: not alive(old["pid"]), what="the killed master is gone")

    def led_anew() -> bool:
        now = console.facts()
        return now.get("master", "none") != "none" and int(now.get("epoch", "0")) > int(before["epoch"])

    wait_until(led_anew, timeout_s=2 * PATIENCE_S, what="the overview names a new master")
    wait_until(
        lambda: console.client.get("/topic", params={"name": "lagging"}).status_code == 200,
        timeout_s=2 * PATIENCE_S,
        what="the topic is shown again",
    )


def test_a_run_that_ended_is_said(tmp_path: Path) -> None:
    console = Console("--state", str(tmp_path / "nothing"))
    try:
        for path in ("/", "/overview-fragment"):
            assert "nothing runs in" in console.page(path, 503)
        assert "nothing runs in" in console.page("/topics", 400)
    finally:
        console.stop()


def test_another_address_is_served_with_a_token_only(run: UpRun, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-good-length\n")
    console = Console("--state", str(run.state), "--token-file", str(file))
    try:
        assert console.client.get("/topics").status_code == 401
        assert console.client.get("/topics", auth=("me", "a-token-of-good-length")).status_code == 200
    finally:
        console.stop()
