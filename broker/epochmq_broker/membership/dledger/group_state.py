"""Reports the state of a broker's DLedger peer: to the admin API, and in the runtime information."""

from __future__ import annotations

from typing import Final, Literal

from epochmq_broker.membership.dledger.commit_log_peer import CommitLogPeer, broker_id_of_peer
from epochmq_dledger.core.types import RaftRole
from epochmq_dledger.peer import DLedgerPeer
from epochmq_protocol.admin_api.results import DLedgerPeerState, DLedgerState

_ROLES: Final[dict[RaftRole, Literal["leader", "follower", "candidate"]]] = {
    RaftRole.LEADER: "leader",
    RaftRole.FOLLOWER: "follower",
    RaftRole.CANDIDATE: "candidate",
}


def dledger_state(commit_log: CommitLogPeer) -> DLedgerState:
    """The state of this peer. Before it has joined its group, it is a candidate that knows no leader."""
    peer = commit_log.peer
    own_id, lacks = peer.settings.self_id, commit_log.queue_ends.are_missing
    if not commit_log.has_joined:
        return DLedgerState(
            id=own_id, role="candidate", term=0, leader=None, serves=False, committed_index=-1,
            end_index=peer.log.end_index, behind=None, lacks_queue_ends=lacks, peers=[],
        )  # fmt: skip
    return DLedgerState(
        id=own_id,
        role=_ROLES[peer.role],
        term=peer.term,
        leader=peer.leader_id,
        serves=commit_log.is_ready,
        committed_index=peer.committed_index,
        end_index=peer.log.end_index,
        behind=peer.behind,
        lacks_queue_ends=lacks,
        peers=[_peer_state(peer, name) for name in sorted(peer.members, key=broker_id_of_peer)],
        problem=commit_log.problem or None,
        messages_rejected=peer.messages_rejected,
    )


def _peer_state(peer: DLedgerPeer, name: str) -> DLedgerPeerState:
    leader = peer.node.leader
    alive: bool | None = None
    lag_bytes: int | None = None
    if leader is not None and name == peer.settings.self_id:
        alive, lag_bytes = True, 0
    elif leader is not None and name in leader.peers:
        progress = leader.peers[name]
        end = peer.log.end_position(progress.match_index)
        alive, lag_bytes = progress.alive, peer.log.end_pos - end if end >= 0 else None
    return DLedgerPeerState(
        id=name,
        broker_id=broker_id_of_peer(name),
        address=peer.members[name],
        alive=alive,
        lag_bytes=lag_bytes,
    )


def runtime_info(commit_log: CommitLogPeer) -> dict[str, str]:
    """The entries of the runtime information about the peer. `dledgerBehind` is empty while unknown."""
    state = dledger_state(commit_log)
    return {
        "dledgerId": state.id,
        "dledgerRole": state.role,
        "dledgerTerm": str(state.term),
        "dledgerLeader": state.leader or "",
        "dledgerServes": str(state.serves).lower(),
        "dledgerBehind": "" if state.behind is None else str(state.behind),
        "dledgerLacksQueueEnds": str(state.lacks_queue_ends).lower(),
        "dledgerProblem": state.problem or "",
        "dledgerLogEnd": str(commit_log.peer.log.end_pos),
    }
