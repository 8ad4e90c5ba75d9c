"""Topics and Users of the operator on real brokers with access control: three EpochMQ brokers under three
controllers, and the operator's reconciler with a simulated API server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from epochmq_operator.kube.api import object_path
from epochmq_operator.kube.broker_client import BrokerClient
from epochmq_operator.kube.entity_reconciler import EntityReconciler
from epochmq_operator.kube.liveness import Liveness
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.reconciler import ReconcilerDependencies
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.secret_reader import SecretReader
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL
from epochmq_operator.plans.objects import Manifest, Ref, metadata
from epochmq_operator.plans.reported_states import ReportedBrokerState
from epochmq_operator.pod_rendering import BROKER_PORT
from tests.support.cluster import Settings
from tests.support.fake_api_server import FakeApiServer
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import SEND_MESSAGE_V2, send_header
from tests.support.net import free_port, loopback
from tests.support.process import wait_until
from tests.support.remoting import Response, call, split_address
from tests.support.replica_group import ReplicaGroup
from tests.support.signing import CHECKED, signed

pytestmark = pytest.mark.timeout(900)

NAMESPACE = "trade"
TOPIC, USER = Ref("Topic", NAMESPACE, "orders"), Ref("User", NAMESPACE, "shop")
GET_TOPIC, UPDATE_TOPIC, GET_USER = 351, 17, 3004
TOPIC_NOT_EXIST, NO_PERMISSION = 17, 16
PATIENCE_S = 120
SETTINGS: Settings = {**CHECKED, "allAckInSyncStateSet": True, "minInSyncReplicas": 2}


class GroupSidecars:
    """Sidecars that report what the controllers know of the group."""

    failures = 0

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group

    async def states(
        self, namespace: str, pods: Iterable[Manifest], credentials: object
    ) -> Mapping[str, Any]:
        """The states of the pods, of which one may be the master."""
        master = await asyncio.to_thread(self._group.master)
        return {
            str(metadata(pod)["name"]): ReportedBrokerState(
                role="master"
                if master is not None and split_address(master.address)[0] == pod["status"]["podIP"]
                else "replica"
            )
            for pod in pods
        }


def object_of(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """An object as the API server stores it."""
    version = "v1" if kind in ("Pod", "Secret") else "epochmq.io/v1alpha1"
    meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "generation": 1}
    return {"apiVersion": version, "kind": kind, **fields, "metadata": {**meta, **fields.get("metadata", {})}}


def secret(name: str, **texts: str) -> dict[str, Any]:
    """A Secret with these texts; `_` stands for `.` in keys."""
    data = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return object_of("Secret", name, data=data)


class Run:
    """A group, and the operator that reconciles its topics and users."""

    def __init__(self, group: ReplicaGroup, server: FakeApiServer, cache: ObjectCache) -> None:
        self.group, self.server, self.cache = group, server, cache
        self.notify: Callable[[Manifest], None] = lambda _: None

    def put(self, manifest: Mapping[str, Any]) -> None:
        """kubectl apply."""
        self.cache.put(self.server.put(manifest))

    def edit(self, ref: Ref, **spec: Any) -> None:
        """kubectl apply with these fields, or with none of them changed."""
        found = json.loads(json.dumps(self.server.objects[object_path(ref)]))
        found["spec"] |= spec
        found["metadata"]["generation"] += 1
        self.put(found)

    def status(self, ref: Ref) -> dict[str, Any]:
        """The status of a resource."""
        return (self.cache.get(ref) or {}).get("status") or {}

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for a condition, which may ask brokers. Reconciles meanwhile."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await asyncio.to_thread(condition):
                    for ref in (TOPIC, USER):
                        if (found := self.cache.get(ref)) is not None:
                            self.notify(found)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            shown = [self.status(ref) for ref in (TOPIC, USER)]
            raise AssertionError(f"not in time: {what}; {shown}") from None

    async def until_ready(self, ref: Ref) -> None:
        """Waits until the resource's present generation is applied."""

        def reached() -> bool:
            found = self.cache.get(ref) or {}
            status = found.get("status") or {}
            return (
                status.get("phase") == "Ready"
                and status.get("observedGeneration") == (metadata(found)["generation"])
            )

        await self.until(reached, f"{ref} is ready")


@asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[Run]:
    """A running group and operator."""

    def place(name: str) -> str:
        host = loopback(97)
        return f"{host}:{BROKER_PORT if name.startswith('broker') else free_port(host)}"

    group = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=SETTINGS, places=place)
    await asyncio.to_thread(group.start)
    server, cache = FakeApiServer(), ObjectCache()
    run = Run(group, server, cache)
    api: Any = server
    sidecars: Any = GroupSidecars(group)
    replicas = ReplicaObserver(cache, sidecars, CredentialsCache(api))
    broker_client = BrokerClient()
    dependencies = ReconcilerDependencies(api, cache, replicas, OperatorMetrics(), Liveness(), 4)
    reconciler = EntityReconciler(("Topic", "User"), broker_client, dependencies)
    run.notify = cache.on_change = reconciler.object_changed
    inner = SETTINGS["innerClientAuthenticationCredentials"]
    server.put(secret("orders-auth", auth_properties=f"innerClientAuthenticationCredentials={inner}\n"))
    config = {key: value for key, value in SETTINGS.items() if key.endswith("Provider")}
    spec = {"replicas": 3, "brokerName": group.NAME, "authSecret": "orders-auth", "config": config}
    run.put(object_of("BrokerGroup", "orders", spec=spec))
    for number, member in enumerate(group.brokers):
        labels = {KIND_LABEL: "BrokerGroup", GROUP_LABEL: "orders"}
        status = {"phase": "Running", "podIP": split_address(member.address)[0]}
        cache.put(object_of("Pod", f"orders-broker-{number}", metadata={"labels": labels}, status=status))
    task = asyncio.ensure_future(reconciler.run())
    try:
        yield run
    except BaseException as error:
        error.add_note(group.logs())
        raise
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await broker_client.close()
        await asyncio.to_thread(group.kill)


def ask(member: Member, code: int, ext: dict[str, str]) -> Response:
    """Sends a request of the super user."""
    return call(member.address, code, signed(ext))


def has_topic(member: Member) -> bool:
    return topic_at(member) is not None


def lacks_topic(member: Member) -> bool:
    return topic_at(member) is None


def lacks_user(member: Member) -> bool:
    return not ask(member, GET_USER, {"username": "shop"}).body


def topic_at(member: Member) -> dict[str, Any] | None:
    """The topic at a broker."""
    response = ask(member, GET_TOPIC, {"topic": "orders"})
    if response.code == TOPIC_NOT_EXIST:
        return None
    assert response.code == 0, response.remark
    found: dict[str, Any] = json.loads(response.body)
    return found


def send_code(member: Member, password: str, topic: str = "orders") -> int:
    """The response code of a message that the user sends."""
    body = b"paid"
    header = {**send_header(0, "key"), "b": topic}
    return call(member.address, SEND_MESSAGE_V2, signed(header, body, ("shop", password)), body).code


