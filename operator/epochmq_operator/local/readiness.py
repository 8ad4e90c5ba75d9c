"""Probes whether a pod is ready, as its clients would see it: over its own port, at the nameservers that
clients use, and, for a broker under controllers, at the leading controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.local.replica_groups import PROBE_TIMEOUT_MS, fetch_replica_group, find_leader
from epochmq_operator.pods import (
    BrokerProbe,
    ControllerProbe,
    NameserverProbe,
    Probe,
)
from epochmq_operator.status_model import ListedReplicaGroup
from epochmq_protocol import fastjson
from epochmq_protocol.admin_api.operations import TAKEOVER_ENTRIES_MAX
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RemoteProtocolError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.signatures import sign
from epochmq_protocol.transport import RemotingClient


@dataclass(frozen=True, slots=True)
class ControllerRaftState:
    """The Raft state that a controller reports. `role` is `leader`, `follower`, or `candidate`: it knows no
    leader, or was elected and has not applied its log yet. `term` and `committed_index` are those of its Raft
    log, None if it does not report them."""

    role: str
    leader_address: str | None
    term: int | None
    committed_index: int | None


@dataclass(frozen=True, slots=True)
class Readiness:
    """The result of a probe. `reason` says why the pod is not ready. `broker_id` is the id under which the
    broker is registered (0: the master). `runtime_info` is the broker's runtime information (RocketMQ's
    runtimeInfo), empty for others. `group` is the broker's group as its controllers list it, None without
    controllers. `controller` is None for other components."""

    ready: bool
    reason: str = ""
    broker_id: int | None = None
    runtime_info: dict[str, str] = field(default_factory=dict)
    controller: ControllerRaftState | None = None
    group: ListedReplicaGroup | None = None

    @property
    def refuses(self) -> str:
        """Why the broker stores no messages, in its own words; empty if it does, or is a replica in order."""
        return self.runtime_info.get("refusesMessages", "")

    @property
    def dledger_role(self) -> str | None:
        """The role of a broker of a DLedger group: `master` once it leads and accepts messages, else `slave`.
        None for others."""
        if "dledgerRole" not in self.runtime_info:
            return None
        return "master" if self.leads_dledger else "slave"

    @property
    def leads_dledger(self) -> bool:
        """Whether it is the master of a DLedger group."""
        return self.runtime_info.get("dledgerServes") == "true"


async def probe_pod(client: RemotingClient, probe: Probe) -> Readiness:
    """Probes once; each request may take `PROBE_TIMEOUT_MS`. Errors of the pod, or of a server
    that is asked about it, become a reason, not an exception."""
    try:
        match probe:
            case NameserverProbe():
                await _body(client, probe.address, request(RequestCode.GET_BROKER_CLUSTER_INFO))
                return Readiness(True)
            case BrokerProbe():
                return await _broker(client, probe)
            case ControllerProbe():
                return await _controller(client, probe)
    except EpochMQError as error:
        return Readiness(False, str(error))


async def _broker(client: RemotingClient, probe: BrokerProbe) -> Readiness:
    command = request(RequestCode.GET_BROKER_RUNTIME_INFO)
    if probe.credentials is not None:
        sign(command, probe.credentials)
    runtime = await _body(client, probe.address, command)
    table = runtime.get("table")
    runtime_info = {str(key): str(value) for key, value in table.items()} if isinstance(table, dict) else {}
    if refusal := runtime_info.get("storeRefused"):
        return Readiness(False, f"the controllers refuse its store: {refusal}", runtime_info=runtime_info)
    names = {"clusterName": probe.cluster, "brokerName": probe.broker_name}
    broker_id: int | None = None
    for nameserver in probe.nameservers:
        command = request(RequestCode.GET_BROKER_MEMBER_GROUP, ext=names)
        members = (await _body(client, nameserver, command)).get("brokerMemberGroup")
        addresses = members.get("brokerAddrs") if isinstance(members, dict) else None
        broker_id = next(
            (int(key) for key, address in (addresses or {}).items() if address == probe.address), None
        )
        if broker_id is None:
            reason = f"not registered at {nameserver} as {probe.broker_name} of {probe.cluster}"
            if because := runtime_info.get("isolatedBecause"):
                reason += f": it {because}"
            return Readiness(False, reason, runtime_info=runtime_info)
    if runtime_info.get("groupRole") == "isolated":
        # The nameserver has not yet noticed that the broker started again.
        reason = f"isolated: it {runtime_info.get('isolatedBecause', 'has not begun to go online')}"
        return Readiness(False, reason, runtime_info=runtime_info)
    if reason := _why_not_in_step(runtime_info):
        return Readiness(False, reason, broker_id, runtime_info)
    if not probe.controllers:
        return Readiness(True, broker_id=broker_id, runtime_info=runtime_info)
    try:
        leader = await find_leader(client, probe.controllers)
        group = await fetch_replica_group(client, leader, probe.broker_name)
    except EpochMQError as error:
        return Readiness(False, str(error), broker_id, runtime_info)
    reason = _why_not_in_sync(group, probe.address, drained=runtime_info.get("drained") == "true")
    return Readiness(not reason, reason, broker_id, runtime_info, group=group)


def _why_not_in_step(runtime_info: dict[str, str]) -> str:
    """Why a broker of a DLedger group neither leads nor could take over the leadership; empty if it does or
    could, and for other brokers."""
    if "dledgerRole" not in runtime_info or runtime_info.get("dledgerServes") == "true":
        return ""
    if not runtime_info.get("dledgerLeader"):
        return "the group has no leader, as far as it knows"
    if runtime_info["dledgerRole"] == "leader":
        return "it leads, but its log is not committed and dispatched yet"
    if runtime_info.get("dledgerProblem"):
        return runtime_info["dledgerProblem"]
    behind = int_or_none(runtime_info.get("dledgerBehind"))
    if behind is None:
        return f"its leader {runtime_info['dledgerLeader']} has not reached its log yet"
    if behind > TAKEOVER_ENTRIES_MAX:
        return f"it lacks {behind} committed entries"
    if runtime_info.get("dledgerLacksQueueEnds") == "true":
        return "it does not know the ends of queues whose messages have expired"
    return ""


def _why_not_in_sync(group: ListedReplicaGroup, address: str, *, drained: bool) -> str:
    """Why the broker is not in sync as the controllers see it; empty if it is. A drained replica is ready
    outside the SyncStateSet."""
    if group.master_id is None:
        return "the group has no master"
    replica = group.replica_at(address)
    if replica is None:
        return "the controllers do not know this replica"
    if not replica.alive:
        return "its heartbeats do not reach the controllers"
    return "" if replica.in_sync or drained else f"not in the SyncStateSet {group.sync_state_set}"


async def _controller(client: RemotingClient, probe: ControllerProbe) -> Readiness:
    command = request(RequestCode.CONTROLLER_GET_METADATA_INFO)
    response = await client.call(probe.address, command, PROBE_TIMEOUT_MS)
    if response.code != ResponseCode.SUCCESS:
        raise RemoteProtocolError(
            f"{probe.address} responded with code {response.code}: {response.remark or 'no remark'}"
        )
    ext = response.ext or {}
    leader = ext.get("controllerLeaderAddress")
    leads = ext.get("isLeader") == "true"
    role = "leader" if leads else "follower" if leader not in (None, probe.address) else "candidate"
    raft_state = ControllerRaftState(
        role, leader, int_or_none(ext.get("term")), int_or_none(ext.get("committedIndex"))
    )
    reason = ""
    if ext.get("group") != probe.group:
        reason = f"this is a controller of group {ext.get('group')}"
    elif role == "candidate":
        reason = "no leader yet" if leader is None else "elected, but has not applied its log yet"
    elif probe.nameserver is not None:
        try:
            await _body(client, probe.nameserver, request(RequestCode.GET_BROKER_CLUSTER_INFO))
        except EpochMQError as error:
            reason = str(error)
    return Readiness(not reason, reason, controller=raft_state)


def int_or_none(text: str | None) -> int | None:
    """The text as an integer, None if it is none."""
    try:
        return int(text or "")
    except ValueError:
        return None


async def _body(client: RemotingClient, address: str, command: Command) -> dict[Any, Any]:
    """The JSON body of the response to a request."""
    response = await client.call(address, command, PROBE_TIMEOUT_MS)
    if response.code != ResponseCode.SUCCESS:
        raise RemoteProtocolError(
            f"{address} responded with code {response.code}: {response.remark or 'no remark'}"
        )
    body = fastjson.loads(response.body)
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"the body of the response of {address} is not a JSON object")
    return body
