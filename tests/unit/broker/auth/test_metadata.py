"""How users and ACLs change, and how they survive."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from epochmq_broker.auth.metadata import AuthMetadata
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import AclInfo, UserInfo, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConfigError, RequestError
from epochmq_protocol.frame import Command
from tests.unit.broker.auth.kit import ENABLED, PROVIDERS, acl_body, allow, create_acl, create_user, signed
from tests.unit.broker.kit import command, running


def metadata(*names: str) -> AuthMetadata:
    """The tables of a broker with these users."""
    made = AuthMetadata()
    for name in names:
        made.create_user(UserInfo(name, "secret"))
    return made


def merge(tables: AuthMetadata, body: bytes) -> None:
    tables.merge_acl(from_json(AclInfo, body), None)


def rows(tables: AuthMetadata, name: str) -> list[tuple[str, str, str, str]]:
    """(policy type, resource, actions, decision) of a user's entries."""
    return [
        (p.type.value, e.resource.key, ",".join(a.value for a in e.actions), e.decision.value)
        for p in tables.acls[name].policies
        for e in p.entries
    ]


def test_an_entry_for_the_same_resource_is_replaced_and_others_are_added() -> None:
    tables = metadata("alice")
    merge(tables, acl_body("alice", ["Topic:a", "Topic:b*"], ["Pub"]))
    merge(tables, acl_body("alice", ["topic:a", "*"], ["sub", "nonsense"], "deny"))
    merge(tables, acl_body("alice", ["Topic:*"], ["All"], policy_type="default"))
    assert rows(tables, "alice") == [
        ("Custom", "Topic:a", "Sub", "Deny"),
        ("Custom", "Topic:b*", "Pub", "Allow"),
        ("Custom", "*", "Sub", "Deny"),
        ("Default", "Topic:*", "All", "Allow"),
    ]
    tables.delete_acl("User:alice", None, "Topic:a")
    tables.delete_acl("User:alice", "Default", "Topic:*")
    assert [row[1] for row in rows(tables, "alice")] == ["Topic:b*", "*"]
    tables.delete_acl("User:alice", None, "Nonsense:a")
    assert tables.acls == {}, "a resource that names nothing removes the whole ACL, as in RocketMQ"


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (acl_body("alice", ["Nonsense:a"], ["Pub"]), "The resource is null."),
        (acl_body("alice", ["Topic:a"], ["nonsense"]), "The actions is empty."),
        (acl_body("alice", ["Topic:a"], ["Pub", "Any"]), "The actions can not be Any."),
        (acl_body("alice", ["Topic:a"], ["Pub"], source_ips=["10.0.0.0/33"]), "The source ip is invalid."),
        (acl_body("alice", ["Topic:a"], ["Pub"], source_ips=[" "]), "The source ip is empty."),
        (acl_body("alice", ["Topic:a"], ["Pub"], "Perhaps"), "The decision is null or illegal."),
        (acl_body("alice", [], ["Pub"]), "The policies is empty."),
        (acl_body("bob", ["Topic:a"], ["Pub"]), "The subject of User:bob is not exist."),
    ],
)
def test_an_invalid_acl_is_rejected_in_rocketmqs_words(body: bytes, remark: str) -> None:
    tables = metadata("alice")
    with pytest.raises(RequestError) as caught:
        merge(tables, body)
    assert (caught.value.code, caught.value.remark) == (ResponseCode.NO_PERMISSION, remark)
    assert tables.acls == {}


def test_the_deletion_of_a_policy_leaves_the_other_one() -> None:
    tables = metadata("alice")
    merge(tables, acl_body("alice", ["Topic:a"], ["Pub"]))
    merge(tables, acl_body("alice", ["Topic:*"], ["All"], policy_type="Default"))
    tables.delete_acl("User:alice", "Default", None)
    assert rows(tables, "alice") == [("Custom", "Topic:a", "Pub", "Allow")]
    merge(tables, acl_body("alice", ["Topic:*"], ["All"], policy_type="Default"))
    tables.delete_acl("User:alice", "Custom", "")
    assert rows(tables, "alice") == [("Default", "Topic:*", "All", "Allow")]
    tables.delete_acl("User:alice", None, None)
    assert tables.acls == {}


