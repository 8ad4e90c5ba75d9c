"""Makes the changes of a Raft group's members that are requested over the admin API of the leader."""

from __future__ import annotations

from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.peer_addresses import is_valid_member
from epochmq_dledger.results import RaftOperationError
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import ChangeMembersArguments
from epochmq_protocol.dledger import DLedgerResponseCode
from epochmq_protocol.transport.group_members import MembersClient


async def change_members(
    peer: DLedgerPeer, wanted: ChangeMembersArguments, members: MembersClient
) -> results.MembersResult:
    """Adds or removes one member, and waits until the change is committed. A leader that is to be removed
    transfers its leadership instead, and rejects the request. A change that is in effect already succeeds at
    once. AdminError if the change cannot be made now: BUSY while another one is under way."""
    if wanted.address is not None and not is_valid_member(wanted.member, wanted.address):
        raise AdminError(
            FaultKind.INVALID,
            f"address={wanted.address}: expected host:port of {wanted.member}, an id without a dash",
        )
    try:
        await peer.change_members(wanted.member, wanted.address)
    except RaftOperationError as error:
        is_under_way = error.code == DLedgerResponseCode.REPEATED_REQUEST
        kind = FaultKind.BUSY if is_under_way else FaultKind.REFUSED
        raise AdminError(kind, members.explain(error.code)) from None
    return results.MembersResult(members=member_states(peer), leader=peer.leader_id, term=peer.term)


def member_states(peer: DLedgerPeer) -> list[results.ControllerPeer]:
    """The members as this peer knows them. Only a leader knows how much of its log they have."""
    leader = peer.node.leader
    known = leader.peers if leader is not None else {}
    return [
        results.ControllerPeer(
            id=name, address=address, match_index=known[name].match_index if name in known else None
        )
        for name, address in peer.members.items()
    ]
