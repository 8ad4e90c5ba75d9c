"""Elections where responses take longer than a candidacy: over a slow network, or among processes that get
little of their processors."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from epochmq_dledger.core.election import RESPONSE_WAIT_MAX_MS
from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.raft_log import MemoryLog
from epochmq_dledger.core.types import (
    CallCompleted,
    RaftEffect,
    RaftRole,
    RequestReceived,
    SendRequest,
    SendResponse,
    Tick,
)
from epochmq_protocol.dledger import FEATURES, VoteRequest, VoteResponse, VoteResult
from tests.unit.dledger.scripted_node import PEERS, ScriptedNode, fill, settings_of

ELECTION_MAX_MS = 60_000
IN_VAIN = 12
"""Candidacies without a response."""


class SlowGroup:
    """Three peers in virtual time. Each message takes half to one and a half times `delay_ms`, by a seed."""

    def __init__(self, seed: int, delay_ms: int) -> None:
        self._random = random.Random(seed)
        self._delay_ms = delay_ms
        self.now_ms = 0
        self.nodes = {
            name: RaftNode(settings_of(name), MemoryLog(), self._random.random, 0) for name in PEERS
        }
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[str, SendRequest]] = {}
        self._wakes: dict[str, int] = {}
        for name in PEERS:
            self._tick(name, 0)

    def elect(self) -> int:
        """Runs until a majority follows a leader; returns the milliseconds that it took."""
        while self.now_ms < ELECTION_MAX_MS:
            self.now_ms, _, act = heapq.heappop(self._due)
            act()
            if self._is_led():
                return self.now_ms
        raise AssertionError(f"no leader after {ELECTION_MAX_MS} ms")

    def _is_led(self) -> bool:
        members = [node.member for node in self.nodes.values()]
        leaders = [one for one in members if one.role is RaftRole.LEADER]
        return any(
            sum((one.leader, one.term) == (leader.settings.self_id, leader.term) for one in members)
            >= leader.quorum
            for leader in leaders
        )

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._numbers), act))

    def _send(self, act: Callable[[], None]) -> None:
        self._later(int(self._delay_ms * (0.5 + self._random.random())), act)

    def _tick(self, name: str, at_ms: int) -> None:
        """Steps a peer at its deadline, if it still has that one."""
        if self._wakes.get(name, at_ms) == at_ms:
            self._perform(name, self.nodes[name].step(Tick(), self.now_ms))

    def _perform(self, name: str, effects: list[RaftEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest):
                self._send(lambda effect=effect: self._request(name, effect))
            elif isinstance(effect, SendResponse):
                caller, sent = self._calls.pop(effect.call)
                self._send(lambda effect=effect, sent=sent, caller=caller: self._answer(caller, sent, effect))
        wake = max(self.now_ms + 1, self.nodes[name].next_deadline_ms())
        self._wakes[name] = wake
        self._later(wake - self.now_ms, lambda: self._tick(name, wake))

    def _request(self, caller: str, sent: SendRequest) -> None:
        call = next(self._numbers)
        self._calls[call] = caller, sent
        sent.request.epochmq = FEATURES
        node = self.nodes[sent.peer]
        self._perform(sent.peer, node.step(RequestReceived(call, sent.request), self.now_ms))

    def _answer(self, caller: str, sent: SendRequest, effect: SendResponse) -> None:
        effect.response.epochmq = FEATURES
        completed = CallCompleted(sent.peer, sent.context, sent.request, effect.response)
        self._perform(caller, self.nodes[caller].step(completed, self.now_ms))


@pytest.mark.parametrize("delay_ms", [10, 300, 600])
def test_a_group_elects_although_every_response_is_late(delay_ms: int) -> None:
    """A candidacy lasts 200 to 600 ms, and a response takes 1,200 ms on average in the slowest group."""
    took = [SlowGroup(seed, delay_ms).elect() for seed in range(10)]
    assert max(took) <= 1000 + 50 * delay_ms


def candidacies(core: ScriptedNode, count: int) -> list[int]:
    """Lets time pass until a candidate has asked for votes so often; the milliseconds between."""
    asked: list[int] = []
    while len(asked) < count:
        core.step(Tick(), max(0, core.node.next_deadline_ms() - core.now_ms))
        if core.take(VoteRequest):
            asked.append(core.now_ms)
    return [after - before for before, after in itertools.pairwise(asked)]


def test_the_wait_for_responses_doubles_up_to_a_bound() -> None:
    waits = candidacies(ScriptedNode(), IN_VAIN)
    plain = waits[0]
    assert [wait - plain for wait in waits[:4]] == [0, 200, 400, 800]
    assert {wait - plain for wait in waits[4:]} == {RESPONSE_WAIT_MAX_MS}


def test_a_group_that_was_elected_begins_with_the_shortest_wait_again() -> None:
    core = ScriptedNode()
    plain = candidacies(core, IN_VAIN)[0]
    core.elect()
    core.node.election.step_down(core.now_ms)
    assert candidacies(core, 2) == [plain]


def test_a_peer_that_returns_is_asked_at_once() -> None:
    """It cannot be elected: the one that has waited has a longer log."""
    log = MemoryLog()
    fill(log, range(3))
    core = ScriptedNode(log=log, term=1)
    candidacies(core, IN_VAIN)
    assert core.node.election.next_deadline_ms() - core.now_ms > RESPONSE_WAIT_MAX_MS
    stand = VoteRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=2, pre_vote=True)
    stand.epochmq = FEATURES
    core.step(RequestReceived(1, stand))
    (asked,) = core.take(VoteRequest)
    assert asked.peer == "n1"
    core.step(RequestReceived(2, stand))
    assert core.take(VoteRequest) == [], "once for each candidacy"
    core.answer(asked, VoteResponse(vote_result=VoteResult.ACCEPT, term=asked.request.term))
    for vote in core.take(VoteRequest, "n1"):
        core.answer(vote, VoteResponse(vote_result=VoteResult.ACCEPT, term=vote.request.term))
    assert core.node.member.role is RaftRole.LEADER
