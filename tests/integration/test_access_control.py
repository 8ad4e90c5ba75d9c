"""Access control in a replica group of real processes: three EpochMQ brokers under three controllers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.integration.up_run import GroupRun
from tests.support.cluster import NEVER_BUSY, Settings
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import SEND_MESSAGE_V2, send_header
from tests.support.process import wait_until
from tests.support.remoting import Response, call
from tests.support.replica_group import ReplicaGroup
from tests.support.signing import CHECKED, ROOT, signed

pytestmark = pytest.mark.timeout(900)

CREATE_USER, LIST_USER, CREATE_ACL = 3001, 3005, 3006
NO_PERMISSION = 16
ALICE = ("alice", "alice-secret")
SETTINGS: Settings = {
    **CHECKED,
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    # A replica that missed the controllers' notification would ask only after this time, an hour.
    "syncBrokerMetadataPeriod": 3_600_000,
}


def ask(member: Member, code: int, ext: dict[str, str], body: bytes = b"") -> Response:
    return call(member.address, code, signed(ext, body), body)


def names(member: Member) -> list[str]:
    """The users of a broker."""
    response = ask(member, LIST_USER, {})
    assert response.code == 0, response.remark
    return [user["username"] for user in json.loads(response.body)]


def knows(member: Member, user: str) -> bool:
    return user in names(member)


def send(member: Member, key: str, user: tuple[str, str] | None = None) -> Response:
    header = send_header(0, key)
    body = key.encode()
    return call(member.address, SEND_MESSAGE_V2, header if user is None else signed(header, body, user), body)


def test_a_group_with_access_control_replaces_its_master_and_keeps_users_and_acls(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=SETTINGS, octet=79)
    group.start()
    try:
        master = group.wait_master()
        body = b'{"password":"alice-secret","userType":"Normal"}'
        wait_until(
            lambda: ask(master, CREATE_USER, {"username": "alice"}, body).code == 0, what="alice is created"
        )
        entry = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}
        acl = {"subject": "User:alice", "policies": [{"entries": [entry]}]}
        policies = json.dumps(acl).encode()
        wait_until(
            lambda: ask(master, CREATE_ACL, {"subject": "User:alice"}, policies).code == 0,
            what="alice has an ACL",
        )
        for member in group.brokers:
            wait_until(partial(knows, member, "alice"), what=f"{member.name} knows alice")
        # As mqadmin does, which asks every broker of a cluster: the copy counts as made.
        for member in group.brokers:
            again = ask(member, CREATE_USER, {"username": "alice"}, body)
            assert (again.code == 0) == (member is not master), again.remark
        wait_until(lambda: send(master, "before", ALICE).code == 0, what="the master acknowledges")
        master.process.kill()
        successor = group.wait_master(other_than=master)
        wait_until(lambda: send(successor, "after", ALICE).code == 0, what="the successor acknowledges")
        assert send(successor, "unsigned").remark == "username cannot be null."
        assert send(successor, "forged", ("alice", "guess")).remark == "check signature failed."
        assert send(successor, "unknown", ("eve", "secret")).code == NO_PERMISSION
        master.start()
        group.wait_in_sync(3)
        assert names(master) == ["alice", "inner", "root"]
    finally:
        print(group.logs(6000))  # shown when the test failed
        group.kill()


GUARDED_GROUP = f"""\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {{name: orders}}
spec:
  replicas: 2
  brokerName: orders-a
  config:
    mappedFileSizeCommitLog: 33554432
    {"    ".join(f"{key}: {json.dumps(value)}{chr(10)}" for key, value in {**NEVER_BUSY, **CHECKED}.items())}
"""


def test_up_promote_and_drain_work_with_the_credentials_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GroupRun(tmp_path)
    run.file.write_text(GUARDED_GROUP)
    try:
        run.up()
        before = run.wait_master()["epoch"]
        replica = run.wait_slaves()[0]
        assert call(replica["address"], LIST_USER, {}).code == NO_PERMISSION
        run.ok("promote", f"orders/{replica['pod']}")
        run.until(lambda: (run.group()["masterEpoch"] or 0) > before, "the status shows another epoch")

        def rejects_unsigned() -> bool:
            unsigned = run.here("produce", "fruit", "--timeout", "3", stdin="apple\n")
            assert unsigned.returncode != 0
            return "username cannot be null." in unsigned.stderr

        run.until(rejects_unsigned, "a message without a signature is rejected")
        monkeypatch.setenv("EPOCHMQ_ACCESS_KEY", ROOT[0])
        monkeypatch.setenv("EPOCHMQ_SECRET_KEY", ROOT[1])
        run.ok("produce", "fruit", stdin="apple\n")
        assert "apple" in run.ok("consume", "fruit", "--count", "1")
        run.ok("drain", f"orders/{replica['pod']}")
        run.ok("drain", f"orders/{replica['pod']}", "--off")
    finally:
        print(run.logs())  # shown when the test failed
        run.here("down")