async def test_topics_and_users_follow_their_resources_on_real_brokers(tmp_path: Path) -> None:
    """Creation, drift, a changed Secret, a change after a failover, and deletion."""
    async with running(tmp_path) as run:
        group = run.group
        master = await asyncio.to_thread(group.wait_master)
        run.server.put(secret("shop", password="first-password\n"))
        run.put(
            object_of(
                "Topic",
                "orders",
                spec={
                    "brokerGroups": ["orders"],
                    "queues": 4,
                    "messageType": "NORMAL",
                    "deletionPolicy": "Delete",
                },
            )
        )
        entry = {"resource": "Topic:orders", "actions": ["Pub"]}
        run.put(
            object_of(
                "User",
                "shop",
                spec={"brokerGroups": ["orders"], "acl": [entry], "passwordSecret": {"name": "shop"}},
            )
        )
        await run.until_ready(TOPIC)
        await run.until_ready(USER)
        assert sorted(run.server.events) == ["Created", "Created"]
        found = topic_at(master)
        assert found is not None
        assert (found["readQueueNums"], found["writeQueueNums"], found["perm"]) == (4, 4, 6)
        assert found["attributes"] == {"message.type": "NORMAL"}
        await run.until(lambda: send_code(master, "first-password") == 0, "the user may send")
        assert send_code(master, "wrong") == NO_PERMISSION
        assert send_code(master, "first-password", "TBW102") == NO_PERMISSION
        for member in group.brokers:
            await run.until(partial(has_topic, member), f"{member.name} has the topic")

        drift = {
            "topic": "orders",
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "4",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        assert ask(master, UPDATE_TOPIC, drift).code == 0
        await run.until(lambda: (topic_at(master) or {})["perm"] == 6, "the permission is reverted")
        await run.until(lambda: "DriftReverted" in run.server.events, "the drift is reported")
        (record,) = run.status(TOPIC)["brokerGroups"]
        assert (record["drifts"], record["lastDrift"]) == (1, "permission is Read, expected ReadWrite")

        await asyncio.to_thread(master.process.kill)
        successor = await asyncio.to_thread(lambda: group.wait_master(other_than=master))
        run.edit(TOPIC, queues=6)
        run.edit(USER, acl=[entry, {"resource": "Topic:stock*", "actions": ["Pub", "Sub"]}])
        await run.until_ready(TOPIC)
        await run.until_ready(USER)
        assert (topic_at(successor) or {})["writeQueueNums"] == 6
        await run.until(lambda: send_code(successor, "first-password") == 0, "the user may send")

        run.edit(TOPIC, attributes={"queue.type": "BatchCQ"})
        await run.until(lambda: run.status(TOPIC).get("phase") == "Failed", "the broker rejects the change")
        ready = next(one for one in run.status(TOPIC)["conditions"] if one["type"] == "Ready")
        assert ready["reason"] == "Rejected"
        assert "attempt to update an unchangeable attribute. key: queue.type" in ready["message"]

        await asyncio.to_thread(master.start)
        await asyncio.to_thread(lambda: group.wait_in_sync(3))
        for ref in (TOPIC, USER):
            deleted = json.loads(json.dumps(run.server.objects[object_path(ref)]))
            deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            run.put(deleted)
        await run.until(
            lambda: not {object_path(TOPIC), object_path(USER)} & set(run.server.objects), "deleted"
        )
        for member in group.brokers:
            wait_until(partial(lacks_topic, member), what=f"{member.name} has no topic")
            wait_until(partial(lacks_user, member), what=f"{member.name} has no user")


async def test_a_changed_secret_changes_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochmq_operator.kube.secret_reader.CACHED_S", 0.0)
    assert SecretReader is not None
    async with running(tmp_path) as run:
        master = await asyncio.to_thread(run.group.wait_master)
        run.put(
            object_of(
                "User",
                "shop",
                spec={"brokerGroups": ["orders"], "type": "Super", "passwordSecret": {"name": "shop"}},
            )
        )
        await run.until(
            lambda: "Secret shop does not exist: create it" in str(run.status(USER)), "the Secret is missing"
        )
        run.server.put(secret("shop", password="first-password"))
        await run.until_ready(USER)
        await run.until(
            lambda: send_code(master, "first-password", "TBW102") == 0, "the first password holds"
        )
        run.server.put(secret("shop", password="second-password"))
        await run.until(lambda: send_code(master, "second-password", "TBW102") == 0, "the new password holds")
        assert send_code(master, "first-password", "TBW102") == NO_PERMISSION
        assert run.server.events == ["Created", "Changed"]
