"""Controls replicas on this machine: promote, fence, drain. Each operation is a request to the brokers, and
returns when its effect is observed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from epochmq_operator import named_replica
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.local.status import observe, report
from epochmq_operator.named_replica import PromotionResult, ReplicaControlError
from epochmq_operator.pod_rendering import inner_client_credentials
from epochmq_operator.resources import GroupMode
from epochmq_operator.status_model import BrokerGroupStatus, ListedReplicaGroup, ReplicaStatus
from epochmq_protocol import fastjson
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.replica_control import (
    ReplicaControlCode,
    ReplicaControlStateHeader,
    SwitchoverRequestHeader,
    SwitchoverResponseHeader,
)
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.transport import RemotingClient

CATCH_UP_SHARE = 0.8
"""The share of a switchover's timeout in which the replica may catch up."""
ANSWER_MS = 3000
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class ChosenReplica:
    """A replica, and the present state of its group."""

    group: BrokerGroupStatus
    replica: ReplicaStatus
    reported_group: ListedReplicaGroup | None
    credentials: SessionCredentials | None = None
    """They sign the requests to the group's brokers."""

    @property
    def master(self) -> ReplicaStatus | None:
        """The group's master, as the controllers know it."""
        return next((one for one in self.group.replicas if one.role == "master"), None)


async def choose_replica(state: StateDirectory, name: str) -> ChosenReplica:
    """The replica GROUP/REPLICA, where REPLICA is the pod's name or its ordinal. ReplicaControlError if there
    is none."""
    seen = await observe(state)
    group, replica = named_replica.find_replica(report(state, seen), name)
    spec = next(spec for spec in seen.resources.broker_groups if spec.name == group.name)
    return ChosenReplica(group, replica, seen.reported_group(spec), inner_client_credentials(spec))


async def promote(state: StateDirectory, name: str, timeout_s: float) -> PromotionResult:
    """Makes this replica the master without a failed send; returns when every nameserver lists it as the
    master."""
    chosen = await choose_replica(state, name)
    async with RemotingClient(credentials=chosen.credentials, members=state.members()) as client:
        return await _promote(client, chosen, timeout_s)


async def _promote(client: RemotingClient, chosen: ChosenReplica, timeout_s: float) -> PromotionResult:
    replica, master = chosen.replica, chosen.master
    is_dledger = chosen.group.mode is GroupMode.DLEDGER
    if chosen.group.controller_group is None and not is_dledger:
        raise ReplicaControlError(f"{chosen.group.name} has no controllers: replica 0 is always the master")
    if master is None:
        who = "a majority of the replicas elects" if is_dledger else "the controllers elect"
        raise ReplicaControlError(f"{chosen.group.name} has no master to switch from; wait until {who} one")
    if replica.broker_id is None:
        raise ReplicaControlError(
            f"the controllers do not know {replica.pod}: {replica.reason or 'no reason known'}"
        )
    if master.pod == replica.pod:
        return PromotionResult(replica.pod, replica.broker_id, chosen.group.master_epoch or 0, None)
    header = SwitchoverRequestHeader(
        broker_id=replica.broker_id,
        address=replica.address,
        timeout_ms=int(timeout_s * CATCH_UP_SHARE * 1000),
    )
    answer = await ask_broker(
        client, master, request(ReplicaControlCode.SWITCHOVER, header), timeout_s * 1000
    )
    done = SwitchoverResponseHeader.decode(answer.ext)
    await _until(
        lambda: _routed(client, chosen.group, replica.address),
        timeout_s,
        "the nameservers list the new master",
    )
    return PromotionResult(replica.pod, replica.broker_id, done.master_epoch, done.held_ms, is_dledger)


async def _routed(client: RemotingClient, group: BrokerGroupStatus, address: str) -> bool:
    names = {"clusterName": group.cluster, "brokerName": group.broker_name}
    for nameserver in group.nameservers:
        answer = await client.call(
            nameserver, request(RequestCode.GET_BROKER_MEMBER_GROUP, ext=names), ANSWER_MS
        )
        body = fastjson.loads(answer.body) if answer.code == ResponseCode.SUCCESS else None
        members = body.get("brokerMemberGroup") if isinstance(body, dict) else None
        if ((members or {}).get("brokerAddrs") or {}).get("0") != address:
            return False
    return True


