"""Tests the changes of a group in use on a real cluster with operators of which each is killed after its
first write: every change is completed, each pod restarts at most once, a roll of the brokers has exactly one
switchover, and a producer with RocketMQ's default settings notices nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.chaos.journals import SEND_OK
from tests.kubernetes.killed_operators import KilledOperators, ready
from tests.kubernetes.operator_process import Groups, operator
from tests.kubernetes.patient_producer import ProducerWithDefaults
from tests.kubernetes.pod_restarts import restarts
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import image_name
from tests.kubernetes.traffic import Traffic
from tests.support.stalls import unless_stalled

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

ADMIN = {"admin": {"tokenSecret": "token"}}
FIXED_KEY, CONTROLLERS_KEY = "serverChannelMaxIdleTimeSeconds", "scanNotActiveBrokerInterval"
"""Keys whose change restarts brokers, and controllers."""
PODS = [f"orders-{component}-{n}" for component in ("broker", "controller") for n in range(3)]
AFTERWARDS = 100


class GroupInUse:
    """A ready group of three brokers under three controllers, a producer, and operators that are killed."""

    def __init__(self, groups: Groups, clients: str, folder: Path) -> None:
        self.groups = groups
        self.cluster = groups.cluster
        self.specs: dict[str, dict[str, Any]] = {
            "ControllerGroup": {"replicas": 3, **ADMIN},
            "BrokerGroup": {"replicas": 3, "controllerGroup": "orders", **ADMIN},
        }
        token = base64.b64encode(b"a-token-of-good-length").decode()
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "token"},
            "data": {"token": token},
        }
        self.cluster.apply(secret, namespace=groups.namespace)
        with operator(self.cluster, groups.namespace, folder):
            self.put("ControllerGroup")
            self.put("BrokerGroup")
            groups.ready("orders", 3)
            self.cluster.wait(ready(groups, 3, "orders"), what="both groups are ready")
        groups.forget_lease()
        self.operators = KilledOperators(groups, folder)
        self.producer = ProducerWithDefaults(Traffic(groups, clients, "orders"), clients)
        self.producer.wait(AFTERWARDS)

    def put(self, kind: str, **fields: Any) -> None:
        """Changes these fields of the spec of a group."""
        self.specs[kind] = {**self.specs[kind], **fields}
        self.groups.apply(kind, "orders", self.specs[kind])

    def ready(self, replicas: int = 3, controllers: int = 3) -> Callable[[], bool]:
        """Whether the groups have these numbers of pods, are ready, and have finished plans, and the brokers
        list the controllers."""
        both = ready(self.groups, replicas, "orders")

        def done() -> bool:
            if not both():
                return False
            listed = self.groups.status("BrokerGroup", "orders").get("knownControllers")
            there = self.groups.status("ControllerGroup", "orders").get("ready")
            return (there, listed) == (f"{controllers}/{controllers}", controllers)

        return done

    def uids(self) -> dict[str, str]:
        """The uids of the first three pods of each kind."""
        return {name: self.groups.get("Pod", name)["metadata"]["uid"] for name in PODS}

    def epoch(self) -> int:
        """The epoch of the master."""
        return int(self.groups.status("BrokerGroup", "orders")["masterEpoch"])

    def change(self, over: Callable[[], bool], *, restarted: list[str], switchovers: int) -> None:
        """Runs operators until the change is over. Exactly the pods in `restarted` restart, each once, the
        master after the other brokers and the leader after the other controllers, and no send fails."""
        sent, before = len(self.producer.sent()), self.uids()
        reported, epoch = len(restarts(self.groups)), self.epoch()
        last = (
            self.groups.status("BrokerGroup", "orders")["master"],
            self.groups.status("ControllerGroup", "orders")["leader"],
        )
        self.operators.until(over)
        self.producer.wait(AFTERWARDS)
        names = [message.split()[1].rstrip(":") for message in restarts(self.groups)[reported:]]
        assert sorted(names) == restarted
        after = self.uids()
        assert sorted(name for name in PODS if after[name] != before[name]) == restarted
        for component, one in zip(("broker", "controller"), last, strict=True):
            of_component = [name for name in names if component in name]
            assert not of_component or of_component[-1] == one, names
        assert self.epoch() == epoch + switchovers
        outcomes = self.producer.sent()[sent:]
        failed = [one for one in outcomes if one[2] != SEND_OK]
        slowest = max(took_ms for _, took_ms, _ in outcomes)
        print(f"{len(failed)} of {len(outcomes)} sends failed, the slowest took {slowest} ms", flush=True)
        assert not failed, failed[:3]


@pytest.fixture
def group(groups: Groups, clients: str, tmp_path: Path) -> GroupInUse:
    return GroupInUse(groups, clients, tmp_path)


def test_a_roll_of_the_configuration_is_completed_with_one_switchover(
    group: GroupInUse, tmp_path: Path
) -> None:
    def roll(attempt: int) -> None:
        group.put("ControllerGroup", config={CONTROLLERS_KEY: 5001 + attempt})
        group.put("BrokerGroup", config={FIXED_KEY: 121 + attempt})
        group.change(group.ready(), restarted=PODS, switchovers=1)

    unless_stalled(tmp_path, roll)


def test_a_roll_of_the_image_is_completed_with_one_switchover(group: GroupInUse, tmp_path: Path) -> None:
    def roll(attempt: int) -> None:
        for kind, target in (("ControllerGroup", "controller"), ("BrokerGroup", "broker")):
            later = image_name(target).replace(":", f":killed-{attempt}-")
            group.cluster.tag_image(image_name(target), later)
            group.put(kind, image=later)
        group.change(group.ready(), restarted=PODS, switchovers=1)

    unless_stalled(tmp_path, roll)


def test_an_upgrade_of_the_operator_rolls_groups_that_follow_it_with_one_switchover(
    group: GroupInUse, tmp_path: Path
) -> None:
    """Groups that keep their templates, which is the default, are left alone by the same operators."""

    def roll(attempt: int) -> None:
        for kind in group.specs:
            group.put(kind, updatePolicy={"operatorChanges": "Keep"})
        images = {}
        for target in ("controller", "broker"):
            images[target] = image_name(target).replace(":", f":release-{attempt}-")
            group.cluster.tag_image(image_name(target), images[target])
        group.operators.chosen = {f"{target}Image": image for target, image in images.items()}
        with operator(group.cluster, group.groups.namespace, tmp_path, chosen=group.operators.chosen):
            group.groups.settled(20)
        group.groups.forget_lease()
        group.change(group.ready(), restarted=[], switchovers=0)
        for kind in group.specs:
            group.put(kind, updatePolicy={"operatorChanges": "Follow"})
        group.change(group.ready(), restarted=PODS, switchovers=1)

    unless_stalled(tmp_path, roll)


def test_controllers_are_added_and_removed_one_by_one(group: GroupInUse, tmp_path: Path) -> None:
    def scale(_: int) -> None:
        for count in (5, 3):
            group.put("ControllerGroup", replicas=count)
            group.change(group.ready(controllers=count), restarted=[], switchovers=0)
            status = group.groups.status("ControllerGroup", "orders")
            members = group.groups.state(status["leader"])["peers"]
            assert sorted(one["id"] for one in members) == [f"n{n}" for n in range(count)]

    unless_stalled(tmp_path, scale)


def test_replicas_are_added_and_removed_one_by_one(group: GroupInUse, tmp_path: Path) -> None:
    def scale(_: int) -> None:
        for count in (5, 3):
            group.put("BrokerGroup", replicas=count)
            group.change(group.ready(replicas=count), restarted=[], switchovers=0)
            assert len(group.groups.status("BrokerGroup", "orders")["syncStateSet"]) == count

    unless_stalled(tmp_path, scale)


@pytest.fixture
def expandable(cluster: Cluster) -> Iterator[None]:
    """The StorageClass of the tests allows larger volumes."""
    place = "storageclass/testbed"
    cluster.kubectl("patch", place, '--patch={"allowVolumeExpansion": true}')
    yield
    cluster.kubectl("patch", place, '--patch={"allowVolumeExpansion": false}')


@pytest.mark.usefixtures("expandable")
def test_volumes_grow_without_a_restart(group: GroupInUse, tmp_path: Path) -> None:
    """The test is the storage driver, which makes a volume as large as its claim requests."""

    def claims() -> list[dict[str, Any]]:
        text = group.cluster.kubectl(
            "get", "persistentvolumeclaims", "--output=json", f"--namespace={group.groups.namespace}"
        )
        found = json.loads(text)["items"]
        return [one for one in found if one["metadata"]["name"].startswith(("store-", "data-"))]

    def size(claim: dict[str, Any]) -> str:
        return str(claim["spec"]["resources"]["requests"]["storage"])

    def grown() -> bool:
        for claim in claims():
            if claim["status"]["capacity"]["storage"] != size(claim):
                larger = {"spec": {"capacity": {"storage": size(claim)}}}
                group.cluster.core.patch_persistent_volume(claim["spec"]["volumeName"], larger)
                group.cluster.core.patch_namespaced_persistent_volume_claim_status(
                    claim["metadata"]["name"],
                    group.groups.namespace,
                    {"status": {"capacity": {"storage": size(claim)}}},
                )
        return over()

    def grow(attempt: int) -> None:
        wanted = f"{12 + attempt}Gi"
        for kind in group.specs:
            group.put(kind, storage={"size": wanted})
        group.change(grown, restarted=[], switchovers=0)
        assert [size(claim) for claim in claims()] == [wanted] * 6

    over = group.ready()
    unless_stalled(tmp_path, grow)
