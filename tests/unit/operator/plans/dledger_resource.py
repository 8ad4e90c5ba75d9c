"""A DLedger group in a simulated cluster."""

from __future__ import annotations

from typing import Any

from epochmq_operator.plans.effects import (
    Apply,
    ChangeQuorumMembers,
    Effect,
)
from epochmq_operator.plans.objects import Ref
from epochmq_operator.pod_rendering import broker_pod_name
from epochmq_protocol import properties
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import pods_of

LEDGER = Ref("BrokerGroup", NAMESPACE, "ledger")
BROKERS = Ref("StatefulSet", NAMESPACE, "ledger-broker")


class PeersApi(FakeApi):
    """A cluster that checks each write that concerns the members of the group."""

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect, after it has checked it."""
        if isinstance(effect, ChangeQuorumMembers):
            assert resource == LEDGER
            self._check_change(effect)
        if isinstance(effect, Apply) and effect.manifest["kind"] == "ConfigMap":
            self._check_configuration(effect.manifest["data"])
        if isinstance(effect, Apply) and effect.manifest["metadata"]["name"] == BROKERS.name:
            self._check_size(effect.manifest)
        super().act(effect, resource)

    def _check_change(self, change: ChangeQuorumMembers) -> None:
        """All members that stay are ready, and the last replica goes first."""
        members, ordinal = self.peers["ledger"], int(change.member.removeprefix("n"))
        leaving = set() if change.address else {ordinal}
        unready = {n for n in members if not self._ready(broker_pod_name("ledger", n))}
        if leaving & members or ordinal not in members:
            assert not unready - leaving, f"{change} while {unready} were not ready"
        if leaving:
            assert ordinal == max(members | leaving), f"{change} is not the last one"

    def _check_configuration(self, files: dict[str, str]) -> None:
        """No replica may vote by a configuration that names others than the members. The last change of one
        member may not be recorded yet, if the operator was killed after it. Then the configuration stays as
        it was before: replicas with the change in their logs go by that, and the others, as in Raft, by the
        members before it."""
        for text in files.values():
            keys = properties.parse(text)
            if "dLegerPeers" not in keys or keys.get("joinDLedgerGroup") == "true":
                continue
            named = {int(one.partition("-")[0][1:]) for one in keys["dLegerPeers"].split(";")}
            members = self.peers.get("ledger", named)
            unrecorded = len(members ^ named) == 1 and self.status(LEDGER).get("founders") == len(named)
            assert named == members or unrecorded, f"a configuration names {named}, the members are {members}"

    def _check_size(self, manifest: Any) -> None:
        if manifest["kind"] != "StatefulSet" or "ledger" not in self.peers:
            return
        target, size = self.status(LEDGER).get("targetReplicas"), manifest["spec"]["replicas"]
        assert target is None or size == target
        assert size > max(self.peers["ledger"]), f"{size} pods for the members {self.peers['ledger']}"


def put(api: FakeApi, replicas: int, **more: Any) -> None:
    """Applies the group with this number of replicas."""
    spec = {"mode": "DLedger", "replicas": replicas, "controllerGroup": "names", **more}
    api.put("BrokerGroup", "ledger", spec)


def ready_group(count: int) -> PeersApi:
    """A group of this number of replicas that has been created."""
    api = PeersApi(renderer=manifest_renderer(), can_reload=True)
    api.put("ControllerGroup", "names", {"replicas": 1})
    put(api, count)
    api.settle()
    return api


def is_at(api: FakeApi, count: int) -> bool:
    """Whether exactly this number of replicas runs, and they are the members."""
    status = api.status(LEDGER)
    names = [str(pod["metadata"]["name"]) for pod in pods_of(api, BROKERS)]
    return (
        (status["phase"], status["ready"], status["targetReplicas"]) == ("Ready", f"{count}/{count}", count)
        and names == [broker_pod_name("ledger", n) for n in range(count)]
        and api.peers["ledger"] == set(range(count))
    )


READY = {count: ready_group(count) for count in (1, 3)}
