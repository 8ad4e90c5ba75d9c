"""A peer with an empty directory has lost everything, or its group is new: it votes only once it knows."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from epochmq_dledger.core.raft_log import make_entry
from epochmq_dledger.core.rejoin import Rejoin
from epochmq_dledger.core.types import CallCompleted, LogSynced, RequestReceived, SendRequest, SendResponse
from epochmq_dledger.results import RaftOperationError
from epochmq_dledger.store import damage_evidence
from epochmq_protocol.dledger import (
    FEATURES,
    HeartBeatRequest,
    PushEntryRequest,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.unit.dledger.raft_group import RaftGroup, until
from tests.unit.dledger.scripted_node import ScriptedNode, fill

NOTHING, ENTRIES = VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_EXPIRED_LEDGER_TERM
UNKNOWN = VoteResult.REJECT_UNKNOWN_LEADER
NAMES = ("n0", "n1", "n2", "n3", "n4")


def answered(*answers: tuple[VoteResult, int, bool]) -> Rejoin:
    """The rejoin of n0 after answers (result, term, whether the directory is new, too) of n1, n2 and so
    on."""
    rejoin = Rejoin(1, vote_lost=True, is_new_directory=True)
    for number, (result, term, is_new) in enumerate(answers, 1):
        response = VoteResponse(vote_result=result, term=term, epochmq_new=is_new or None)
        rejoin.on_probe_response(f"n{number}", VoteRequest(term=-1), response)
    return rejoin


@pytest.mark.parametrize(
    ("peers", "answers", "is_new"),
    [
        (3, [(NOTHING, 0, True), (NOTHING, 0, True)], True),
        (3, [(NOTHING, 0, True)], False),  # n2 may hold what n0 and n2 have acknowledged
        (3, [(NOTHING, 0, True), (ENTRIES, 4, False)], False),
        (3, [(NOTHING, 0, True), (UNKNOWN, 0, False)], False),  # n2 recovers lost data itself
        (3, [(NOTHING, 3, False), (NOTHING, 0, False)], True),  # a leader without entries yet
        (3, [(NOTHING, 3, False), (NOTHING, 0, True)], True),  # n1 is DLedger's and stands since its start
        (3, [(ENTRIES, 3, False), (NOTHING, 0, True)], False),
        (5, [(NOTHING, 0, True), (NOTHING, 0, True)], False),
        (5, [(NOTHING, 0, True), (NOTHING, 0, True), (NOTHING, 0, True)], True),
        (5, [(NOTHING, 0, True), (NOTHING, 0, True), (NOTHING, 2, False)], False),
        (5, [(NOTHING, 0, True), (NOTHING, 3, False), (NOTHING, 3, False), (ENTRIES, 3, False)], False),
        (5, [(NOTHING, 0, True), (NOTHING, 0, True), (NOTHING, 2, False), (NOTHING, 0, True)], True),
        (2, [(NOTHING, 0, True)], True),
    ],
)
def test_a_group_is_new_if_every_quorum_of_this_peer_has_one_that_has_nothing(
    peers: int, answers: list[tuple[VoteResult, int, bool]], *, is_new: bool
) -> None:
    voters = NAMES[:peers]
    assert answered(*answers).shows_new_group(voters, voters[1:]) is is_new


@pytest.fixture
async def group(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[RaftGroup]:
    found = RaftGroup(tmp_path, [unused_tcp_port_factory() for _ in range(3)], blocks=True)
    yield found
    for name in list(found.running):
        await found.stop(name)


def rejoins(group: RaftGroup) -> Iterator[bool]:
    return (one.peer.node.member.rejoin is not None for one in group.running.values())


async def test_founders_start_together_and_forget_that_their_directories_were_new(group: RaftGroup) -> None:
    for name in group.addresses:
        await group.start(name)
    leader = await group.leader()
    await leader.propose(b"first")
    await until(lambda: not any(rejoins(group)))
    marks = [group.folder / name / damage_evidence.REJOIN for name in group.addresses]
    await until(lambda: not any(mark.exists() for mark in marks))


async def test_two_founders_wait_for_the_third_which_may_know_more(group: RaftGroup) -> None:
    for name in ("n0", "n1"):
        await group.start(name)
    await until(lambda: all(one.peer.node.member.rejoin.asked_back for one in group.running.values()))  # type: ignore[union-attr] # set
    assert all(rejoins(group))
    await group.start("n2")
    await (await group.leader()).propose(b"first")


async def test_an_emptied_peer_does_not_elect_one_that_lacks_what_it_had_acknowledged(
    group: RaftGroup,
) -> None:
    """n2 is away while entries are acknowledged. Then a peer that has them loses its disk, and the other one
    that has them is stopped. The emptied one does not elect n2, and votes again when the other one is
    back."""
    for name in group.addresses:
        await group.start(name)
    leader = await group.leader()
    await leader.propose(b"first")
    await until(lambda: not any(rejoins(group)))
    keeper = leader.settings.self_id
    away, emptied = (name for name in group.addresses if name != keeper)
    await group.stop(away)
    acknowledged = (await leader.propose(b"acknowledged")).index
    await group.stop(emptied)
    await group.stop(keeper)
    shutil.rmtree(group.folder / emptied)
    await group.start(away)
    await group.start(emptied)
    lacking, lost = (group.running[name].peer for name in (away, emptied))
    asked = lost.node.member.rejoin
    assert asked is not None
    await until(lambda: asked.voters_without_term([away]) == [])
    assert lost.node.member.rejoin is asked
    assert lacking.log.end_index < acknowledged
    await group.start(keeper)
    await until(lambda: not any(rejoins(group)))
    await until(lambda: min(lacking.committed_index, lost.committed_index) >= acknowledged)


def test_founders_elect_a_peer_of_dledgers_that_stands_in_one_term_after_the_other() -> None:
    """DLedger's peer stands from its start on, so it may name a later term than 0 before the other founder
    has responded. The founder takes part from the next term on."""
    core = ScriptedNode(rejoins=True, vote_lost=True, is_new_directory=True)
    for peer, term, is_new in (("n2", 7, None), ("n1", 0, True)):
        assert core.node.member.rejoin is not None
        response = VoteResponse(vote_result=NOTHING, term=term, epochmq_new=is_new)
        core.step(CallCompleted(peer, 1, VoteRequest(term=-1), response))
    assert core.node.member.rejoin is None

    def vote(term: int) -> VoteResult:
        request = VoteRequest(group="g", remote_id="n0", local_id="n2", leader_id="n2", term=term)
        effects = core.step(RequestReceived(term, request))
        [response] = [one.response for one in effects if isinstance(one, SendResponse)]
        assert isinstance(response, VoteResponse)
        return response.vote_result

    assert vote(7) is not VoteResult.ACCEPT, "this peer may have voted in that term"
    assert vote(8) is VoteResult.ACCEPT


def test_a_peer_that_may_know_a_later_leader_catches_up_with_that_one() -> None:
    """The leader of term 1 is cut off from n2, which leads term 5. Both may have got acknowledgements of the
    emptied n0. It has the log of the former, but then does not vote before it has that of the latter."""
    core = ScriptedNode(rejoins=True, vote_lost=True, is_new_directory=True)
    rejoin = core.node.member.rejoin
    assert rejoin is not None

    def beat(leader: str, term: int) -> None:
        request = HeartBeatRequest(group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term)
        request.epochmq, request.epochmq_rejoin, request.epochmq_until = FEATURES, rejoin.incarnation, 0
        core.step(RequestReceived(term, request))

    def replicate(leader: str, term: int) -> None:
        push = PushEntryRequest(group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term)
        push.type, push.entry, push.commit_index = PushType.TRUNCATE, make_entry(0, 1, b"0", 0, 1 << 16), 0
        core.step(RequestReceived(term, push))
        core.step(LogSynced(0, 1))

    def answer(peer: str, term: int) -> None:
        response = VoteResponse(vote_result=ENTRIES, term=term)
        core.step(CallCompleted(peer, 1, VoteRequest(term=-1), response))

    beat("n1", 1)
    replicate("n1", 1)
    answer("n1", 1)
    answer("n2", 5)
    assert (core.node.member.term, core.node.member.rejoin) == (5, rejoin)
    beat("n2", 5)
    replicate("n2", 5)
    assert core.node.member.rejoin is None
    assert core.node.member.voted_for == "n0", "no other peer of term 5 gets a second vote"


UNFLUSHED = damage_evidence.RejoinMark(vote_lost=False, only_unflushed=True)


async def test_after_a_power_failure_of_all_the_newest_log_is_elected_once_all_are_back(
    group: RaftGroup,
) -> None:
    """Each peer may have lost what it had not flushed. Two of them do not elect a leader: the third one may
    have more, and has."""
    for name in group.addresses:
        await group.start(name)
    leader = await group.leader()
    keeper = leader.settings.self_id
    others = [name for name in group.addresses if name != keeper]
    await leader.propose(b"flushed")
    await until(lambda: not any(rejoins(group)))
    for name in others:
        await group.stop(name)
    task = asyncio.ensure_future(leader.propose(b"on one disk only"))
    await until(lambda: leader.log.durable_index == leader.log.end_index)
    kept = leader.log.end_index
    await group.stop(keeper)
    with contextlib.suppress(RaftOperationError):
        await task
    for name in group.addresses:
        damage_evidence.save_rejoin_mark(group.folder / name, UNFLUSHED)
    for name in others:
        await group.start(name)
    elections = [group.running[name].peer.node.election for name in others]
    await until(lambda: any(len(election._votes_if_all) == 2 for election in elections))
    assert all(rejoins(group))
    await group.start(keeper)
    assert (await group.leader()).settings.self_id == keeper
    await until(lambda: not any(rejoins(group)))
    await until(lambda: all(one.peer.committed_index >= kept for one in group.running.values()))


@pytest.mark.parametrize("leads_by", [0, 500])
def test_a_peer_learns_the_end_of_the_log_of_a_leader_that_names_none(leads_by: int) -> None:
    """The leader, which is DLedger's, rejects a vote request with the reason whether its log is newer. If it
    is ahead, the peer catches up with an index that the leader has not reached yet."""
    core = ScriptedNode(rejoins=True, vote_lost=False, only_unflushed=True)
    fill(core.log, range(3))
    end = 2 + leads_by
    beat = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=1)
    effects = core.step(RequestReceived(1, beat))
    asked = [one for one in effects if isinstance(one, SendRequest)]
    assert [one.request.ledger_end_index for one in asked] == [2, 1002]  # type: ignore[attr-defined] # votes
    for one in asked:
        assert isinstance(one.request, VoteRequest)
        assert (one.peer, one.request.term, one.request.ledger_end_term) == ("n1", -1, 1)
        reached = one.request.ledger_end_index >= end
        result = NOTHING if reached else VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        core.step(CallCompleted("n1", one.context, one.request, VoteResponse(vote_result=result, term=1)))
    rejoin = core.node.member.rejoin
    assert rejoin is not None
    assert rejoin.target_index(1) == (1002 if leads_by else 2)
