"""Settles what becomes of a store on this machine that the controllers refuse, because it does not continue
the store that has its broker id."""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_operator.local.readiness import int_or_none
from epochmq_operator.local.replica_requests import ask_broker
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.local.status import observe, report
from epochmq_operator.named_replica import ReplicaControlError
from epochmq_operator.pod_rendering import inner_client_credentials
from epochmq_operator.status_model import BrokerGroupStatus, ReplicaStatus
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import ReplicaControlCode, SettleStoreHeader
from epochmq_protocol.transport import RemotingClient

ANSWER_SHARE = 0.9
"""The share of the timeout that the broker may wait for the controllers."""


@dataclass(frozen=True, slots=True)
class SettledReplica:
    """A pod, and the broker id that its store has now."""

    pod: str
    broker_id: int


async def settle(
    state: StateDirectory, name: str, pod: str | None, timeout_s: float, *, adopt: bool
) -> SettledReplica:
    """Adopts the refused store that claims the broker id GROUP/ID, or takes the id from it. GROUP is the name
    of the resource or the broker name. ReplicaControlError if no store of this id is refused, if several are
    and `pod` does not choose one, or if the broker or the controllers reject the request."""
    seen = await observe(state)
    group, broker_id = _group_and_id(report(state, seen).broker_groups, name)
    refused: list[ReplicaStatus] = []
    for observed in seen.pods:
        info = observed.readiness.runtime_info
        if "storeRefused" in info and int_or_none(info.get("replicaId")) == broker_id:
            refused += [one for one in group.replicas if one.pod == observed.pod.name]
    chosen = [one for one in refused if pod in (None, one.pod)]
    if len(chosen) != 1:
        which = ", ".join(one.pod for one in refused)
        raise ReplicaControlError(
            f"several stores claim {name}: {which}; choose one with --pod"
            if len(chosen) > 1
            else f"the controllers refuse no store of {name} in {pod}; they refuse those of {which}"
            if refused
            else f"the controllers refuse no store of {name}; `epochmq status` shows the present state"
        )
    spec = next(spec for spec in seen.resources.broker_groups if spec.name == group.name)
    header = SettleStoreHeader(adopt=adopt, timeout_ms=int(timeout_s * ANSWER_SHARE * 1000))
    async with RemotingClient(credentials=inner_client_credentials(spec), members=state.members()) as client:
        answer = await ask_broker(
            client, chosen[0], request(ReplicaControlCode.SETTLE_STORE, header), timeout_s * 1000
        )
    settled = SettleStoreHeader.decode(answer.ext).broker_id
    return SettledReplica(chosen[0].pod, broker_id if settled is None else settled)


def _group_and_id(groups: list[BrokerGroupStatus], name: str) -> tuple[BrokerGroupStatus, int]:
    group_name, _, text = name.rpartition("/")
    broker_id = int_or_none(text)
    if not group_name or broker_id is None:
        raise ReplicaControlError(f"{name}: expected GROUP/ID, such as orders/2")
    group = next((one for one in groups if group_name in (one.name, one.broker_name)), None)
    if group is None:
        running = ", ".join(one.name for one in groups) or "none"
        raise ReplicaControlError(f"broker group {group_name} does not run; running groups: {running}")
    return group, broker_id
