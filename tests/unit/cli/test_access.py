"""Tests `epochmq user` and `epochmq acl` against the request handlers of real brokers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochmq.app import run
from epochmq.exits import ExitCode, UsageError
from epochmq.verbs import password_input
from epochmq.verbs.password_input import read_password
from epochmq_broker.auth.metadata import AuthMetadata
from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.requests.processors.auth_admin import AuthAdminProcessor
from epochmq_protocol.bodies import UserInfo
from tests.support.net import free_port, loopback
from tests.unit.broker.auth.kit import PROVIDERS
from tests.unit.cli.fake_brokers import FakeBrokers, Handlers

SECRET = "hush-hush"
MASTER, SLAVE = ("b", 0), ("b", 2)


class Brokers:
    """A master, and a slave that copies nothing, as RocketMQ's."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.users = {MASTER: AuthMetadata(), SLAVE: AuthMetadata()}
        self.cluster = FakeBrokers({name: self._handlers(name, settings) for name in self.users})

    def _handlers(self, name: tuple[str, int], settings: dict[str, str]) -> Handlers:
        live = LiveConfig(from_properties(settings).config)
        return AuthAdminProcessor(live, self.users[name], lambda: False).handlers()

    def passwords(self, user: str) -> list[str | None]:
        """The password at each broker; None where there is no such user."""
        found = [known.users.get(user) for known in self.users.values()]
        return [None if one is None else one.password for one in found]


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers(PROVIDERS)
    with made.cluster:
        yield made


class Typed:
    """Runs the command with an input that is no terminal."""

    def __init__(
        self, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._options = brokers.cluster.options
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, stdin: str = "", expected: int = 0) -> tuple[str, str]:
        """The standard output and the standard error."""
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run([*arguments, *self._options, "--timeout", "60"])
        out, err = self._capsys.readouterr()
        assert code == expected, err
        assert SECRET not in out + err, "no output has a password"
        return out, err

    def json(self, *arguments: str, stdin: str = "") -> Any:
        """The output in the format `json`."""
        return json.loads(self(*arguments, "-o", "json", stdin=stdin)[0])


