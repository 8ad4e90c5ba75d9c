"""A core without a driver: a test feeds it with the responses of peers, and checks its effects."""

from __future__ import annotations

from typing import Any

from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.raft_log import MemoryLog, RaftLog, make_entry
from epochmq_dledger.core.types import (
    CallCompleted,
    LogSynced,
    RaftEffect,
    RaftSettings,
    ReadReady,
    SendRequest,
    Tick,
)
from epochmq_protocol.dledger import (
    FEATURES,
    HeartBeatRequest,
    HeartBeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    RequestOrResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

PEERS = ("n0", "n1", "n2")
FILE_SIZE = 1 << 16


def settings_of(name: str, **more: Any) -> RaftSettings:
    """The settings of a peer of the group n0, n1, n2, with the time-outs of controllers."""
    pace = {"heartbeat_interval_ms": 200, "vote_interval_min_ms": 200, "vote_interval_max_ms": 600}
    return RaftSettings(
        **{"group": "g", "self_id": name, "peers": PEERS, "file_size": FILE_SIZE, **pace, **more}
    )


def fill(log: MemoryLog, indexes: range) -> None:
    """Appends entries of term 1. Each has its index as its body."""
    for index in indexes:
        log.append([make_entry(index, 1, b"%d" % index, log.end_pos, FILE_SIZE)])


class ScriptedNode:
    """A node with scripted peers. `now_ms` is its clock. `sent` holds the requests without a response."""

    def __init__(self, name: str = "n0", *, log: RaftLog | None = None, **more: Any) -> None:
        self.now_ms = 1000
        self.log = log if log is not None else MemoryLog()
        settings = settings_of(name, **more.pop("settings", {}))
        self.node = RaftNode(settings, self.log, lambda: 0.5, self.now_ms, **more)
        self.sent: list[SendRequest] = []

    def step(self, event: Any, later_ms: int = 0) -> list[RaftEffect]:
        """Feeds an input, some time after the last one."""
        self.now_ms += later_ms
        effects = self.node.step(event, self.now_ms)
        self.sent += [effect for effect in effects if isinstance(effect, SendRequest)]
        return effects

    def take(self, kind: type[RequestOrResponse], peer: str | None = None) -> list[SendRequest]:
        """Takes the requests of a kind to a peer that have no response yet."""
        found = [one for one in self.sent if isinstance(one.request, kind) and peer in (None, one.peer)]
        self.sent = [one for one in self.sent if one not in found]
        return found

    def answer(self, send: SendRequest, response: RequestOrResponse, later_ms: int = 0) -> list[RaftEffect]:
        """An EpochMQ peer responds to a request."""
        response.epochmq = FEATURES
        return self.step(CallCompleted(send.peer, send.context, send.request, response), later_ms)

    def heartbeat_answered(self, send: SendRequest, later_ms: int = 0) -> list[RaftEffect]:
        """A peer acknowledges a heartbeat."""
        return self.answer(send, HeartBeatResponse(term=send.request.term), later_ms)

    def elect(self) -> None:
        """Waits until the node starts an election, and votes for it."""
        for _ in range(20):
            self.step(Tick(), max(0, self.node.next_deadline_ms() - self.now_ms))
            while self.node.leader is None and (asked := self.take(VoteRequest)):
                for one in asked:
                    self.answer(one, VoteResponse(vote_result=VoteResult.ACCEPT, term=one.request.term))
            if self.node.leader is not None:
                return
        raise AssertionError("it is not elected")

    def settle(self) -> None:
        """Commits all entries: the leader and n1 make them durable."""
        for _ in range(10):
            self.step(LogSynced(self.log.end_index, self.log.end_term))
            for beat in self.take(HeartBeatRequest, "n1"):
                self.heartbeat_answered(beat)
            for push in self.take(PushEntryRequest, "n1"):
                assert isinstance(push.request, PushEntryRequest)
                entries = push.request.entries
                if push.request.type is not PushType.COMMIT:
                    end = entries[-1].index
                    response = PushEntryResponse(index=entries[0].index, count=len(entries), end_index=end)
                    response.begin_index = self.log.begin_index
                    self.answer(push, response)
            if self.node.member.committed_index == self.log.end_index:
                return
        raise AssertionError("the log is not committed")


def served_reads(effects: list[RaftEffect]) -> list[int]:
    """The tokens of the served reads."""
    return [effect.token for effect in effects if isinstance(effect, ReadReady)]
