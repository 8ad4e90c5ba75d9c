"""Requests the replica groups that a quorum of controllers keeps from its leader."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epochmq_operator.status_model import ListedReplica, ListedReplicaGroup
from epochmq_protocol.bodies import BrokerReplicasInfo, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RemoteProtocolError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.transport import RemotingClient

PROBE_TIMEOUT_MS = 1000
NAMES_AFTER, NAMES = "brokerNamesAfter", "brokerNames"
"""Fields of our extension that lists a controller's groups (`docs/controller.md`)."""
PAGES_MAX = 20
"""A controller lists 500 names a page."""


async def find_leader(client: RemotingClient, controllers: Sequence[str]) -> str:
    """The address of the leading controller, by the first of these that knows it. EpochMQError if none
    does."""
    faults: list[str] = []
    for address in controllers:
        try:
            answer = await _answer(client, address, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
        except EpochMQError as error:
            faults.append(str(error))
            continue
        leader = (answer.ext or {}).get("controllerLeaderAddress")
        if leader:
            return leader
        faults.append(f"{address} knows no leader")
    raise EpochMQError("no controller leads: " + ("; ".join(faults) or "there is none"))


async def fetch_replica_group(client: RemotingClient, leader: str, broker_name: str) -> ListedReplicaGroup:
    """Fetches one group from the leader at this address. EpochMQError if the leader does not know it."""
    found = await _asked(client, leader, [broker_name])
    if not found:
        raise EpochMQError(f"the controllers know no replica group {broker_name}")
    return found[0]


async def fetch_replica_groups(client: RemotingClient, leader: str) -> list[ListedReplicaGroup]:
    """Fetches all groups from the leader at this address (host:port), sorted by name, up to a bound.
    EpochMQError if it does not respond or no longer leads."""
    groups: list[ListedReplicaGroup] = []
    after = ""
    for _ in range(PAGES_MAX):
        question = request(RequestCode.CONTROLLER_GET_METADATA_INFO, ext={NAMES_AFTER: after})
        answer = await _answer(client, leader, question)
        try:
            names = msgspec.json.decode((answer.ext or {}).get(NAMES, "[]"), type=list[str])
        except msgspec.DecodeError as error:
            raise RemoteProtocolError(
                f"{leader} responded with {NAMES} that are not a list: {error}"
            ) from None
        if not names:
            break
        after = names[-1]
        groups += await _asked(client, leader, names)
    return groups


async def _asked(client: RemotingClient, leader: str, names: list[str]) -> list[ListedReplicaGroup]:
    question = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=msgspec.json.encode(names))
    return _groups(from_json(BrokerReplicasInfo, (await _answer(client, leader, question)).body))


async def _answer(client: RemotingClient, leader: str, question: Command) -> Command:
    answer = await client.call(leader, question, PROBE_TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise EpochMQError(f"{leader} responded with code {answer.code}: {answer.remark or 'no remark'}")
    return answer


def _groups(body: BrokerReplicasInfo) -> list[ListedReplicaGroup]:
    groups: list[ListedReplicaGroup] = []
    for name, info in sorted(body.replicas_info_table.items()):
        replicas = [
            ListedReplica(
                broker_id=replica.broker_id or 0,
                address=replica.broker_address,
                alive=bool(replica.alive),
                in_sync=in_sync,
            )
            for in_sync, replicas in ((True, info.in_sync_replicas), (False, info.not_in_sync_replicas))
            for replica in replicas
        ]
        groups.append(
            ListedReplicaGroup(
                broker_name=name,
                master_id=info.master_broker_id,
                master_address=info.master_address or None,
                master_epoch=info.master_epoch,
                sync_state_set_epoch=info.sync_state_set_epoch,
                sync_state_set=sorted(replica.broker_id for replica in replicas if replica.in_sync),
                replicas=sorted(replicas, key=lambda replica: replica.broker_id),
            )
        )
    return groups