def test_lists_are_filtered_by_subject_and_by_resource() -> None:
    tables = metadata("bob", "alice", "alicia")
    for name in tables.users:
        merge(tables, acl_body(name, ["Topic:orders", "Group:readers"], ["Sub"]))
    assert [user.username for user in tables.list_users("ali")] == ["alice", "alicia"]
    assert [acl.username for acl in tables.list_acls("bob", None)] == ["bob"]
    (only,) = tables.list_acls("User:bob", "Topic")
    assert [entry.resource.key for entry in only.policies[0].entries] == ["Topic:orders"]
    assert tables.list_acls(None, "Topic:x") == []
    assert tables.list_acls("bob", "bob") == [], "the second text is part of a resource, not of a user"


async def test_the_requests_of_mqadmin_have_rocketmqs_answers(tmp_path: Path) -> None:
    async with running(tmp_path, PROVIDERS) as bench:
        peer = bench.peer()

        def call(request: Command) -> tuple[int, str | None, bytes]:
            answer = peer.call(request)
            return answer.code, answer.remark, answer.body

        assert call(create_user("alice", "pw")) == (0, None, b"")
        assert call(create_user("alice", "pw")) == (16, "The user is existed", b"")
        assert call(create_user("bob", " ")) == (16, "password can not be blank", b"")
        assert call(create_user("", "pw")) == (29, "The username is blank", b"")
        assert call(create_user(" ", "pw")) == (16, "username can not be blank", b"")
        alice = b'{"password":"pw","userStatus":"enable","userType":"Normal","username":"alice"}'
        assert call(command(RequestCode.AUTH_GET_USER, username="alice")) == (0, None, alice)
        assert call(command(RequestCode.AUTH_GET_USER, username="bob")) == (0, None, b"")
        assert call(command(RequestCode.AUTH_GET_USER)) == (29, "The username is blank", b"")
        assert call(command(RequestCode.AUTH_LIST_USER)) == (0, None, b"[" + alice + b"]")
        update = command(RequestCode.AUTH_UPDATE_USER, None, b"{}", username="bob")
        assert call(update) == (16, "The user is not exist", b"")
        assert call(create_acl("alice", ["Topic:a"], ["Pub", "Sub"], "Allow", "10.0.0.0/8")) == (0, None, b"")
        acl = (
            b'{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow","resource":"Topic:a",'
            b'"sourceIps":["10.0.0.0/8"]}],"policyType":"Custom"}],"subject":"User:alice"}'
        )
        assert call(command(RequestCode.AUTH_GET_ACL, subject="User:alice")) == (0, None, acl)
        assert call(command(RequestCode.AUTH_LIST_ACL)) == (0, None, b"[" + acl + b"]")
        missing = call(command(RequestCode.AUTH_GET_ACL, subject="User:bob"))
        assert missing == (16, "The subject is not exist.", b"")
        empty = command(RequestCode.AUTH_CREATE_ACL, None, b"{}", subject="User:alice")
        assert call(empty)[:2] == (1, "The body of acl is null")
        assert call(command(RequestCode.AUTH_DELETE_ACL, subject="alice"))[:2] == (16, "The subject is null.")
        assert call(command(RequestCode.AUTH_DELETE_ACL, subject="User:alice")) == (0, None, b"")
        again = call(command(RequestCode.AUTH_DELETE_ACL, subject="User:alice"))
        assert again == (16, "The acl is not exist.", b"")
        assert call(command(RequestCode.AUTH_DELETE_USER, username="alice")) == (0, None, b"")
        assert call(command(RequestCode.AUTH_DELETE_USER, username="alice")) == (0, None, b"")
        assert call(command(RequestCode.AUTH_LIST_USER)) == (0, None, b"")


