"""Tests a group in daily use on a real cluster, with the operator in its pod and the chart's own rights: its
configuration and its image change, an image does not exist, it scales up and down, topics and users are
resources, and it is deleted."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.chart import CHART, TAKE, WAIT, values
from tests.kubernetes.conftest import namespace_for
from tests.kubernetes.messages import received, send
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups
from tests.kubernetes.pod_restarts import restarts
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import image_name
from tests.support.remoting import Response, call
from tests.support.signing import CHECKED
from tests.support.stalls import unless_stalled

THREE: dict[str, Any] = {"replicas": 3, "controllerGroup": "orders"}
USERS_KEPT = {key: value for key, value in CHECKED.items() if key.endswith("MetadataProvider")}
"""The configuration of brokers that keep users and check nobody."""
GET_TOPIC, DELETE_TOPIC, GET_USER, DELETE_USER, GET_ACL = 351, 215, 3004, 3003, 3009
TOPIC_NOT_EXIST = 17


@pytest.fixture(scope="module")
def groups(cluster: Cluster) -> Iterator[Groups]:
    """The groups of a namespace that has a release of the chart, and a ready group `orders`."""
    release = f"epochmq-{uuid.uuid4().hex[:6]}"
    with namespace_for(cluster, "daily-use") as namespace:
        chosen = values(namespace, replicas="1", readSecrets="{shop}")
        cluster.helm("install", release, str(CHART), TAKE, *chosen, *WAIT)
        try:
            made = Groups(cluster, namespace)
            made.apply("ControllerGroup", "orders", {"replicas": 1})
            made.apply("BrokerGroup", "orders", {**THREE, "config": USERS_KEPT})
            made.ready("orders", 3)
            yield made
        finally:
            cluster.helm("uninstall", release, "--namespace", namespace, "--ignore-not-found", "--wait")


def revisions(groups: Groups) -> set[str]:
    """The revisions of the templates of the group's brokers."""
    return {pod.metadata.labels["controller-revision-hash"] for pod in brokers(groups)}


def brokers(groups: Groups) -> list[Any]:
    """The pods of the group's brokers."""
    found = groups.cluster.core.list_namespaced_pod(
        groups.namespace, label_selector="epochmq.io/component=broker"
    )
    return list(found.items)


def ask_master(groups: Groups, code: int, **ext: str) -> Response:
    """Sends a request to the group's master."""
    cluster = groups.cluster
    master = groups.status("BrokerGroup", "orders")["master"]
    address = cluster.core.read_namespaced_pod(master, groups.namespace).status.pod_ip
    return call(f"127.0.0.1:{cluster.forward(address, 10911)}", code, ext)


def updated(groups: Groups, count: int) -> dict[str, Any]:
    """Waits until this number of restarts was reported and the group is ready; returns its status."""
    groups.cluster.wait(
        lambda: len(restarts(groups)) == count and groups.status("BrokerGroup", "orders")["phase"] == "Ready",
        READY_TIMEOUT_S,
        f"the group is ready after {count} restarts",
    )
    return groups.status("BrokerGroup", "orders")


def test_topics_and_users_follow_their_resources(groups: Groups) -> None:
    """They are created, restored after somebody deleted them in the brokers, changed, and deleted."""
    cluster, place = groups.cluster, f"--namespace={groups.namespace}"
    password = base64.b64encode(b"first-password").decode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "shop"},
        "data": {"password": password},
    }
    cluster.apply(secret, namespace=groups.namespace)
    both = {"brokerGroups": ["orders"], "deletionPolicy": "Delete"}
    entry = {"resource": "Topic:payments", "actions": ["Pub"]}
    user = {**both, "passwordSecret": {"name": "shop"}, "acl": [entry]}

    def put(kind: str, name: str, spec: dict[str, Any]) -> None:
        meta = {"name": name, "namespace": groups.namespace}
        cluster.apply({"apiVersion": "epochmq.io/v1alpha1", "kind": kind, "metadata": meta, "spec": spec})
        generation = groups.get(f"{kind}.epochmq.io", name)["metadata"]["generation"]
        groups.wait(f"{kind}.epochmq.io", name, phase="Ready", observedGeneration=generation)

    put("Topic", "payments", {**both, "queues": 4, "messageType": "FIFO"})
    put("User", "shop", user)
    topic = json.loads(ask_master(groups, GET_TOPIC, topic="payments").body)
    assert (topic["writeQueueNums"], topic["attributes"]) == (4, {"message.type": "FIFO"})
    assert json.loads(ask_master(groups, GET_USER, username="shop").body)["username"] == "shop"
    assert b"payments" in ask_master(groups, GET_ACL, subject="User:shop").body

    assert ask_master(groups, DELETE_TOPIC, topic="payments").code == 0
    assert ask_master(groups, DELETE_USER, username="shop").code == 0

    def restored() -> bool:
        topic, user = (
            ask_master(groups, GET_TOPIC, topic="payments"),
            ask_master(groups, GET_USER, username="shop"),
        )
        return topic.code == 0 and bool(user.body)

    cluster.wait(restored, READY_TIMEOUT_S, "the topic and the user are restored")
    put("Topic", "payments", {**both, "queues": 6, "messageType": "FIFO"})
    assert json.loads(ask_master(groups, GET_TOPIC, topic="payments").body)["writeQueueNums"] == 6

    cluster.kubectl("delete", "topics.epochmq.io/payments", "users.epochmq.io/shop", place, "--timeout=240s")
    assert ask_master(groups, GET_TOPIC, topic="payments").code == TOPIC_NOT_EXIST
    assert not ask_master(groups, GET_USER, username="shop").body


