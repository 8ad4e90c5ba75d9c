"""Implements `epochmq controller list`: who leads a quorum of controllers, and the groups that it keeps.

What RocketMQ's requests do not tell, which replicas are eligible or refused, comes from the admin socket of
the leader, if it runs on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from epochmq.client.admin import AdminClient, failure_text
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq_protocol import properties
from epochmq_protocol.admin_api.messages import AdminError
from epochmq_protocol.admin_api.operations import AdminOperation
from epochmq_protocol.admin_api.results import ControllerState, ProcessState, ReplicaGroupState
from epochmq_protocol.bodies import BrokerReplicasInfo, ReplicasInfo
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.headers_controller import GetMetaDataResponseHeader
from epochmq_protocol.transport.admin_socket import call_admin_socket

NAMES_AFTER, NAMES, TERM = "brokerNamesAfter", "brokerNames", "term"
"""Fields of EpochMQ's controllers beyond RocketMQ's (`docs/controller.md`)."""
PAGES_MAX = 20
CONTROLLER_COLUMNS = (
    Column("CONTROLLER", "id"),
    Column("ADDRESS", "address"),
    Column("ROLE", "role"),
    Column("TERM", "term"),
    Column("QUORUM", "quorum", is_wide=True),
)
GROUP_COLUMNS = (
    Column("GROUP", "broker"),
    Column("MASTER", "masterId"),
    Column("EPOCH", "masterEpoch"),
    Column("SYNC STATE SET", "syncStateSet"),
    Column("NOT IN SYNC", "notInSync"),
    Column("NOT ALIVE", "notAlive"),
    Column("ELIGIBLE", "eligible"),
    Column("REFUSED", "refusedIds"),
    Column("WAITS", "waits"),
    Column("MASTER ADDRESS", "masterAddress", is_wide=True),
    Column("SET EPOCH", "syncStateSetEpoch", is_wide=True),
)


def list_controllers(verb: ClusterVerb, addresses: Sequence[str]) -> int:
    """Prints the members of the quorum at these addresses, or that the brokers' settings name."""
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise UsageError(f"ADDRESS {address}: expected HOST:PORT of a controller")
    run_directory = None if addresses else verb.target.run_directory()
    members, groups = verb.run(
        lambda client: listed_controllers(client, addresses, run_directory), nameservers=addresses or None
    )
    tables = [
        OutputTable(CONTROLLER_COLUMNS, members, "Controllers"),
        OutputTable(GROUP_COLUMNS, groups, "Groups"),
    ]
    document = {"controllers": members, "groups": groups}
    print_result(VerbResult(document, tables, [str(row["address"]) for row in members]), verb.output)
    for group in groups:
        for one in group["refused"] or ():
            print_error(
                f"{group['broker']}/{one['brokerId']} at {one['address']} is refused: {one['reason']}"
            )
    return ExitCode.OK


