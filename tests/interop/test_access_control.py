"""RocketMQ's Java clients and `mqadmin` at a broker that checks users and permissions: who is served, and
with which code and remark the others are rejected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import CLUSTERS, KINDS
from tests.interop.java_cluster import java_broker
from tests.interop.java_env import compile_java, run_java
from tests.interop.mqadmin import MqAdmin, Step
from tests.support.cluster import Cluster
from tests.support.group_processes import Factory, our_broker
from tests.support.pair import Pair
from tests.support.process import wait_until
from tests.support.remoting import Response, call
from tests.support.signing import CHECKED, ROOT, signed

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

Report = dict[str, Any]


@pytest.fixture(scope="module", params=KINDS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose broker checks every request."""
    made = CLUSTERS[request.param](tmp_path_factory.mktemp(f"guarded-{request.param}"), broker=CHECKED)
    made.start()
    yield made
    made.abandon()


@pytest.fixture(scope="module")
def report(guarded: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What the Java program did and found."""
    args = [guarded.nameserver_address, guarded.broker_address, guarded.broker_name, *ROOT]
    done = run_java(
        "epochmq.interop.AuthScenarios",
        args,
        home=tmp_path_factory.mktemp("auth-scenarios"),
        classes=compile_java("AuthScenarios.java"),
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("@@ "))
    found: Report = json.loads(line.removeprefix("@@ "))
    return found


def denial(name: str, resource: str, why: str = "no matched policies.") -> str:
    """Code and remark of a request without permission; clients come from the loopback address."""
    return f"16 User:{name} has no permission to access {resource} from 127.0.0.1, {why}"


def test_every_way_to_send_needs_a_user_and_a_permission(report: Report) -> None:
    expected = {
        "unsigned": "16 username cannot be null.",
        "unknown": "16 User:nobody is not found.",
        "wrong password": "16 check signature failed.",
        "disabled": "16 User:bob is disabled.",
        "allowed": "SEND_OK",
        "foreign topic": denial("alice", "Topic:auth-invoices"),
        "denied": denial("carol", "Topic:auth-orders", "the decision is deny."),
        "everything else": "SEND_OK",
        "wrong address": denial("dave", "Topic:auth-orders"),
    }
    for name, result in expected.items():
        assert report[f"{name}: send"] == result, name
        assert report[f"{name}: batch"] == result, name
        assert report[f"{name}: one-way"] == "ok", "a one-way send never learns of its rejection"


def test_consumers_with_permission_get_what_was_allowed_and_retries_too(report: Report) -> None:
    stored = ["allowed", "one", "two", "allowed one-way"]
    assert report["allowed: pull"] == stored
    pushed = report["allowed: push"]
    (retried,) = (body for body in pushed if body.endswith(" again"))
    assert sorted(pushed) == sorted([*stored, retried])
    assert retried.removesuffix(" again") in stored


def test_an_administrator_manages_users_and_acls(report: Report) -> None:
    assert report["list users unsigned"] == "16 username cannot be null."
    for name in ("create topics", "create alice", "disable bob", "alice's acl", "carol's acl", "dave's acl"):
        assert report[name] == "ok", name
    assert report["create alice again"] == "16 The user is existed"
    assert report["acl of nobody"] == "16 The subject of User:nobody is not exist."
    assert report["acl of nothing"] == "16 The resource is null."
    assert report["acl from nowhere"] == "16 The source ip is invalid."
    users = [(user["username"], user["userType"], user["userStatus"]) for user in report["users"]]
    names = ("alice", "carol", "dave")
    assert users == [(name, "Normal", "enable") for name in names]
    entries = [
        {"actions": ["Pub", "Sub", "Get"], "decision": "Allow", "resource": "Topic:auth-orders"},
        {"actions": ["Sub"], "decision": "Allow", "resource": "Group:auth-readers*"},
    ]
    custom = {"entries": entries, "policyType": "Custom"}
    assert report["acl"] == {"policies": [custom], "subject": "User:alice"}
    assert [acl["subject"] for acl in report["acls"]] == ["User:alice", "User:carol"]
    assert [len(acl["policies"][0]["entries"]) for acl in report["acls"]] == [1, 1]


def test_a_normal_user_administers_what_the_acl_allows(report: Report) -> None:
    assert report["alice creates a user"] == denial("alice", "Cluster:TestCluster")
    assert report["alice creates a topic"] == denial("alice", "Topic:auth-mine")
    assert report["carol creates a super user"] == "1 The super user can only be create by super user"
    rule = "16 The super user can only be update by super user"
    assert report["carol deletes the administrator"] == rule


NOTHING = "nothing"
"""No permission is needed."""
TOPIC_FIELDS = {
    "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
RAW: list[tuple[int, dict[str, str], bytes, str]] = [
    (10, {"topic": "t", "group": "g"}, b"", "Topic:t"),
    (10, {"topic": "%RETRY%g"}, b"", "Group:g"),
    (10, {"topic": "%RETRY%g", "group": "other"}, b"", "Group:other"),
    (310, {"a": "g", "b": "t"}, b"", "Topic:t"),
    (320, {"a": "g", "b": "%RETRY%x"}, b"", "Group:g"),
    (11, {"topic": "t", "consumerGroup": "g"}, b"", "Topic:t"),
    (11, {"topic": "%RETRY%g", "consumerGroup": "g"}, b"", "Group:g"),
    (11, {}, b"", "Topic:null"),
    (12, {"topic": "t"}, b"", "Topic:t"),
    (14, {"topic": "t", "consumerGroup": "g", "queueId": "0"}, b"", "Topic:t"),
    (15, {"topic": "%RETRY%g", "consumerGroup": "g"}, b"", "Group:g"),
    (17, {"topic": "t"} | TOPIC_FIELDS, b"", "Topic:t"),
    (25, {}, b"", NOTHING),
    (26, {}, b"", NOTHING),
    (28, {}, b"", NOTHING),
    (29, {"topic": "t", "queueId": "0"}, b"", "Topic:t"),
    (30, {"topic": "t"}, b"", "Topic:t"),
    (34, {}, b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}', "Group:g"),
    (34, {}, b'{"clientID":"c","producerDataSet":[{"groupName":"g"}]}', NOTHING),
    (34, {}, b"", "parse"),
    (35, {"clientID": "c", "consumerGroup": "g"}, b"", "Group:g"),
    (35, {"clientID": "c", "producerGroup": "g"}, b"", NOTHING),
    (36, {"group": "g", "originTopic": "t"}, b"", "Group:g"),
    (37, {"topic": "t"}, b"", "Topic:t"),
    (38, {"consumerGroup": "g"}, b"", "Group:g"),
    (41, {}, b'{"consumerGroup":"g","clientId":"c","mqSet":[]}', "Group:g"),
    (42, {}, b'{"consumerGroup":"g","clientId":"c","mqSet":[]}', "Group:g"),
    (43, {}, b"", NOTHING),
    (201, {}, b"", NOTHING),
    (202, {"topic": "%RETRY%g"}, b"", "Group:g"),
    (203, {"consumerGroup": "g"}, b"", "Group:g"),
    (204, {"producerGroup": "g"}, b"", "Cluster:TestCluster"),
    (207, {"groupName": "g"}, b"", "Group:g"),
    (208, {"consumerGroup": "g", "topic": "t"}, b"", "Group:g"),
    (208, {"topicList": "t;u"}, b"", "Topic:t"),
    (215, {"topic": "t"}, b"", "Topic:t"),
    (222, {"topic": "t", "group": "g"}, b"", "Group:g"),
    (300, {"topic": "t"}, b"", "Topic:t"),
    (307, {"consumerGroup": "g"}, b"", "Group:g"),
    (308, {"filterGroups": "f,h", "compareGroup": "g", "topic": "t"}, b"", "Group:f"),
    (314, {"srcGroup": "s", "destGroup": "g", "topic": "t"}, b"", "Group:g"),
    (315, {"statsName": "n", "statsKey": "k"}, b"", "Cluster:TestCluster"),
    (351, {"topic": "t"}, b"", "Topic:t"),
    (352, {"group": "g"}, b"", "Group:g"),
    (906, {}, b"", "Cluster:TestCluster"),
    (3001, {"username": "x"}, b"{}", "Cluster:TestCluster"),
    (3005, {}, b"", "Cluster:TestCluster"),
    (3010, {}, b"", "Cluster:TestCluster"),
    (370, {"topic": "t", "recallHandle": "h"}, b"", "Topic:t"),
    (400, {}, b"{}", NOTHING),
    (200050, {"consumerGroup": "g", "topic": "t"}, b"", "Group:g"),
    (200051, {"consumerGroup": "g", "topic": "%RETRY%x"}, b"", "Group:g"),
    (200052, {"consumerGroup": "g", "topic": "t"}, b"", "Topic:t"),
    (200053, {"consumerGroup": "g", "topic": "t"}, b"", "Group:g"),
    (200054, {"consumerGroup": "g", "topic": "t"}, b"", "Group:g"),
    (200055, {"consumerGroup": "g", "topic": "t"}, b"", "Group:g"),
    (4711, {}, b"", "unsupported"),
]
"""(request code, ext fields, body, the resource that is asked for first)."""


def rejection(answer: Response) -> str:
    """What a user without any permission lacked."""
    if answer.code == 3:
        return "unsupported"
    remark = answer.remark or ""
    if answer.code != 16 or remark == "The user is existed":
        return NOTHING
    if remark == "parse authorization context error.":
        return "parse"
    found = remark.removeprefix("User:poor has no permission to access ")
    assert found != remark, remark
    return found.partition(" from ")[0]


CLUSTER = "Cluster:TestCluster"
STRICTER: dict[tuple[int, tuple[tuple[str, str], ...]], str] = {
    (10, (("topic", "%RETRY%g"), ("group", "other"))): "Group:g",
    (320, (("a", "g"), ("b", "%RETRY%x"))): "Group:x",
    (25, ()): CLUSTER,
    (26, ()): CLUSTER,
    (28, ()): CLUSTER,
    (43, ()): CLUSTER,
    (201, ()): CLUSTER,
    (400, ()): "Topic:",
}
"""Code and ext fields → the resource that EpochMQ's brokers ask for in place of RocketMQ's: the group of the
retry topic decides who may send to it, and with aclStrict every request needs a right."""


def test_each_request_asks_for_the_same_permission_as_in_rocketmq(
    guarded: Cluster, request: pytest.FixtureRequest
) -> None:
    is_ours = request.node.callspec.params["guarded"] not in ("java", "our-nameserver")
    poor = ("poor", "poor-secret")
    body = b'{"password":"poor-secret","userType":"Normal"}'
    made = call(guarded.broker_address, 3001, signed({"username": "poor"}, body, ROOT), body)
    assert made.code in (0, 16), made.remark
    differing = {}
    for code, ext, data, resource in RAW:
        answer = call(guarded.broker_address, code, signed(ext, data, poor), data)
        expected = STRICTER.get((code, tuple(ext.items())), resource) if is_ours else resource
        if (found := rejection(answer)) != expected:
            differing[code, tuple(ext.items())] = (expected, found, answer.remark)
        unsigned = call(guarded.broker_address, code, ext, data)
        assert (unsigned.code, unsigned.remark) == (16, "username cannot be null."), code
    assert differing == {}


def test_mqadmin_manages_users_with_the_credentials_of_its_file(guarded: Cluster, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: root-secret\n")
    admin = MqAdmin(guarded, tmp_path)
    try:

        def run(command: str) -> str:
            (outcome,) = admin.run([Step(command)])
            return f"{outcome.error}\n{outcome.out}".strip()

        assert "success" in run("createUser -b {broker} -u shop -p secret -t Normal")
        assert "success" in run("updateUser -b {broker} -u shop -s disable")
        assert "disable" in run("getUser -b {broker} -u shop")
        assert "shop" in run("listUser -b {broker}")
        assert "success" in run("createAcl -b {broker} -s User:shop -r Topic:*,Group:g -a Pub,Sub -d Allow")
        assert "success" in run("updateAcl -b {broker} -s User:shop -r Topic:* -a Sub -i 10.0.0.0/8 -d Deny")
        assert "Topic:*" in run("getAcl -b {broker} -s User:shop")
        assert "Group:g" in run("listAcl -b {broker} -s shop")
        assert "success" in run("copyUser -f {broker} -t {broker} -u shop")
        assert "success" in run("copyAcl -f {broker} -t {broker} -s User:shop")
        assert "success" in run("deleteAcl -b {broker} -s User:shop -r Group:g")
        assert "Group:g" not in run("getAcl -b {broker} -s User:shop")
        assert "success" in run("deleteUser -c {cluster} -u shop")
        assert "shop" not in run("listUser -b {broker}")
    finally:
        admin.close()


PAIRS = [
    pytest.param(java_broker, our_broker, id="ours-copies-java"),
    pytest.param(our_broker, java_broker, id="java-copies-ours"),
]


@pytest.mark.soak
@pytest.mark.parametrize(("master", "slave"), PAIRS)
def test_brokers_of_both_programs_serve_each_other_with_inner_credentials(
    tmp_path: Path, master: Factory, slave: Factory
) -> None:
    """A slave copies topics from a master that checks requests; users and ACLs stay those of each broker."""
    with Pair(tmp_path, [master, slave], broker=CHECKED, octet=80) as pair:
        fields = {"topic": "orders"} | TOPIC_FIELDS
        assert call(pair.master.address, 17, signed(fields)).code == 0
        assert call(pair.master.address, 3001, signed({"username": "x"}, USER), USER).code == 0
        member = pair.brokers[1]

        def copied() -> bool:
            found = call(member.address, 351, signed({"topic": "orders"}))
            assert found.code in (0, 17), found.remark
            return found.code == 0

        wait_until(copied, what="the slave has the topic")
        assert call(member.address, 3001, signed({"username": "x"}, USER), USER).code == 0


USER = b'{"password":"secret","userType":"Normal"}'