def test_a_group_is_updated_scaled_and_deleted_by_the_operator_of_the_chart(
    groups: Groups, tmp_path: Path
) -> None:
    """An update restarts the replicas and then the master, and a bad one stops at the first pod. Only a
    master that a busy machine starves loses its mastership more than once."""
    cluster, place = groups.cluster, f"--namespace={groups.namespace}"
    config = dict(USERS_KEPT)

    def roll(attempt: int) -> None:
        before, old = groups.ready("orders", 3), revisions(groups)
        reported = len(restarts(groups))
        config["fileReservedTime"] = str(48 + attempt)
        groups.apply("BrokerGroup", "orders", {**THREE, "config": config})
        after = updated(groups, reported + 3)
        assert len(revisions(groups)) == 1
        assert revisions(groups) != old
        messages = restarts(groups)[reported:]
        names = [message.split()[1].rstrip(":") for message in messages]
        assert names[2] == before["master"]
        assert sorted(names) == [f"orders-broker-{ordinal}" for ordinal in range(3)]
        assert all("the configuration changes: fileReservedTime" in message for message in messages)
        assert after["masterEpoch"] == before["masterEpoch"] + 1

    def stopped() -> bool:
        return "does not run" in groups.condition("BrokerGroup", "orders", "Ready").get("message", "")

    def stop_and_correct(attempt: int) -> None:
        before, reported = groups.ready("orders", 3), len(restarts(groups))
        bad = f"example.org/no-such:image-{attempt}"
        groups.apply("BrokerGroup", "orders", {**THREE, "config": config, "image": bad})
        cluster.wait(stopped, READY_TIMEOUT_S, "the first pod cannot run")
        assert len(restarts(groups)) == reported + 1
        send(groups, "orders", [f"c{attempt}"])
        bodies.append(f"c{attempt}")
        later = image_name("broker").replace(":", f":later-{attempt}-")
        cluster.tag_image(image_name("broker"), later)
        groups.apply("BrokerGroup", "orders", {**THREE, "config": config, "image": later})
        corrected = updated(groups, reported + 4)
        assert {pod.spec.containers[0].image for pod in brokers(groups)} == {later}
        assert corrected["masterEpoch"] == before["masterEpoch"] + 1

    bodies = ["a", "b"]
    send(groups, "orders", ["a"])
    unless_stalled(tmp_path, roll)
    send(groups, "orders", ["b"])
    unless_stalled(tmp_path, stop_and_correct)
    reported = len(restarts(groups))

    for count in (5, 3):
        cluster.kubectl("scale", "brokergroup/orders", f"--replicas={count}", place)
        assert len(groups.ready("orders", count)["syncStateSet"]) == count
        cluster.wait(lambda count=count: len(brokers(groups)) == count, what=f"there are {count} brokers")
    assert len(restarts(groups)) == reported
    assert received(groups, "orders", len(bodies)) == bodies

    cluster.kubectl("delete", "brokergroup", "orders", place, "--timeout=240s")
    cluster.wait(lambda: not brokers(groups), READY_TIMEOUT_S, "the brokers are gone")
    assert not groups.get("StatefulSet", "orders-broker")
    assert groups.get("PersistentVolumeClaim", "store-orders-broker-0")
    account = f"system:serviceaccount:{groups.namespace}:"
    assert groups.writes()
    assert all(one["user"]["username"].startswith(account) for one in groups.writes())
