"""The commands of docs/operators-day.md, in their order, as people type them, beside a group of replicas."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.seeded_run import WITH_USERS, produce_dead_letters
from tests.integration.up_run import COMMAND, TIMEOUT_S, GroupRun
from tests.support.command import patience
from tests.support.process import wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators-day.md"
LINES = re.findall(r"^    epochmq (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
ID = re.compile(r"\b[0-9A-F]{32}\b")
EXPECTED = {
    "topic create payments": "cleanup.policy=DELETE.*message.type=FIFO",
    "topic describe payments": "payments.*message.type=FIFO",
    "message peek": "order-4711.*[0-9A-F]{32}.*the order",
    "message get": "the order",
    "group lag": "no member is connected to read the [0-9]+ messages.*epochmq client list",
    "group describe": "Members.*no member is connected",
    "group reset billing --topic sales --time 'yesterday 14:00' --dry-run": "nothing was changed",
    "group reset billing --topic sales --time 'yesterday 14:00' --yes": "continues at the new offsets",
    "dlq list billing": "ID.*[0-9A-F]{32}.*dead 2",
    "dlq resend": "SEND_OK.*%RETRY%billing",
    "promote": "orders-broker-1 .* is (already )?the master",
    "drain orders/0 --off": "orders-broker-0 is in the SyncStateSet",
    "drain": "orders-broker-0 has left the SyncStateSet",
    "user update": "shop.*changed",
    "client list --group": "billing +consumer",
    "client list": "billing +consumer",
    "support-bundle": "help.tar.gz: [0-9]+ files, without secrets",
    "status": r"fenced: .*; next: epochmq fence orders/orders-broker-1 --off",
    "logs": r"orders-broker-1.*fenced",
}
"""What a command prints, by its begin; the first one that fits counts."""


class OperatorsDay:
    """The group, and the files of the person who types."""

    def __init__(self, home: Path) -> None:
        self.run = GroupRun(home)
        self.run.state = home / ".epochmq"
        self.home = home
        self.ids: dict[str, str] = {}

    def prepare(self) -> None:
        """Everything that the page takes for granted."""
        run = self.run
        run.file.write_text(WITH_USERS)
        run.up()
        run.ok("topic", "create", "sales", "--queues", "2")
        run.ok("topic", "create", "%DLQ%billing", "--queues", "1")
        asyncio.run(produce_dead_letters(run.group()["nameservers"]))
        self.ids["message"] = ID.findall(run.ok("produce", "sales", "the order", "--key", "order-4711"))[0]
        run.ok("produce", "sales", stdin="".join(f"order {n}\n" for n in range(9)))
        run.ok("consume", "sales", "--group", "billing", "--count", "4")
        run.ok("user", "create", "shop", stdin="secret-of-shop")
        password = self.home / "shop.password"
        password.write_text("another-secret-of-shop\n")
        password.chmod(0o600)
        self.ids["dlq"] = json.loads(run.ok("dlq", "list", "billing", "-o", "json"))[0]["msgId"]

    def type(self, line: str) -> str:
        """Types a line of the page; what it prints."""
        words = shlex.split(line)
        words = [self.ids[words[0]] if ID.fullmatch(word) else word for word in words]
        done = subprocess.run(
            [*COMMAND, *words, *patience(words)],
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"epochmq {line} ended with {done.returncode}:\n{printed}"
        return printed


def expected(line: str) -> str:
    """The pattern of what a line prints."""
    return next(pattern for begin, pattern in EXPECTED.items() if line.startswith(begin))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorsDay]:
    day = OperatorsDay(tmp_path_factory.mktemp("day"))
    try:
        day.prepare()
        yield day
    finally:
        day.run.here("down")


def test_every_task_of_the_page_has_a_tested_command() -> None:
    sections = re.findall(r"^## (.+)\n\n    epochmq ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(sections) == 10
    assert all(expected(line) for line in LINES)


def test_the_commands_of_the_page_do_what_it_says(day: OperatorsDay) -> None:
    for line in LINES:
        if line.startswith("client list"):
            check_clients(day, line)
            continue
        if line == "status":
            day.run.ok("fence", "orders/1")
            rejected = day.run.here("produce", "sales", "while", "--timeout", "3")
            assert rejected.returncode == 1
            assert "it stores no messages until it is unfenced" in rejected.stderr
        check(day, line)


def check(day: OperatorsDay, line: str) -> None:
    """Types a line until it prints what the page says: a broker that is starved may be late to answer."""
    printed: list[str] = []

    def fits() -> bool:
        printed[:] = [day.type(line)]
        return re.search(expected(line), printed[0], re.DOTALL) is not None

    try:
        if line.startswith(("status", "logs", "group", "client")):
            wait_until(fits, what=f"epochmq {line} prints {expected(line)!r}")
        else:
            assert fits(), expected(line)
    except AssertionError as error:
        error.add_note("\n".join(printed))
        raise


def check_clients(day: OperatorsDay, line: str) -> None:
    """The same while a consumer of the group runs."""
    consumer = subprocess.Popen(
        [*COMMAND, "consume", "sales", "--group", "billing", "--state", str(day.run.state)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        check(day, line)
    finally:
        consumer.terminate()
        consumer.wait(TIMEOUT_S)