async def fence(state: StateDirectory, name: str, *, on: bool) -> ReplicaStatus:
    """Fences or unfences the replica: a fenced replica takes no messages, also after a restart."""
    chosen = await choose_replica(state, name)
    async with RemotingClient(credentials=chosen.credentials, members=state.members()) as client:
        await ask_broker(
            client,
            chosen.replica,
            request(ReplicaControlCode.SET_CONTROL_STATE, ReplicaControlStateHeader(fenced=on)),
            ANSWER_MS,
        )
    return chosen.replica


async def drain(
    state: StateDirectory, name: str, timeout_s: float, *, on: bool
) -> tuple[ReplicaStatus, PromotionResult | None]:
    """Drains the replica: another replica in sync becomes the master if need be, and the replica leaves the
    SyncStateSet but continues to copy the log. Returns the replica, and the switchover's result if there was
    one. `on=False` undoes it; that returns when the replica is in the SyncStateSet. In the mode DLedger a
    drained replica leaves the leadership to the others."""
    chosen = await choose_replica(state, name)
    is_dledger = chosen.group.mode is GroupMode.DLEDGER
    if chosen.group.controller_group is None and not is_dledger:
        raise ReplicaControlError(
            f"{chosen.group.name} has no controllers: no other replica can become the master"
        )
    async with RemotingClient(credentials=chosen.credentials, members=state.members()) as client:
        moved = await _ensure_other_master(client, chosen, timeout_s) if on else None
        await ask_broker(
            client,
            chosen.replica,
            request(ReplicaControlCode.SET_CONTROL_STATE, ReplicaControlStateHeader(drained=on)),
            ANSWER_MS,
        )

    async def state_changed() -> bool:
        now = await choose_replica(state, name)
        return now.replica.drained is on and (not on or now.replica.role == "slave")

    if is_dledger:
        await _until(state_changed, timeout_s, f"{chosen.replica.pod} is {'' if on else 'not '}drained")
        return chosen.replica, moved

    async def membership_changed() -> bool:
        now = await choose_replica(state, name)
        return now.reported_group is not None and now.replica.in_sync is not on

    what = f"{chosen.replica.pod} is {'out of' if on else 'in'} the SyncStateSet"
    await _until(membership_changed, timeout_s, what)
    return chosen.replica, moved


async def _ensure_other_master(
    client: RemotingClient, chosen: ChosenReplica, timeout_s: float
) -> PromotionResult | None:
    """Ensures that another replica in sync is the master."""
    others = [
        one for one in chosen.group.replicas if one.in_sync and not one.drained and one is not chosen.replica
    ]
    if not others:
        raise ReplicaControlError(
            f"no other replica of {chosen.group.name} is in sync; the group would have no master"
        )
    if chosen.replica.role != "master":
        return None
    return await _promote(client, ChosenReplica(chosen.group, others[0], chosen.reported_group), timeout_s)


async def ask_broker(
    client: RemotingClient, replica: ReplicaStatus, command: Command, timeout_ms: float
) -> Command:
    """Sends one request to a replica. ReplicaControlError if it does not respond, or rejects the request."""
    try:
        answer = await client.call(replica.address, command, timeout_ms)
    except EpochMQError as error:
        raise ReplicaControlError(f"{replica.pod} did not respond: {error}") from error
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise ReplicaControlError(
            f"{replica.pod} does not support this request: it is not an EpochMQ broker of this version"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise ReplicaControlError(
            f"{replica.pod} rejected the request: {answer.remark or f'code {answer.code}'}"
        )
    return answer


async def _until(holds: Callable[[], Awaitable[bool]], timeout_s: float, what: str) -> None:
    """Waits until the condition holds. ReplicaControlError after the timeout."""
    last = ""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    if await holds():
                        return
                except EpochMQError as error:
                    last = f": {error}"
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise ReplicaControlError(
            f"the request succeeded, but after {timeout_s:g} s it does not hold yet that {what}{last}"
        ) from None
