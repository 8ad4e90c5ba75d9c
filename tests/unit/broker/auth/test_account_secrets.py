"""Who sees passwords and manages users: with `aclStrict` a super user only, also before authentication is
enabled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.replica_control import ReplicaControlCode
from epochmq_protocol.signatures import SessionCredentials
from tests.unit.broker.auth.kit import ENABLED, INNER, PROVIDERS, ROOT, allow, create_acl, create_user, signed
from tests.unit.broker.kit import command, running

DENIED = ResponseCode.NO_PERMISSION
PREPARED = {key: value for key, value in ENABLED.items() if not key.endswith("Enabled")}
"""The first step of the procedure that enables access control in a running cluster."""
READS = [
    command(RequestCode.AUTH_GET_USER, username="root"),
    command(RequestCode.AUTH_LIST_USER),
    command(ReplicaControlCode.GET_ALL_USERS_AND_ACLS),
]
FORGED = SessionCredentials("root", "guess")


def copy_of(request: Command) -> Command:
    return command(request.code, None, request.body, **(request.ext or {}))


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "as RocketMQ"])
@pytest.mark.parametrize("read", READS, ids=["get", "list", "copy"])
async def test_the_right_to_read_the_cluster_shows_no_password(
    tmp_path: Path, read: Command, strict: bool
) -> None:
    """A monitoring user could otherwise sign as the super user."""
    async with running(tmp_path, ENABLED | {"aclStrict": str(strict).lower()}) as bench:
        peer = bench.peer()
        monitor = allow(peer, "monitor", {"Cluster:TestCluster": ["Get"]})
        answer = peer.call(signed(copy_of(read), monitor))
        assert (b"root-secret" in answer.body) == (not strict)
        if read.code != ReplicaControlCode.GET_ALL_USERS_AND_ACLS:
            assert answer.code == 0
            assert b'"username":"root"' in answer.body
        for trusted in (ROOT, INNER):
            assert b"root-secret" in peer.call(signed(copy_of(read), trusted)).body


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "as RocketMQ"])
async def test_before_authentication_is_enabled_only_a_super_user_manages_users(
    tmp_path: Path, strict: bool
) -> None:
    """Otherwise a stranger adds a super user meanwhile, who stays."""
    async with running(tmp_path, PREPARED | {"aclStrict": str(strict).lower()}) as bench:
        peer = bench.peer()
        requests = [
            create_user("eve", "pw", "Super"),
            command(RequestCode.AUTH_UPDATE_USER, None, b'{"password":"x"}', username="root"),
            *READS,
            create_acl("root", ["Topic:x"], ["Pub"]),
            command(RequestCode.AUTH_DELETE_USER, username="inner"),
        ]
        for request in requests:
            for sender in (None, FORGED):
                attempt = copy_of(request)
                answer = peer.call(attempt if sender is None else signed(attempt, sender))
                assert (answer.code == DENIED) == strict or not strict, request.code
                assert (b"root-secret" in answer.body) <= (not strict)
        users = bench.broker.tables.auth.users
        assert ("eve" in users) == (not strict)
        assert ("inner" in users) == strict
        if strict:
            assert users["root"].password == "root-secret"
            assert peer.call(signed(create_user("shop", "pw"))).code == 0
            listed = json.loads(peer.call(signed(command(RequestCode.AUTH_LIST_USER))).body)
            assert [user["username"] for user in listed] == ["inner", "root", "shop"]


async def test_a_broker_without_super_users_takes_the_first_one_from_anybody(tmp_path: Path) -> None:
    """There is nobody who could sign."""
    async with running(tmp_path, PROVIDERS) as bench:
        peer = bench.peer()
        assert peer.call(create_user("alice", "pw")).code == 0
        assert b'"password":"pw"' in peer.call(command(RequestCode.AUTH_GET_USER, username="alice")).body
        assert peer.call(create_user("root", "root-secret", "Super")).code == 0
        assert peer.call(create_user("eve", "pw")).code == DENIED
        assert peer.call(signed(create_user("bob", "pw"))).code == 0
