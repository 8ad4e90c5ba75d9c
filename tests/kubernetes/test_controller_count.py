"""Tests on a real cluster that the number of controllers changes while a producer with RocketMQ's default
settings sends, and that it notices nothing."""

from __future__ import annotations

import base64
import time

import pytest

from tests.integration.chaos.journals import SEND_OK
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, Operator
from tests.kubernetes.patient_producer import ProducerWithDefaults
from tests.kubernetes.traffic import Traffic

pytestmark = pytest.mark.soak

ADMIN = {"admin": {"tokenSecret": "token"}}


def uids(groups: Groups, *names: str) -> dict[str, str]:
    """The uids of these pods."""
    return {name: groups.get("Pod", name)["metadata"]["uid"] for name in names}


def members(groups: Groups) -> list[str]:
    """The members of the quorum, as its leader knows them."""
    leader = groups.status("ControllerGroup", "orders").get("leader") or "orders-controller-0"
    return sorted(one["id"] for one in groups.state(leader).get("peers", ()))


def scale(groups: Groups, count: int, *, own: bool) -> None:
    """Sets the number of controllers, in the BrokerGroup if they are its own."""
    if own:
        groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllers": {"replicas": count}, **ADMIN})
        return
    groups.cluster.kubectl(
        "scale", "controllergroup/orders", f"--replicas={count}", f"--namespace={groups.namespace}"
    )


@pytest.mark.parametrize("own", [False, True], ids=["ControllerGroup", "own controllers"])
def test_controllers_are_added_and_removed_while_a_producer_sends(
    groups: Groups, started: Operator, clients: str, own: bool
) -> None:
    token = base64.b64encode(b"a-token-of-good-length").decode()
    name = {"name": "token", "namespace": groups.namespace}
    groups.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": name, "data": {"token": token}})
    if own:
        scale(groups, 3, own=True)
    else:
        groups.apply("ControllerGroup", "orders", {"replicas": 3, **ADMIN})
        groups.apply("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "orders", **ADMIN})
    groups.ready("orders", 3)
    stay = [f"orders-{component}-{n}" for component in ("controller", "broker") for n in range(3)]
    before, epoch = uids(groups, *stay), groups.status("BrokerGroup", "orders")["masterEpoch"]
    producer = ProducerWithDefaults(Traffic(groups, clients, "orders"), clients)
    producer.wait(100)
    for count in (5, 3):
        begun_s = time.monotonic()
        scale(groups, count, own=own)
        status = groups.wait("ControllerGroup", "orders", phase="Ready", ready=f"{count}/{count}")
        print(f"{count} controllers after {time.monotonic() - begun_s:.1f} s", flush=True)
        assert status["targetReplicas"] == count
        wanted = [f"n{n}" for n in range(count)]
        groups.cluster.wait(lambda wanted=wanted: members(groups) == wanted, READY_TIMEOUT_S, "the members")
        groups.wait("BrokerGroup", "orders", phase="Ready", knownControllers=count)
        producer.wait(100)
    sent = producer.sent()
    failed = [one for one in sent if one[2] != SEND_OK]
    slowest = max(took_ms for _, took_ms, _ in sent)
    print(f"{len(failed)} of {len(sent)} sends failed, the slowest took {slowest} ms", flush=True)
    assert not failed, failed[:3]
    assert [number for number, _, _ in sent] == list(range(sent[0][0], sent[0][0] + len(sent)))
    assert uids(groups, *stay) == before
    assert groups.status("BrokerGroup", "orders")["masterEpoch"] == epoch
    assert groups.get("PersistentVolumeClaim", "data-orders-controller-4")
