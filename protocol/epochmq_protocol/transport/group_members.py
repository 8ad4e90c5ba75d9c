"""Asks a Raft group for its members, and changes them online: the controllers of a quorum, or the brokers of
a DLedger group.

The address of one peer's process is enough: it names the leader. The leader makes the change, and responds
when it is committed. A leader that shall be removed first transfers its leadership; then the next leader is
asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.dledger import (
    ChangeMembersRequest,
    ChangeMembersResponse,
    DLedgerRequestCode,
    DLedgerResponseCode,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import GetMetaDataResponseHeader
from epochmq_protocol.transport.client import RemotingClient, split_address

CHANGE_TIMEOUT_S = 120.0
"""How long a change may take; the time is that in which a new member gets the log."""
RETRY_S = 0.3

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
class GroupMembers:
    """The addresses of a group's members by id, and its leader. `group`: the name that requests carry."""

    members: dict[str, str]
    leader: str | None
    group: str | None = None


Describe = Callable[[RemotingClient, str], Awaitable[GroupMembers]]
"""Asks the process at an address for the members of its group. EpochMQError if it does not respond."""


@dataclass(frozen=True)
class MembersClient:
    """Asks groups of one kind. `noun`: what the members are; `joining_key`: the key with which a new one is
    started."""

    noun: str
    joining_key: str
    describe: Describe

    async def change(self, client: RemotingClient, address: str, wanted: MemberChange) -> GroupMembers:
        """Makes a change and returns once it is committed. Without a change it returns the members. Asks
        again until there is a leader that can make the change; the caller limits the time. MembersError says
        why it failed; EpochMQError if a process does not respond."""
        split_address(address)
        while (found := await self._change_once(client, address, wanted)) is None:  # noqa: ASYNC110 (other processes bring it about)
            await asyncio.sleep(RETRY_S)
        return found

    async def _change_once(
        self, client: RemotingClient, address: str, wanted: MemberChange
    ) -> GroupMembers | None:
        """The same, asked once. None if no peer leads that can make the change now."""
        known = await self.describe(client, address)
        if wanted.peer_id is None:
            return known
        if known.leader is None or known.leader not in known.members:
            return None
        body = ChangeMembersRequest(
            group=known.group, remote_id=known.leader, peer_id=wanted.peer_id, address=wanted.address
        )
        command = request(DLedgerRequestCode.CHANGE_MEMBERS, body=encode_body(body))
        response = await client.call(known.members[known.leader], command, CHANGE_TIMEOUT_S * 1000)
        if response.code != DLedgerResponseCode.SUCCESS:
            reason = self.explain(DLedgerResponseCode.UNSUPPORTED)
            raise MembersError(f"{known.leader} is RocketMQ's: {reason}")
        outcome = decode_body(ChangeMembersResponse, response.body)
        if outcome.code == DLedgerResponseCode.SUCCESS:
            return GroupMembers(outcome.members, outcome.leader_id, known.group)
        if outcome.code in RETRIABLE_CODES:
            return None
        raise MembersError(self.explain(DLedgerResponseCode(outcome.code)))

    async def fetch(self, client: RemotingClient, addresses: Iterable[str]) -> GroupMembers:
        """Fetches the members from the leader, which the first of these processes that knows one names.
        EpochMQError if none does, or if the leader does not respond."""
        faults: list[str] = []
        for address in addresses:
            try:
                known = await self.describe(client, address)
            except EpochMQError as error:
                faults.append(str(error))
                continue
            if known.leader in known.members:
                found = await self.describe(client, known.members[known.leader])
                if found.leader == known.leader:
                    return found
            faults.append(f"{address} knows no leader")
        raise EpochMQError(f"no {self.noun} leads: " + "; ".join(faults))

    def explain(self, code: DLedgerResponseCode) -> str:
        """Why a leader rejected a change with this code."""
        noun = self.noun
        explanations = {
            DLedgerResponseCode.UNSUPPORTED: f"the group has a {noun} of RocketMQ, or of an earlier release "
            "of EpochMQ: no change of the members is possible beside it",
            DLedgerResponseCode.NOT_LEADER: f"this {noun} does not lead, or has just transferred its "
            "leadership",
            DLedgerResponseCode.REPEATED_REQUEST: "another change is in progress",
            DLedgerResponseCode.LEADER_NOT_READY: "the leader is new, try again",
            DLedgerResponseCode.LEADER_TRANSFERRING: "the leader is transferring its leadership, try again",
            DLedgerResponseCode.NETWORK_ERROR: f"the new {noun} does not respond to the leader: is it "
            f"running, with {self.joining_key}=true?",
            DLedgerResponseCode.FALL_BEHIND_TOO_MUCH: f"the new {noun} does not catch up with the leader",
            DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT: "no quorum responds; the change may still be "
            "committed",
            DLedgerResponseCode.TERM_CHANGED: "the leader changed; the change may still be committed",
            DLedgerResponseCode.TAKE_LEADERSHIP_FAILED: "the leader to be removed could not transfer its "
            "leadership, try again",
            DLedgerResponseCode.UNEXPECTED_ARGUMENT: "the member is invalid: expected an id without a dash, "
            "host:port, and at most nine members",
            DLedgerResponseCode.UNEXPECTED_MEMBER: "it is the only member",
            DLedgerResponseCode.UNKNOWN_GROUP: "the leader belongs to another group",
        }
        return explanations.get(code, f"the leader rejected the change: {code.name} ({code.value})")


def _parse_members(text: str) -> dict[str, str]:
    """Parses `n0:host:port;n1:host:port;`, the form of 1005's response, to addresses by id."""
    found = {}
    for part in filter(None, text.split(";")):
        name, _, address = part.partition(":")
        found[name] = address
    return found


async def _describe_controllers(client: RemotingClient, address: str) -> GroupMembers:
    response = await client.call(address, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
    metadata = GetMetaDataResponseHeader.decode(response.ext)
    return GroupMembers(_parse_members(metadata.peers or ""), metadata.controller_leader_id, metadata.group)


async def _describe_brokers(client: RemotingClient, address: str) -> GroupMembers:
    command = request(DLedgerRequestCode.CHANGE_MEMBERS, body=encode_body(ChangeMembersRequest()))
    response = await client.call(address, command)
    if response.code != DLedgerResponseCode.SUCCESS:
        raise RequestError(response.code, f"{address} is no DLedger peer of EpochMQ's: {response.remark}")
    found = decode_body(ChangeMembersResponse, response.body)
    return GroupMembers(found.members, found.leader_id, found.group)


CONTROLLERS = MembersClient("controller", "joinControllerGroup", _describe_controllers)
"""The members of a quorum of controllers, by the address of any controller."""
BROKERS = MembersClient("broker", "joinDLedgerGroup", _describe_brokers)
"""The brokers of a DLedger group, by the address of any peer in dLegerPeers."""
