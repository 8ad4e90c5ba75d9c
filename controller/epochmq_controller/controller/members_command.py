"""`epochmq controller members`: who belongs to a quorum of controllers, shown and changed while it serves.

One of its controllers is enough to know: it says who leads. The leader is asked, and answers when the change
is committed. A leader that is to be removed hands over first; then the next one is asked.
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

  Shows who belongs to the quorum of which the controller at ADDRESS (host:port) is one, or adds or removes
  one controller. A new one must be running, with joinControllerGroup=true and controllerDLegerPeers naming
  the present ones and itself. One change at a time; all controllers must be EpochMQ's.
"""

TIMEOUT_S = 120.0
RETRY_S = 0.3
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

EXPLANATIONS = {
    DLedgerResponseCode.UNSUPPORTED: "a controller of the quorum is not EpochMQ's: no change of the members "
    "is possible beside RocketMQ's controllers",
    DLedgerResponseCode.REPEATED_REQUEST: "another change is under way",
    DLedgerResponseCode.LEADER_NOT_READY: "the leader is new, try again",
    DLedgerResponseCode.LEADER_TRANSFERRING: "leadership is being handed over, try again",
    DLedgerResponseCode.NETWORK_ERROR: "the new controller does not answer the leader: is it running, with "
    "joinControllerGroup=true?",
    DLedgerResponseCode.FALL_BEHIND_TOO_MUCH: "the new controller does not catch up with the leader",
    DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT: "no quorum answers; the change may still be committed",
    DLedgerResponseCode.TERM_CHANGED: "the leader changed; the change may still be committed",
    DLedgerResponseCode.TAKE_LEADERSHIP_FAILED: "the leader that is to be removed could not hand over, try "
    "again",
    DLedgerResponseCode.UNEXPECTED_ARGUMENT: "such a member cannot be: expected an id without a dash, "
    "host:port, and at most nine members",
    DLedgerResponseCode.UNEXPECTED_MEMBER: "it is the only member",
    DLedgerResponseCode.UNKNOWN_GROUP: "the leader is of another group",
}
RETRIABLE_CODES = (
    DLedgerResponseCode.NOT_LEADER,
    DLedgerResponseCode.LEADER_NOT_READY,
    DLedgerResponseCode.LEADER_TRANSFERRING,
)


class MembersError(Exception):
    """What a person should know."""


@dataclass(frozen=True)
class MemberChange:
    """A peer that shall belong to the group, or, without an address, no longer. None of both: a question."""

    peer_id: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class QuorumMembers:
    """Who belongs to it, and who leads."""

    members: dict[str, str]
    leader: str | None


def run(arguments: list[str]) -> int:
    """0: shown, or done; 1: it could not be; 2: the arguments cannot be understood."""
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
    """(a controller's address, what is wanted). ValueError for what cannot be."""
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
            raise ValueError(f"what is {' '.join(arguments) or 'the address'}?")


def _members(text: str) -> dict[str, str]:
    """`n0:host:port;n1:host:port;`, as 1005 is answered, as address by id."""
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
        raise MembersError(f"not within {TIMEOUT_S:.0f} s; the change may still be committed") from None


async def change(client: RemotingClient, address: str, wanted: MemberChange) -> QuorumMembers:
    """Carries a change out and returns once it is committed; `wanted` may ask for nothing. MembersError says
    why it cannot be; EpochMQError when a controller does not answer."""
    split_address(address)
    while True:
        answer = await client.call(address, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
        metadata = GetMetaDataResponseHeader.decode(answer.ext)
        members = _members(metadata.peers or "")
        leader = metadata.controller_leader_id
        if wanted.peer_id is None:
            return QuorumMembers(members, leader)
        if leader is not None and leader in members:
            body = ChangeMembersRequest(
                group=metadata.group, remote_id=leader, peer_id=wanted.peer_id, address=wanted.address
            )
            command = request(DLedgerRequestCode.CHANGE_MEMBERS, body=encode_body(body))
            told = await client.call(members[leader], command, TIMEOUT_S * 1000)
            if told.code != DLedgerResponseCode.SUCCESS:
                raise MembersError(f"{leader} is RocketMQ's: {EXPLANATIONS[DLedgerResponseCode.UNSUPPORTED]}")
            outcome = decode_body(ChangeMembersResponse, told.body)
            if outcome.code == DLedgerResponseCode.SUCCESS:
                return QuorumMembers(outcome.members, outcome.leader_id)
            if outcome.code not in RETRIABLE_CODES:
                code = DLedgerResponseCode(outcome.code)
                raise MembersError(EXPLANATIONS.get(code, f"the leader refused: {code.name} ({code.value})"))
        await asyncio.sleep(RETRY_S)