async def listed_controllers(
    client: AdminClient, addresses: Sequence[str], run_directory: Path | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The members of a quorum (`CONTROLLER_COLUMNS`) and the groups that it keeps (`GROUP_COLUMNS`). Without
    addresses of controllers the quorum is the one that the settings of brokers name."""
    members, leader, names = await _quorum(client, addresses or await _addresses_of_brokers(client))
    if not addresses:
        names |= {one.broker_name for one in await client.brokers()}
    body = msgspec.json.encode(sorted(names))
    found = await client.read(
        BrokerReplicasInfo, leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body
    )
    known = await _known_on_this_machine(run_directory, leader)
    groups = [
        group_row(name, info, known.get(name)) for name, info in sorted(found.replicas_info_table.items())
    ]
    return members, groups


async def _addresses_of_brokers(client: AdminClient) -> list[str]:
    """The controllers that the settings of brokers name. Raises RequestError if they name none."""
    found: list[str] = []
    for broker in await client.brokers():
        try:
            response = await client.call(broker.address, RequestCode.GET_BROKER_CONFIG)
        except EpochMQError:
            continue  # another broker of the group may respond
        known = properties.parse(response.body.decode(errors="replace"))
        if known.get("enableControllerMode") == "true":
            found += [one.strip() for one in known.get("controllerAddr", "").split(";") if one.strip()]
    if not found:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            "no broker that responds has controllers (enableControllerMode, controllerAddr); name one: "
            "`epochmq controller list HOST:PORT`",
        )
    return list(dict.fromkeys(found))


async def _quorum(
    client: AdminClient, addresses: Sequence[str]
) -> tuple[list[dict[str, Any]], str, set[str]]:
    """The members of the quorum, the leader's address, and the groups that it names. Raises RequestError if
    no controller responds, or none leads."""
    faults: list[str] = []
    for address in addresses:
        try:
            leader = (await _metadata(client, address))[0].controller_leader_address
            if not leader:
                faults.append(f"{address} knows no leader")
                continue
            header, ext = await _metadata(client, leader)
            return members_of(header, ext.get(TERM), leader), leader, await _names(client, leader)
        except EpochMQError as error:
            faults.append(failure_text(error))
    raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, f"no controller leads: {'; '.join(faults)}")


async def _metadata(client: AdminClient, address: str) -> tuple[GetMetaDataResponseHeader, dict[str, str]]:
    answer = await client.call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
    return GetMetaDataResponseHeader.decode(answer.ext), answer.ext or {}


def members_of(header: GetMetaDataResponseHeader, term: str | None, leader: str) -> list[dict[str, Any]]:
    """A row for each member; RocketMQ's controllers do not tell their term."""
    members = dict(one.partition(":")[::2] for one in (header.peers or "").split(";") if one)
    members = members or {header.controller_leader_id or "": leader}
    return [
        {
            "id": name,
            "address": leader if name == header.controller_leader_id else address,
            "role": "leader" if name == header.controller_leader_id else "follower",
            "term": int(term) if term and term.isdecimal() and name == header.controller_leader_id else None,
            "quorum": header.group,
        }
        for name, address in sorted(members.items())
    ]


async def _names(client: AdminClient, leader: str) -> set[str]:
    names: set[str] = set()
    after = ""
    for _ in range(PAGES_MAX):
        answer = await client.call(
            leader, RequestCode.CONTROLLER_GET_METADATA_INFO, fields={NAMES_AFTER: after}
        )
        try:
            page = msgspec.json.decode((answer.ext or {}).get(NAMES, "[]"), type=list[str])
        except msgspec.DecodeError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{leader}: {NAMES}: {error}") from None
        if not page or page[-1] <= after:
            break
        names |= set(page)
        after = page[-1]
    return names


async def _known_on_this_machine(run_directory: Path | None, leader: str) -> dict[str, ReplicaGroupState]:
    """The groups in the state of the leader, from its admin socket in the state directory; none without."""
    sockets = sorted((run_directory / "run").glob("*.sock")) if run_directory is not None else []
    for socket in sockets:
        try:
            text = await call_admin_socket(str(socket), AdminOperation.STATE)
            state = msgspec.json.decode(text, type=ProcessState)
        except (EpochMQError, AdminError, msgspec.DecodeError):
            continue
        if isinstance(state, ControllerState) and state.leads and state.address == leader:
            return {group.broker_name: group for group in state.groups}
    return {}


def group_row(name: str, info: ReplicasInfo, known: ReplicaGroupState | None) -> dict[str, Any]:
    """A group as its leader lists it. What only the admin socket tells is null without it."""
    replicas = [(one, True) for one in info.in_sync_replicas]
    replicas += [(one, False) for one in info.not_in_sync_replicas]
    refused = None if known is None else [msgspec.to_builtins(one) for one in known.refused]
    return {
        "broker": name,
        "masterId": info.master_broker_id,
        "masterAddress": info.master_address or None,
        "masterEpoch": info.master_epoch,
        "syncStateSet": sorted(one.broker_id or 0 for one in info.in_sync_replicas),
        "syncStateSetEpoch": info.sync_state_set_epoch,
        "notInSync": sorted(one.broker_id or 0 for one in info.not_in_sync_replicas),
        "notAlive": sorted(one.broker_id or 0 for one, _ in replicas if not one.alive),
        "replicas": [
            {
                "brokerId": one.broker_id,
                "address": one.broker_address,
                "alive": bool(one.alive),
                "inSync": in_sync,
            }
            for one, in_sync in replicas
        ],
        "eligible": None if known is None else known.eligible,
        "refused": refused,
        "refusedIds": None if refused is None else [one["brokerId"] for one in refused],
        "waits": None if known is None else known.waits,
    }
