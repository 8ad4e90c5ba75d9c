"""Rebuilds the replica groups that the controllers have forgotten, because all of them lost their storage:
asks the brokers what they know, and has the leading controller rebuild each group (20012, ADOPT_GROUP)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from epochmq_operator.adoption_plan import AdoptionError, BrokerReport, plan_adoption
from epochmq_operator.local.replica_groups import find_leader
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.local.status import LocalObservation, leading_controller, observe
from epochmq_operator.pod_rendering import inner_client_credentials
from epochmq_operator.pods import BrokerProbe
from epochmq_protocol.bodies import KVTable, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.replica_control import REMAINING_EPOCHS, AdoptedGroup, ReplicaControlCode
from epochmq_protocol.signatures import SessionCredentials
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_protocol.transport.outgoing_tls import ClientCertificates

ANSWER_MS: Final = 5000
RETRY_S: Final = 0.2
RETRIED: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.CONTROLLER_NOT_LEADER)


@dataclass(frozen=True, slots=True)
class GroupMembersToAsk:
    """The controllers of one group, and its brokers by label (label → host:port)."""

    controllers: Sequence[str]
    brokers: Mapping[str, str]
    credentials: SessionCredentials | None = None
    members: MemberAuthentication | None = None
    """The membership with which the controllers are asked."""
    tls: ClientCertificates | None = None


async def forgotten_groups(state: StateDirectory) -> list[GroupMembersToAsk]:
    """The groups of this run that their controllers do not know. AdoptionError if no controller leads."""
    seen = await observe(state)
    found = []
    for group in seen.resources.broker_groups:
        if group.controlled_by is None:
            continue
        if group.controlled_by not in seen.replica_groups:
            raise AdoptionError(f"no controller of {group.controlled_by} leads; start the controllers first")
        listed = seen.reported_group(group)
        if listed is not None and (listed.master_id is not None or listed.sync_state_set):
            continue
        found.append(
            GroupMembersToAsk(
                _controllers(seen, group.controlled_by),
                {
                    one.pod.name: one.pod.port("remoting")
                    for one in seen.of(group)
                    if isinstance(one.pod.probe, BrokerProbe)
                },
                inner_client_credentials(group),
                state.members(),
            )
        )
    return found


def _controllers(seen: LocalObservation, name: str) -> list[str]:
    group = next(one for one in seen.resources.all_controller_groups if one.name == name)
    leader = leading_controller(group, seen.pods)
    assert leader is not None, "its groups were listed"
    return [leader.pod.port("remoting")]


async def plan_of(group: GroupMembersToAsk, *, accept_missing: bool) -> AdoptedGroup:
    """Asks all brokers at once, and decides how the group is rebuilt. AdoptionError if it cannot be, or if a
    broker that may have more does not respond (`accept_missing`)."""
    async with RemotingClient(credentials=group.credentials, tls=group.tls) as client:
        answers = await asyncio.gather(
            *(_runtime_info(client, address) for address in group.brokers.values())
        )
    found = dict(zip(group.brokers.items(), answers, strict=True))
    reports = [
        BrokerReport.parse(label, address, info)
        for (label, address), info in found.items()
        if info is not None
    ]
    silent = [f"{label} at {address}" for (label, address), info in found.items() if info is None]
    return plan_adoption(reports, silent, accept_missing=accept_missing)


async def _runtime_info(client: RemotingClient, address: str) -> dict[str, str] | None:
    try:
        answer = await client.call(address, request(RequestCode.GET_BROKER_RUNTIME_INFO), ANSWER_MS)
    except EpochMQError:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise AdoptionError(f"{address} responded with code {answer.code}: {answer.remark or 'no remark'}")
    return from_json(KVTable, answer.body).table


async def carry_out(group: GroupMembersToAsk, plan: AdoptedGroup, timeout_s: float) -> None:
    """Has the leading controller rebuild the group; returns when its master is elected. AdoptionError if the
    controller rejects the plan, or after the timeout. May be repeated."""
    body, last = msgspec.json.encode(plan), "no controller responded"
    try:
        async with (
            asyncio.timeout(timeout_s),
            RemotingClient(members=group.members, tls=group.tls) as client,
        ):
            while True:
                try:
                    leader = await find_leader(client, group.controllers)
                    command = request(ReplicaControlCode.ADOPT_GROUP, body=body)
                    answer = await client.call(leader, command, ANSWER_MS)
                except EpochMQError as error:
                    last = str(error)
                    await asyncio.sleep(RETRY_S)
                    continue
                last = answer.remark or f"code {answer.code}"
                if answer.code == ResponseCode.SUCCESS:
                    if (answer.ext or {}).get(REMAINING_EPOCHS, "0") == "0":
                        return
                elif answer.code in RETRIED:
                    await asyncio.sleep(RETRY_S)
                else:
                    raise AdoptionError(f"the controller at {leader} rejected the plan: {last}")
    except TimeoutError:
        raise AdoptionError(f"the group was not rebuilt within {timeout_s:g} s: {last}") from None