@pytest.fixture
def typed(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(brokers, monkeypatch, capsys)


def test_a_user_is_created_at_every_broker_and_listed_without_the_password(
    brokers: Brokers, typed: Typed
) -> None:
    rows = typed.json("user", "create", "shop", stdin=f"{SECRET}\n")
    assert [(row["id"], row["result"]) for row in rows] == [(0, "created"), (2, "created")]
    assert brokers.passwords("shop") == [SECRET, SECRET]
    assert typed.json("user", "list") == [
        {"user": "shop", "type": "Normal", "status": "enable", "brokers": ["b:0", "b:2"]}
    ]
    assert typed("user", "list")[0].splitlines() == [
        "USER   TYPE     STATUS   BROKERS",
        "shop   Normal   enable   b:0,b:2",
    ]
    assert typed("user", "list", "-o", "name")[0] == "shop\n"
    assert typed.json("user", "list", "--filter", "hop")
    assert typed.json("user", "list", "--filter", "cart") == []


def test_a_user_of_a_master_is_not_created_again_and_one_of_a_slave_is_replaced(
    brokers: Brokers, typed: Typed
) -> None:
    brokers.users[SLAVE].create_user(UserInfo(username="shop", password="former"))
    typed("user", "create", "shop", "--type", "super", stdin=SECRET)
    assert brokers.passwords("shop") == [SECRET, SECRET]
    _, error = typed("user", "create", "shop", stdin="other", expected=1)
    assert "user shop exists at b; change it with `epochmq user update shop`" in error
    assert brokers.passwords("shop") == [SECRET, SECRET]


def test_a_change_keeps_what_it_does_not_name(brokers: Brokers, typed: Typed, tmp_path: Path) -> None:
    typed("user", "create", "shop", stdin=SECRET)
    typed("user", "update", "shop", "--status", "DISABLE")
    (row,) = typed.json("user", "list")
    assert (row["type"], row["status"]) == ("Normal", "disable")
    assert brokers.passwords("shop") == [SECRET, SECRET]
    file = tmp_path / "password"
    file.write_text("new one\n")
    file.chmod(0o600)
    assert typed("user", "update", "shop", "--password-file", str(file))[1] == ""
    assert brokers.passwords("shop") == ["new one", "new one"]
    typed("user", "update", "shop", "--new-password", stdin=SECRET)
    assert brokers.passwords("shop") == [SECRET, SECRET]
    brokers.users[SLAVE].delete_user("shop")
    rows = typed.json("user", "update", "shop", "--type", "Super")
    assert [row["result"] for row in rows] == ["changed", "no such user"]
    assert (
        "user nobody does not exist at b"
        in typed("user", "update", "nobody", "--type", "Super", expected=1)[1]
    )


def test_a_user_is_deleted_everywhere_after_a_question(brokers: Brokers, typed: Typed) -> None:
    typed("user", "create", "shop", stdin=SECRET)
    assert "repeat the command with --yes" in typed("user", "delete", "shop", expected=2)[1]
    assert brokers.passwords("shop") == [SECRET, SECRET]
    typed("user", "delete", "shop", "--yes")
    assert brokers.passwords("shop") == [None, None]
    assert "user shop does not exist" in typed("user", "delete", "shop", "--yes", expected=1)[1]


@pytest.mark.long
def test_entries_of_an_acl_are_created_changed_and_deleted(brokers: Brokers, typed: Typed) -> None:
    typed("user", "create", "shop", stdin=SECRET)
    create = ("acl", "create", "User:shop", "--resource", "topic:orders", "--resource", "Group:g*")
    typed(*create, "--action", "pub,Sub", "--source-ip", "10.0.0.0/8")
    listed = typed.json("acl", "list", "--user", "shop")
    assert listed[0] == {
        "user": "shop",
        "policy": "Custom",
        "resource": "Topic:orders",
        "actions": ["Pub", "Sub"],
        "sourceIps": ["10.0.0.0/8"],
        "decision": "Allow",
        "brokers": ["b:0", "b:2"],
    }
    assert [row["resource"] for row in listed] == ["Topic:orders", "Group:g*"]
    assert "has an entry for Topic:orders" in typed(*create, "--action", "All", expected=1)[1]
    typed("acl", "update", "shop", "--resource", "Topic:orders", "--action", "Pub", "--decision", "deny")
    (changed,) = typed.json("acl", "list", "--resource", "orders")
    assert (changed["actions"], changed["decision"]) == (["Pub"], "Deny")
    _, error = typed("acl", "update", "shop", "--resource", "Topic:x", "--action", "Pub", expected=1)
    assert "has no entry for Topic:x at b; there is: Group:g*, Topic:orders" in error
    typed("acl", "delete", "shop", "--resource", "Topic:orders", "--yes")
    assert [row["resource"] for row in typed.json("acl", "list")] == ["Group:g*"]
    typed("acl", "delete", "shop", "--yes")
    assert typed.json("acl", "list") == []
    assert "user shop has no ACL" in typed("acl", "delete", "shop", "--yes", expected=1)[1]


def test_a_broker_that_keeps_no_users_names_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Brokers({})
    with made.cluster:
        error = Typed(made, monkeypatch, capsys)("user", "list", expected=1)[1]
    assert "authenticationMetadataProvider" in error
    assert "docs/access-control.md" in error


def test_a_list_names_a_broker_that_does_not_respond(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Brokers(PROVIDERS)
    host = loopback(55)
    made.cluster.addresses["b", 3] = absent = f"{host}:{free_port(host)}"
    with made.cluster:
        made.users[MASTER].create_user(UserInfo(username="shop", password=SECRET))
        out, error = Typed(made, monkeypatch, capsys)("user", "list", "-o", "name", expected=1)
    assert (out, error.count("\n")) == ("shop\n", 1), error
    assert absent in error


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["user", "create", "a b"], "USER 'a b': expected a name without spaces"),
        (["user", "create", "shop", "--type", "Admin"], "--type Admin: expected Normal or Super"),
        (["user", "create", "shop", "--password", SECRET], "No such option: --password"),
        (["user", "update", "shop"], "nothing to change"),
        (["user", "update", "shop", "--status", "off"], "--status off: expected enable or disable"),
        (["acl", "create", "shop", "--resource", "orders", "--action", "Pub"], "--resource orders: expected"),
        (["acl", "create", "shop", "--resource", "*", "--action", "Any"], "--action Any: expected Pub or"),
        (
            ["acl", "create", "shop", "--resource", "*", "--action", "Pub", "--source-ip", "10.0.0"],
            "--source-ip 10.0.0: expected",
        ),
        (
            ["acl", "create", "shop", "--resource", "*", "--action", "Pub", "--decision", "maybe"],
            "--decision maybe: expected Allow or Deny",
        ),
        (["acl", "create", "shop", "--action", "Pub"], "--resource"),
        (["acl", "delete", "shop", "--policy", "custom"], "--policy needs --resource"),
    ],
)
def test_a_wrong_argument_is_rejected_before_a_broker_is_asked(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--nameserver", "127.0.0.1:1"]) == ExitCode.USAGE
    output = capsys.readouterr()
    assert problem in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "there is none"),
        (b"  \n", "there is none"),
        (b"one\ntwo\n", "in one line"),
        (b"\xff", "in UTF-8"),
        (b"x" * 1025, "at most 1024 bytes"),
    ],
)
def test_a_file_without_one_password_is_rejected(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        read_password(file, "shop")
    with pytest.raises(UsageError, match="nowhere cannot be read"):
        read_password(tmp_path / "nowhere", "shop")


def test_a_password_file_that_others_may_read_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\r\n")
    file.chmod(0o644)
    assert read_password(file, "shop") == SECRET
    assert f"chmod 600 {file}" in capsys.readouterr().err
    file.chmod(0o600)
    assert read_password(file, "shop") == SECRET
    assert capsys.readouterr().err == ""


def test_the_terminal_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [SECRET, SECRET, SECRET, "typo"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(password_input.getpass, "getpass", lambda prompt: answers.pop(0))
    assert read_password(None, "shop") == SECRET
    with pytest.raises(UsageError, match="differ"):
        read_password(None, "shop")
