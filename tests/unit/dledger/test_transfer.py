"""A leader transfers its leadership, on request or to a preferred leader, and answers as DLedger does."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq_dledger.core.election import REVOTE_MS
from epochmq_dledger.core.raft_log import MemoryLog
from epochmq_dledger.core.transfer import PAUSE_INTERVALS
from epochmq_dledger.core.types import (
    CallCompleted,
    OperationFailed,
    Proposal,
    RaftRole,
    RequestReceived,
    SendResponse,
    Tick,
    TransferLeadership,
)
from epochmq_protocol.dledger import (
    DLedgerResponseCode,
    HeartBeatRequest,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.unit.dledger.scripted_node import ScriptedNode, fill

CHECK_MS = 1000


def leader(**settings: Any) -> ScriptedNode:
    """A leader that has committed an entry of its term with n1. n2 has not responded yet."""
    core = ScriptedNode(settings=settings)
    core.elect()
    core.settle()
    return core


def match(core: ScriptedNode, peer: str) -> None:
    """A peer acknowledges a comparison: it has the whole log."""
    for push in core.take(PushEntryRequest, peer):
        request = push.request
        assert isinstance(request, PushEntryRequest)
        if request.type is PushType.COMPARE:
            end = core.log.end_index
            core.answer(push, PushEntryResponse(index=end, count=1, begin_index=0, end_index=end))


def pass_time(core: ScriptedNode, duration_ms: int, alive: tuple[str, ...] = ("n1",)) -> None:
    """Lets time pass. The living peers acknowledge heartbeats; requests to the others fail."""
    until_ms = core.now_ms + duration_ms
    while core.now_ms < until_ms:
        core.step(Tick(), max(1, min(core.node.next_deadline_ms(), until_ms) - core.now_ms))
        for beat in core.take(HeartBeatRequest):
            if beat.peer in alive:
                core.heartbeat_answered(beat)
            else:
                core.step(CallCompleted(beat.peer, beat.context, beat.request, None))


def transfers(core: ScriptedNode) -> list[str]:
    return [send.peer for send in core.take(LeadershipTransferRequest)]


def test_a_leader_transfers_to_the_preferred_leader_once_it_is_there() -> None:
    """n2 is preferred and dead: nothing is transferred, appends are accepted. Once it has the log, it gets
    the leadership, and appends are rejected."""
    core = leader(preferred_leaders=("n2",))
    pass_time(core, 5 * CHECK_MS)
    assert transfers(core) == []
    effects = core.step(Proposal(1, (b"x",)))
    assert not any(isinstance(one, OperationFailed) for one in effects)
    core.settle()
    pass_time(core, 300, alive=("n1", "n2"))
    match(core, "n2")
    pass_time(core, CHECK_MS, alive=("n1", "n2"))
    (send,) = core.take(LeadershipTransferRequest)
    request = send.request
    assert isinstance(request, LeadershipTransferRequest)
    assert (request.transfer_id, request.transferee_id) == ("n0", "n2")
    assert request.take_leadership_ledger_index == core.log.end_index
    assert OperationFailed(2, DLedgerResponseCode.LEADER_TRANSFERRING) in core.step(Proposal(2, (b"y",)))


def test_a_failed_transfer_to_a_preferred_leader_is_not_repeated_at_once() -> None:
    """A preferred peer that cannot win costs the group a rejected append now and then, not its service."""
    core = leader(preferred_leaders=("n1",))
    pass_time(core, CHECK_MS + 100)
    (send,) = core.take(LeadershipTransferRequest)
    core.answer(send, LeadershipTransferResponse(code=DLedgerResponseCode.TAKE_LEADERSHIP_FAILED))
    effects = core.step(Proposal(1, (b"x",)))
    assert not any(isinstance(one, OperationFailed) for one in effects)
    core.settle()
    pass_time(core, (PAUSE_INTERVALS - 1) * CHECK_MS)
    assert transfers(core) == []
    pass_time(core, 2 * CHECK_MS)
    assert transfers(core) == ["n1"]


@pytest.mark.parametrize("preferred", [("n0",), ("n0", "n1"), (), ("n9",)])
def test_a_preferred_leader_keeps_its_leadership(preferred: tuple[str, ...]) -> None:
    """So does any leader while the group prefers none, or one that is not a member."""
    core = leader(preferred_leaders=preferred)
    pass_time(core, 3 * CHECK_MS)
    assert transfers(core) == []
    assert core.node.role is RaftRole.LEADER


def test_only_one_transfer_is_under_way() -> None:
    core = leader()
    core.step(TransferLeadership("n1", 1))
    assert transfers(core) == ["n1"]
    pass_time(core, 2500)  # the leader accepts appends again, but the transferee may still respond
    assert OperationFailed(2, DLedgerResponseCode.LEADER_TRANSFERRING) in core.step(
        TransferLeadership("n1", 2)
    )


def follower() -> ScriptedNode:
    """n0 follows n1 in term 3. Its log ends with entry 2."""
    log = MemoryLog()
    fill(log, range(3))
    core = ScriptedNode(log=log, term=3, committed=2)
    core.step(RequestReceived(1, addressed(HeartBeatRequest(term=3))))
    assert core.node.role is RaftRole.FOLLOWER
    return core


def addressed(request: Any) -> Any:
    request.group, request.remote_id, request.local_id, request.leader_id = "g", "n0", "n1", "n1"
    return request


def take_over(core: ScriptedNode, call: int, **fields: Any) -> list[int]:
    """Asks for a takeover. Returns the codes of the responses."""
    plain = {"term": 3, "transfer_id": "n1", "transferee_id": "n0", "take_leadership_ledger_index": 2}
    request = addressed(LeadershipTransferRequest(**{**plain, **fields}))
    effects = core.step(RequestReceived(call, request))
    return [one.response.code for one in effects if isinstance(one, SendResponse)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transfer_id": "n2"}, DLedgerResponseCode.INCONSISTENT_LEADER),
        ({"term": 2}, DLedgerResponseCode.INCONSISTENT_TERM),
        ({"transferee_id": "n2"}, DLedgerResponseCode.UNEXPECTED_ARGUMENT),
    ],
)
def test_a_transferee_rejects_with_dledgers_codes(fields: dict[str, Any], code: DLedgerResponseCode) -> None:
    """`DLedgerServer.handleLeadershipTransfer` and `DLedgerLeaderElector.handleTakeLeadership`."""
    assert take_over(follower(), 2, **fields) == [code]


def test_a_transferee_stands_at_once_and_reports_a_term_that_another_peer_leads() -> None:
    core = follower()
    assert take_over(core, 2) == []
    assert [(one.peer, one.request.term) for one in core.take(VoteRequest)] == [("n1", 4), ("n2", 4)]
    beat = addressed(HeartBeatRequest(term=4))
    effects = core.step(RequestReceived(3, beat))
    codes = {one.call: one.response.code for one in effects if isinstance(one, SendResponse)}
    assert codes == {3: DLedgerResponseCode.SUCCESS, 2: DLedgerResponseCode.TAKE_LEADERSHIP_FAILED}


def test_a_transferee_that_misses_a_newer_term_reports_it() -> None:
    core = follower()
    take_over(core, 2)
    effects = core.step(RequestReceived(3, addressed(HeartBeatRequest(term=9))))
    codes = {one.call: one.response.code for one in effects if isinstance(one, SendResponse)}
    assert codes[2] == DLedgerResponseCode.EXPIRED_TERM


def test_a_transferee_waits_for_the_rest_of_the_log() -> None:
    core = follower()
    assert take_over(core, 2, take_leadership_ledger_index=3) == []
    assert core.take(VoteRequest) == []
    core.step(RequestReceived(3, addressed(HeartBeatRequest(term=3))), 550)
    core.step(Tick(), 550)
    assert core.node.takeover.pending is None
    assert core.node.role is RaftRole.FOLLOWER


def test_a_transferee_asks_java_voters_again_as_soon_as_they_are_ready() -> None:
    """A voter of DLedger first moves to the new term, and votes when it is asked again, some milliseconds
    later."""
    core = follower()
    take_over(core, 2)

    def answer(result: VoteResult) -> None:
        for one in core.take(VoteRequest):
            response = VoteResponse(vote_result=result, term=4)
            core.step(CallCompleted(one.peer, one.context, one.request, response))

    for _ in range(2):  # asked, and asked again at once
        answer(VoteResult.REJECT_TERM_NOT_READY)
    assert core.node.next_deadline_ms() - core.now_ms <= REVOTE_MS
    core.step(Tick(), REVOTE_MS)
    answer(VoteResult.ACCEPT)
    assert core.node.role is RaftRole.LEADER
    assert core.node.member.term == 4
