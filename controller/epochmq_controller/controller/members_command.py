"""Implements `epochmq controller members`: shows the members of a quorum of controllers, and changes them
online.

The address of one controller is enough: it names the leader. The leader makes the change, and responds when
it is committed. A leader that shall be removed first transfers its leadership; then the command asks the next
leader.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from epochmq_dledger.peer_addresses import parse_peers
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.dledger import (
    ChangeMembersRequest,
    ChangeMembersResponse,
    DLedgerRequestCode,
    DLedgerResponseCode,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import GetMetaDataResponseHeader
from epochmq_protocol.transport.client import RemotingClient, split_address

USAGE = """\
Usage: epochmq controller members ADDRESS [--add ID-HOST:PORT | --remove ID]

  Shows the members of the quorum that the controller at ADDRESS (host:port) belongs to, or adds or removes
  one controller. A new controller must be running, with joinControllerGroup=true and with the present
  controllers and itself in controllerDLegerPeers. Only one change at a time; all controllers must be
  EpochMQ's.
"""

TIMEOUT_S = 120.0
RETRY_S = 0.3
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

EXPLANATIONS = {
    DLedgerResponseCode.UNSUPPORTED: "a controller of the quorum is not EpochMQ's: no change of the members "
    "is possible beside RocketMQ's controllers",
    DLedgerResponseCode.REPEATED_REQUEST: "another change is in progress",
    DLedgerResponseCode.LEADER_NOT_READY: "the leader is new, try again",
    DLedgerResponseCode.LEADER_TRANSFERRING: "the leader is transferring its leadership, try again",
    DLedgerResponseCode.NETWORK_ERROR: "the new controller does not respond to the leader: is it running, "
    "with joinControllerGroup=true?",
    DLedgerResponseCode.FALL_BEHIND_TOO_MUCH: "the new controller does not catch up with the leader",
    DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT: "no quorum responds; the change may still be committed",
    DLedgerResponseCode.TERM_CHANGED: "the leader changed; the change may still be committed",
    DLedgerResponseCode.TAKE_LEADERSHIP_FAILED: "the leader to be removed could not transfer its "
    "leadership, try again",
    DLedgerResponseCode.UNEXPECTED_ARGUMENT: "the member is invalid: expected an id without a dash, "
    "host:port, and at most nine members",
    DLedgerResponseCode.UNEXPECTED_MEMBER: "it is the only member",
    DLedgerResponseCode.UNKNOWN_GROUP: "the leader belongs to another group",
}
RETRIABLE_CODES = (
    DLedgerResponseCode.NOT_LEADER,
    DLedgerResponseCode.LEADER_NOT_READY,
    DLedgerResponseCode.LEADER_TRANSFERRING,
)


class MembersError(Exception):
    """A change of the members failed."""


@dataclass(frozen=True)
class MemberChange:
    """A member to add or, without an address, to remove. Without an id: no change, the members are only
    shown."""

    peer_id: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class QuorumMembers:
    """The members of a quorum, and its leader."""

    members: dict[str, str]
    leader: str | None


def run(arguments: list[str]) -> int:
    """Runs the command. Returns 0 if it succeeded, 1 if it failed, 2 for invalid arguments."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return EXIT_OK
    try:
        address, wanted = parse(arguments)
    except ValueError as error:
        print(f"epochmq controller members: {error}\n{USAGE}", end="", file=sys.stderr)
        return EXIT_USAGE
    try:
        found = asyncio.run(_change_within_timeout(address, wanted))
    except (MembersError, EpochMQError) as error:
        print(f"epochmq controller members: {error}", file=sys.stderr)
        return EXIT_FAILED
    for name, where in sorted(found.members.items()):
        print(f"{name}  {where}" + ("  leader" if name == found.leader else ""))
    return EXIT_OK


def parse(arguments: list[str]) -> tuple[str, MemberChange]:
    """Parses the arguments to (address of a controller, change). ValueError for invalid ones."""
    match arguments:
        case [address]:
            return address, MemberChange()
        case [address, "--add", text]:
            peers = parse_peers(text)
            if len(peers) != 1:
                raise ValueError(f"--add {text}: expected one ID-HOST:PORT")
            ((name, where),) = peers.items()
            return address, MemberChange(name, where)
        case [address, "--remove", name]:
            return address, MemberChange(name)
        case _:
            raise ValueError(f"invalid arguments: {' '.join(arguments) or 'the address is missing'}")


def _members(text: str) -> dict[str, str]:
    """Parses `n0:host:port;n1:host:port;`, the form of 1005's response, to addresses by id."""
    found = {}
    for part in filter(None, text.split(";")):
        name, _, address = part.partition(":")
        found[name] = address
    return found


async def _change_within_timeout(address: str, wanted: MemberChange) -> QuorumMembers:
    try:
        async with asyncio.timeout(TIMEOUT_S), RemotingClient() as client:
            return await change(client, address, wanted)
    except TimeoutError:
        raise MembersError(f"timed out after {TIMEOUT_S:.0f} s; the change may still be committed") from None


async def change(client: RemotingClient, address: str, wanted: MemberChange) -> QuorumMembers:
    """Makes a change and returns once it is committed. Without a change it returns the members. MembersError
    says why it failed; EpochMQError if a controller does not respond."""
    split_address(address)
    while True:
        metadata_response = await client.call(address, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
        metadata = GetMetaDataResponseHeader.decode(metadata_response.ext)
        members = _members(metadata.peers or "")
        leader = metadata.controller_leader_id
        if wanted.peer_id is None:
            return QuorumMembers(members, leader)
        if leader is not None and leader in members:
            body = ChangeMembersRequest(
                group=metadata.group, remote_id=leader, peer_id=wanted.peer_id, address=wanted.address
            )
            command = request(DLedgerRequestCode.CHANGE_MEMBERS, body=encode_body(body))
            response = await client.call(members[leader], command, TIMEOUT_S * 1000)
            if response.code != DLedgerResponseCode.SUCCESS:
                raise MembersError(f"{leader} is RocketMQ's: {EXPLANATIONS[DLedgerResponseCode.UNSUPPORTED]}")
            outcome = decode_body(ChangeMembersResponse, response.body)
            if outcome.code == DLedgerResponseCode.SUCCESS:
                return QuorumMembers(outcome.members, outcome.leader_id)
            if outcome.code not in RETRIABLE_CODES:
                code = DLedgerResponseCode(outcome.code)
                raise MembersError(
                    EXPLANATIONS.get(code, f"the leader rejected the change: {code.name} ({code.value})")
                )
        await asyncio.sleep(RETRY_S)