async def test_only_a_super_user_makes_changes_and_removes_super_users(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        alice = allow(peer, "alice", {"Cluster:*": ["All"]})

        def remark(request: Command) -> tuple[int, str | None]:
            answer = peer.call(signed(request, alice))
            return answer.code, answer.remark

        assert remark(create_user("bob", "pw")) == (0, None)
        assert remark(create_user("eve", "pw", "Super")) == (
            1,
            "The super user can only be create by super user",
        )
        rule = "The super user can only be update by super user"
        promote = command(RequestCode.AUTH_UPDATE_USER, None, b'{"userType":"Super"}', username="bob")
        assert remark(promote) == (1, rule)
        rename = command(RequestCode.AUTH_UPDATE_USER, None, b'{"password":"x"}', username="root")
        assert remark(rename) == (16, rule)
        assert remark(command(RequestCode.AUTH_DELETE_USER, username="root")) == (16, rule)
        assert peer.call(signed(create_user("eve", "pw", "Super"))).code == 0


async def test_users_and_acls_survive_a_kill_and_only_their_owner_can_read_the_file(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        alice = allow(bench.peer(), "alice", {"Topic:orders": ["Pub"]})
        pending = tmp_path / "config" / "auth.json.pending"
        assert pending.exists(), "a kill at this point loses nothing"
        assert stat.S_IMODE(pending.stat().st_mode) == 0o600
        before = bench.broker.tables.auth.content()
    file = tmp_path / "config" / "auth.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["users"][0]["username"] == "alice"
    async with running(tmp_path, ENABLED) as bench:
        assert bench.broker.tables.auth.content() == before
        denied = bench.peer().call(signed(command(RequestCode.AUTH_LIST_USER), alice))
        assert denied.code == ResponseCode.NO_PERMISSION


async def test_the_first_users_come_from_the_configuration_and_are_not_reset_by_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        users = bench.broker.tables.auth.users
        assert {name: user.is_super for name, user in users.items()} == {"root": True, "inner": True}
        update = command(RequestCode.AUTH_UPDATE_USER, None, b'{"password":"new"}', username="root")
        assert peer.call(signed(update)).code == 0
    async with running(tmp_path, ENABLED) as bench:
        assert bench.broker.tables.auth.users["root"].password == "new"


async def test_a_damaged_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "auth.json").write_bytes(fastjson.dumps({"acls": [{"subject": "nobody"}]}))
    with pytest.raises(Exception, match=r"auth\.json and its backup cannot be read"):
        async with running(tmp_path, ENABLED):
            pass


PLAIN_ACL = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
  - "%RETRY%groupB=PUB"
- accessKey: admin
  secretKey: 87654321
  admin: true
- accessKey: broken
"""


async def test_accounts_of_version_4_become_users_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "conf" / "acl" / "more").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    more = "accounts:\n- accessKey: admin\n  secretKey: first\n"
    (home / "conf" / "acl" / "more" / "one.yaml").write_text(more)
    monkeypatch.setenv("ROCKETMQ_HOME", str(home))
    settings = ENABLED | {"migrateAuthFromV1Enabled": "true"}
    async with running(tmp_path / "store", settings) as bench:
        tables = bench.broker.tables.auth
        assert tables.users["RocketMQ"].password == "12345678"
        assert tables.users["admin"].password == "first", "the folder comes before plain_acl.yml"
        assert "broken" not in tables.users
        assert rows(tables, "RocketMQ") == [
            ("Custom", "Topic:topicA", "All", "Deny"),
            ("Custom", "Topic:topicB", "Pub,Sub", "Allow"),
            ("Custom", "Topic:topicC", "Sub", "Allow"),
            ("Custom", "Group:groupA", "All", "Deny"),
            ("Custom", "Group:groupB", "Pub", "Allow"),
            ("Default", "Topic:*", "All", "Deny"),
            ("Default", "Group:*", "Sub", "Allow"),
        ]
        tables.delete_acl("User:RocketMQ", None, None)
    async with running(tmp_path / "store", settings) as bench:
        assert bench.broker.tables.auth.acls == {}, "an account that is a user already is left alone"
    (home / "conf" / "plain_acl.yml").write_text("accounts: [")
    with pytest.raises(ConfigError, match="migrateAuthFromV1Enabled"):
        async with running(tmp_path / "store", settings):
            pass
