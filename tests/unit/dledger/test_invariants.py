"""Each invariant of the core is broken once, and the check names it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
import pytest

from epochmq_dledger.core.election import Candidacy
from epochmq_dledger.core.leader import Leader
from epochmq_dledger.core.leader_state import PendingProposal
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.peer_progress import AppendState, InFlightPush, PeerProgress
from epochmq_dledger.core.raft_log import MemoryLog, check_terms, make_entry
from epochmq_dledger.core.rejoin import Rejoin
from epochmq_dledger.core.types import RaftRole, SavedMembership, Snapshot
from epochmq_protocol.dledger import PushEntryRequest, VoteResult
from epochmq_protocol.errors import InvariantError
from tests.unit.dledger.scripted_node import FILE_SIZE, ScriptedNode, fill


def leading() -> ScriptedNode:
    """The leader of a term, with ten older entries and one of its own, all committed."""
    log = MemoryLog()
    fill(log, range(10))
    stage = ScriptedNode(log=log)
    stage.elect()
    stage.settle()
    return stage


def leader_of(stage: ScriptedNode) -> Leader:
    assert stage.node.leader is not None
    return stage.node.leader


def members(*voters: str) -> dict[str, str]:
    return dict.fromkeys(voters, "host:1")


def have_memberships(member: MemberState, *history: SavedMembership) -> None:
    member.membership._history = list(history)
    member.membership._update_voters()


def have_snapshot(member: MemberState, index: int) -> None:
    entry = make_entry(index, 1, b"", 0, FILE_SIZE)
    member.snapshot = Snapshot(entry, 1, 0)


def state_of(peer: PeerProgress) -> AppendState:
    peer.state = AppendState(11, deque([InFlightPush(1, 10, 2, 100, 0)]), entries=2, size=100)
    return peer.state


def test_a_leader_a_follower_and_a_candidate_keep_all_invariants() -> None:
    stage = leading()
    stage.node.check_invariants()
    stage.node.election.step_down(stage.now_ms)
    stage.node._update_leadership(stage.now_ms)
    stage.node.check_invariants()
    stage.node.election.follow("n1", stage.node.member.term + 1, stage.now_ms)
    stage.node.check_invariants()


MEMBER: list[tuple[str, Callable[[MemberState], object]]] = [
    ("log.end_term <= term", lambda m: setattr(m, "term", 0)),
    ("committed_index <= log.end_index", lambda m: setattr(m, "committed_index", 99)),
    ("-1 <= committed_index", lambda m: setattr(m, "committed_index", -2)),
    ("synced_index <= log.end_index", lambda m: setattr(m, "synced_index", 99)),
    ("snapshot.index <= committed_index", lambda m: have_snapshot(m, 99)),
    ("the known leader fits the role", lambda m: setattr(m, "leader", "n1")),
    ("the known leader fits the role", lambda m: setattr(m, "role", RaftRole.FOLLOWER)),
    ("the known leader fits the role", lambda m: setattr(m, "role", RaftRole.CANDIDATE)),
    ("recovers lost data does not lead", lambda m: setattr(m, "rejoin", Rejoin(1, vote_lost=False))),
    ("a learner is no voter", lambda m: setattr(m, "learner", "n1")),
    ("there is always a membership", lambda m: m.membership._history.clear()),
    (
        "indexes of memberships rise strictly",
        lambda m: have_memberships(
            m, SavedMembership(4, 1, members("n0", "n1")), SavedMembership(4, 1, members("n0"))
        ),
    ),
    (
        "differ by at most one voter",
        lambda m: have_memberships(
            m, SavedMembership(3, 1, members("n0", "n1", "n2")), SavedMembership(4, 1, members("n0"))
        ),
    ),
    ("1 to 9 voters", lambda m: have_memberships(m, SavedMembership(4, 1, {}))),
    (
        "the entry that names the voters is in the log",
        lambda m: have_memberships(m, SavedMembership(99, 1, members("n0", "n1", "n2"))),
    ),
]


@pytest.mark.parametrize(("rule", "breaks"), MEMBER)
def test_a_broken_state_of_a_peer_is_named(rule: str, breaks: Callable[[MemberState], object]) -> None:
    member = leading().node.member
    member.check_invariants()
    breaks(member)
    with pytest.raises(InvariantError, match=rule.replace(".", r"\.")):
        member.check_invariants()


def test_a_log_that_begins_after_its_end_is_named() -> None:
    class BackwardLog(MemoryLog):
        begin = 0

        @property
        def begin_index(self) -> int:
            return self.begin

    log = BackwardLog()
    fill(log, range(3))
    member = ScriptedNode(log=log).node.member
    log.begin = 7
    with pytest.raises(InvariantError, match=r"begin_index <= log.end_index"):
        member.check_invariants()


def test_terms_that_fall_along_the_log_are_named() -> None:
    log = MemoryLog()
    for index, term in enumerate((1, 2, 2, 1)):
        log.append([make_entry(index, term, b"", log.end_pos, FILE_SIZE)])
    with pytest.raises(InvariantError, match=r"terms do not fall.*index=3, term=1, term_before=2"):
        check_terms(log, 0)
    check_terms(log, 4)


def test_a_core_does_not_start_on_a_log_whose_terms_fall() -> None:
    log = MemoryLog()
    for index, term in enumerate((1, 3, 2, 3)):
        log.append([make_entry(index, term, b"", log.end_pos, FILE_SIZE)])
    with pytest.raises(InvariantError, match="terms do not fall"):
        ScriptedNode(log=log)


def test_a_second_vote_in_one_term_is_named() -> None:
    member = leading().node.member
    with pytest.raises(InvariantError, match="votes once in a term"):
        member.save_vote(member.term, "n2")
    with pytest.raises(InvariantError, match="terms rise"):
        member.save_vote(member.term - 1, "n2")


PEER: list[tuple[str, Callable[[PeerProgress], object]]] = [
    ("match_index <= end of the leader's log", lambda p: setattr(p, "match_index", 11)),
    ("-1 <= match_index", lambda p: setattr(p, "match_index", -2)),
    ("0 <= next_index", lambda p: setattr(state_of(p), "next_index", -1)),
    ("next_index <= end of the leader's log", lambda p: setattr(state_of(p), "next_index", 12)),
    ("end before next_index", lambda p: setattr(state_of(p), "next_index", 10)),
    ("entries is their sum", lambda p: setattr(state_of(p), "entries", 1)),
    ("nothing is in flight without a push", lambda p: state_of(p).in_flight.clear()),
]


@pytest.mark.parametrize(("rule", "breaks"), PEER)
def test_a_broken_progress_of_a_peer_is_named(rule: str, breaks: Callable[[PeerProgress], object]) -> None:
    peer = PeerProgress("n1")
    peer.match_index = 8
    state_of(peer)
    peer.check_invariants(10)
    breaks(peer)
    with pytest.raises(InvariantError, match=rule):
        peer.check_invariants(10)


@pytest.mark.parametrize("is_voter", [True, False])
def test_a_peer_may_have_lost_entries(is_voter: bool) -> None:
    peer = PeerProgress("n1", is_voter=is_voter)
    peer.match_index, peer.state = 8, AppendState(1, deque())
    peer.check_invariants(10)


LEADER: list[tuple[str, Callable[[Leader], object]]] = [
    ("a leadership lasts as long as its term and role", lambda one: setattr(one, "term", 99)),
    ("the peers that count are the other voters", lambda one: setattr(one.peers["n1"], "is_voter", False)),
    ("the peers that count are the other voters", lambda one: one.add_peer("n9", is_voter=True)),
    ("every other voter has a progress", lambda one: one.peers.pop("n1")),
    ("committed_index < first pending", lambda one: one.pending.append(PendingProposal(1, 0, 0, 0))),
    ("last pending <= end of the log", lambda one: one.pending.append(PendingProposal(1, 99, 0, 0))),
    ("for the next round at most", lambda one: one.rounds._reads.append((1, one.rounds.number + 2))),
    (
        "in the order of rounds",
        lambda one: one.rounds._reads.extend([(1, one.rounds.number + 1), (2, one.rounds.number)]),
    ),
    ("the peer that catches up is the learner", lambda one: setattr(one.member, "learner", "n3")),
]


@pytest.mark.parametrize(("rule", "breaks"), LEADER)
def test_a_broken_state_of_a_leader_is_named(rule: str, breaks: Callable[[Leader], object]) -> None:
    leader = leader_of(leading())
    leader.check_invariants()
    breaks(leader)
    with pytest.raises(InvariantError, match=rule):
        leader.check_invariants()


def test_a_role_without_its_leadership_is_named() -> None:
    stage = leading()
    stage.node.leader = None
    with pytest.raises(InvariantError, match="there is a leadership exactly while the role is LEADER"):
        stage.node.check_invariants()


def test_a_candidacy_of_a_leader_or_of_a_former_member_is_named() -> None:
    stage = leading()
    election = stage.node.election
    election.candidacy = Candidacy.VOTE
    with pytest.raises(InvariantError, match="only a candidate that is a voter"):
        election.check_invariants()
    stage.node.member.become(RaftRole.CANDIDATE, None)
    have_memberships(stage.node.member, SavedMembership(4, 1, members("n1", "n2")))
    with pytest.raises(InvariantError, match="only a candidate that is a voter"):
        election.check_invariants()


@pytest.mark.parametrize(("candidacy", "ahead"), [(Candidacy.VOTE, 1), (Candidacy.PRE_VOTE, 0)])
def test_a_candidacy_in_another_term_is_named(candidacy: Candidacy, ahead: int) -> None:
    stage = leading()
    election, member = stage.node.election, stage.node.member
    member.become(RaftRole.CANDIDATE, None)
    election.candidacy, election.candidacy_term = candidacy, member.term + ahead
    with pytest.raises(InvariantError, match="votes are asked for in the present term"):
        election.check_invariants()


def test_a_vote_of_a_learner_is_named() -> None:
    stage = leading()
    election, member = stage.node.election, stage.node.member
    member.become(RaftRole.CANDIDATE, None)
    election.candidacy, election.candidacy_term = Candidacy.VOTE, member.term
    election.vote_results = {"n0": VoteResult.ACCEPT, "n1": VoteResult.ACCEPT}
    election.check_invariants()
    election.vote_results["n7"] = VoteResult.ACCEPT
    with pytest.raises(InvariantError, match="responses of voters count"):
        election.check_invariants()


def test_a_match_beyond_the_log_or_of_a_later_term_is_named() -> None:
    follower = leading().node.follower
    follower.check_invariants()
    follower.matched_index = 99
    with pytest.raises(InvariantError, match=r"matched_index <= log.end_index"):
        follower.check_invariants()
    follower.matched_index, follower.matched_term = -1, 99
    with pytest.raises(InvariantError, match="matched_term <= term"):
        follower.check_invariants()


def test_a_push_that_waits_for_a_writable_log_is_named() -> None:
    stage = leading()
    follower = stage.node.follower
    follower._deferred.append((1, PushEntryRequest()))
    with pytest.raises(InvariantError, match="pushes wait only for a log that is not writable"):
        follower.check_invariants()
    stage.node.member.is_erasing = True
    follower.check_invariants()


def test_a_snapshot_before_the_log_is_named() -> None:
    log = MemoryLog()
    fill(log, range(10))
    member = ScriptedNode(log=log, committed=9).node.member
    have_snapshot(member, 5)
    member.check_invariants()
    member.log.drop_before(7)
    with pytest.raises(InvariantError, match=r"log.begin_index <= snapshot.index"):
        member.check_invariants()
    assert member.snapshot is not None
    member.snapshot = msgspec.structs.replace(member.snapshot, entry=make_entry(8, 1, b"", 0, FILE_SIZE))
    member.check_invariants()
