"""An ACL of thousands of entries is encoded and changed in steps, with the results of single ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.auth.acl_encoding import json_steps
from epochmq_broker.auth.metadata import AuthMetadata
from epochmq_broker.auth.metadata_files import AuthFile
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo, to_json
from epochmq_protocol.bodies_in_turns import decode_steps
from epochmq_protocol.errors import RequestError
from epochmq_protocol.steps import finish


def acl(*resources: str, policy_type: str = "Custom") -> AclInfo:
    entries = [
        PolicyEntryInfo(resource=one, actions=["Pub", "Sub"], source_ips=["10.0.0.1"], decision="Allow")
        for one in resources
    ]
    return AclInfo(subject="User:alice", policies=[PolicyInfo(policy_type=policy_type, entries=entries)])


def topics(first: int, last: int) -> list[str]:
    return [f'Topic:"é{number}' for number in range(first, last)]


def metadata() -> AuthMetadata:
    made = AuthMetadata()
    made.create_user(UserInfo("alice", "secret"))
    return made


class Written:
    """The content of the file."""

    def __init__(self, tables: AuthMetadata) -> None:
        self.data = b""
        AuthFile(Path("config"), tables, self._write)

    def _write(self, path: Path, data: bytes) -> None:
        self.data = data


@pytest.mark.parametrize("count", [1, 7, 8, 100])
def test_an_acl_is_encoded_as_if_at_once(count: int) -> None:
    tables = metadata()
    file = Written(tables)
    for policy_type in ("Custom", "Default"):
        tables.merge_acl(acl(*topics(0, count), policy_type=policy_type), None)
    tables.merge_acl(acl(*topics(count // 2, count * 2)), None)
    assert finish(json_steps(tables.acls["alice"])) == to_json(tables.acls["alice"].info())
    assert file.data == fastjson.dumps(tables.content(), pretty=True)


def test_an_entry_that_stays_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = metadata()
    file = Written(tables)
    tables.merge_acl(acl(*topics(0, 100)), None)
    encoded: list[str] = []
    plain = fastjson.dumps

    def dumps(value: object, **how: bool) -> bytes:
        if isinstance(value, PolicyEntryInfo):
            encoded.append(value.resource or "")
        return plain(value, **how)

    monkeypatch.setattr(fastjson, "dumps", dumps)
    tables.merge_acl(acl("Topic:new"), None)
    tables.delete_acl("User:alice", None, topics(0, 1)[0])
    assert encoded == ["Topic:new"]
    monkeypatch.undo()
    assert file.data == plain(tables.content(), pretty=True)


def test_two_changes_at_the_same_time_are_both_made() -> None:
    tables = metadata()
    file = Written(tables)
    changes = [tables.merge_steps(acl(*topics(first, first + 200)), None) for first in (0, 100, 300)]
    while changes:
        for one in list(changes):
            before = tables.acls.get("alice")
            if next(one, StopIteration) is StopIteration:
                changes.remove(one)
            elif tables.acls.get("alice") is not before:
                raise AssertionError("a change that goes on was visible")
    assert {entry.resource.key for entry in tables.acls["alice"].policies[0].entries} == set(topics(0, 500))
    assert file.data == fastjson.dumps(tables.content(), pretty=True)


def test_a_user_who_is_deleted_meanwhile_gets_no_acl() -> None:
    tables = metadata()
    change = tables.merge_steps(acl(*topics(0, 200)), None)
    next(change)
    tables.delete_user("alice")
    with pytest.raises(RequestError, match="User:alice is not exist"):
        finish(change)
    assert not tables.acls


def test_a_large_acl_is_decoded_in_steps() -> None:
    info = acl(*topics(0, 3000))
    steps = decode_steps(AclInfo, to_json(info))
    assert sum(1 for _ in zip(range(5), steps, strict=False)) == 5
    assert finish(decode_steps(AclInfo, to_json(info))) == info
    without = b'{"subject":"User:%b"}' % (b"x" * 20_000)
    assert finish(decode_steps(AclInfo, without)).policies is None
