"""The peers of a DLedger group, as a story: production's cores, logs in memory that are durable at once, and
a network that delivers every message of a command before the next one.

    start n0 n1 n2                 starts the first voters
    start n3 joining               starts a peer that waits to be added
    wait 500                       milliseconds pass
    propose n0 TEXT                appends an entry at a peer
    add n0 n3 / remove n0 n3       asks a peer for a change of the members
    transfer n0 n1                 asks a peer to transfer its leadership
    cut n1 / restore n1            a peer's network is cut, and works again
    members                        prints each peer's role and voters

A command that ends with `undelivered` leaves its messages in the network until the next command.

Lines leave out heartbeats, pushes of the committed index, and responses that accept something.
"""

from __future__ import annotations

from collections import deque

from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.raft_log import MemoryLog, check_terms
from epochmq_dledger.core.types import (
    Alarm,
    ApplyCommitted,
    CallCompleted,
    ChangeMembers,
    EraseDroppedEntries,
    ErasureCompleted,
    LeadershipTransferred,
    LogSynced,
    OperationFailed,
    Proposal,
    ProposalCommitted,
    RaftEffect,
    RaftInput,
    RaftRole,
    RaftSettings,
    RequestReceived,
    RoleChanged,
    SendRequest,
    SendResponse,
    Tick,
    TransferLeadership,
)
from epochmq_protocol.dledger import (
    MEMBERS_CHANNEL,
    DLedgerEntry,
    LeadershipTransferRequest,
    PushEntryRequest,
    PushType,
    RequestOrResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
    decode_members,
)

STEP_MS = 10
DELIVERIES_MAX = 10_000


class Peer:
    """One peer: its core and its log."""

    def __init__(self, name: str, voters: tuple[str, ...], now_ms: int, *, joining: bool) -> None:
        self.name = name
        self.log = MemoryLog()
        peers = (*voters, name) if joining else voters
        settings = RaftSettings(
            group="g",
            self_id=name,
            peers=peers,
            joining=joining,
            heartbeat_interval_ms=200,
            vote_interval_min_ms=200,
            vote_interval_max_ms=600,
        )
        jitter = (int(name[1:]) + 1) / 10  # different for each peer, so that one stands before the others
        self.node = RaftNode(settings, self.log, lambda: jitter, now_ms)
        self.is_cut = False


class MembershipStory:
    """The peers and their network."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._peers: dict[str, Peer] = {}
        self._network: deque[tuple[str, RaftInput]] = deque()
        self._calls: dict[int, tuple[str, SendRequest]] = {}
        self._operations: dict[int, str] = {}
        self._number = 0
        self._lines: list[str] = []

    def take_lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def check_invariants(self) -> None:
        for peer in self._peers.values():
            peer.node.check_invariants()
            check_terms(peer.log, 0)

    def run(self, command: str, arguments: list[str]) -> None:
        is_delivered = arguments[-1:] != ["undelivered"]
        if not is_delivered:
            arguments.pop()
        match command:
            case "start":
                self._start(arguments)
            case "wait":
                self._wait(int(arguments[0]))
            case "propose":
                token = self._operation(f"the proposal {arguments[1]!r}")
                self._feed(arguments[0], Proposal(token, (arguments[1].encode(),)))
            case "add" | "remove":
                self._change(command, *arguments)
            case "transfer":
                token = self._operation(f"the transfer to {arguments[1]}")
                self._feed(arguments[0], TransferLeadership(arguments[1], token))
            case "cut" | "restore":
                self._peers[arguments[0]].is_cut = command == "cut"
            case "members":
                self._show_members()
            case _:
                raise ValueError("no such command")
        if is_delivered:
            self._deliver()

    def _start(self, arguments: list[str]) -> None:
        joining = arguments[-1] == "joining"
        names = arguments[:-1] if joining else arguments
        voters = tuple(self._peers)[:3] if joining else tuple(names)
        for name in names:
            self._peers[name] = Peer(name, voters, self._now_ms, joining=joining)

    def _wait(self, duration_ms: int) -> None:
        end_ms = self._now_ms + duration_ms
        while self._now_ms < end_ms:
            self._now_ms += STEP_MS
            for name in self._peers:
                self._feed(name, Tick())
                self._deliver()

    def _operation(self, what: str) -> int:
        self._number += 1
        self._operations[self._number] = what
        return self._number

    def _change(self, command: str, at: str, who: str) -> None:
        preposition = "to" if command == "add" else "from"
        token = self._operation(f"the change to {command} {who} {preposition} the group")
        addresses = {name: f"{name}:40911" for name in self._peers}
        address = addresses[who] if command == "add" else None
        self._feed(at, ChangeMembers(token, who, address, addresses))

    def _show_members(self) -> None:
        for name, peer in self._peers.items():
            member = peer.node.member
            self._lines.append(
                f"{name}: {member.role.value} of term {member.term}, committed to {member.committed_index}, "
                f"voters {' '.join(member.voters)}"
            )

    # The cores and their network ----------------------------------------------------------------------------

    def _feed(self, name: str, event: RaftInput) -> None:
        peer = self._peers[name]
        for effect in peer.node.step(event, self._now_ms):
            self._carry_out(peer, effect)
        log = peer.log
        if log.end_index > peer.node.member.synced_index:
            self._network.append((name, LogSynced(log.end_index, log.end_term)))

    def _deliver(self) -> None:
        for _ in range(DELIVERIES_MAX):
            if not self._network:
                return
            self._feed(*self._network.popleft())
        raise AssertionError("the peers do not come to rest")

    def _carry_out(self, peer: Peer, effect: RaftEffect) -> None:
        name = peer.name
        match effect:
            case SendRequest(peer=to, request=request):
                self._say_request(name, to, request)
                if peer.is_cut or to not in self._peers or self._peers[to].is_cut:
                    self._network.append((name, CallCompleted(to, effect.context, request, None)))
                    return
                self._number += 1
                self._calls[self._number] = name, effect
                self._network.append((to, RequestReceived(self._number, request)))
            case SendResponse(call=call, response=response):
                source, sent = self._calls.pop(call)
                self._say_response(name, source, response)
                self._network.append((source, CallCompleted(name, sent.context, sent.request, response)))
            case EraseDroppedEntries():
                self._network.append((name, ErasureCompleted()))
            case RoleChanged(role=role, term=term, leader=leader):
                follows = f", follows {leader}" if role is RaftRole.FOLLOWER else ""
                self._lines.append(f"{name} is {role.value} of term {term}{follows}")
            case ApplyCommitted(index=index) if role_of(peer) is RaftRole.LEADER:
                self._lines.append(f"{name} commits entries up to {index}")
            case ProposalCommitted(token=token):
                self._lines.append(f"{self._operations[token]} is committed")
            case OperationFailed(token=token, code=code):
                self._lines.append(f"{self._operations[token]} fails: {code.name}")
            case LeadershipTransferred(token=token):
                self._lines.append(f"{self._operations[token]} is done")
            case Alarm(text=text):
                self._lines.append(f"{name}: {text}")
            case _:
                pass

    def _say_request(self, source: str, target: str, request: RequestOrResponse) -> None:
        what = None
        match request:
            case VoteRequest(pre_vote=True):
                what = f"would you vote for me in term {request.term}? (pre-vote)"
            case VoteRequest():
                what = f"vote for me in term {request.term}"
            case LeadershipTransferRequest():
                what = f"take over once you have entry {request.take_leadership_ledger_index}"
            case PushEntryRequest(type=PushType.APPEND):
                what = "append " + ", ".join(map(shown_entry, request.entries))
            case PushEntryRequest(type=PushType.COMPARE):
                what = f"compare {shown_entry(request.entries[0])}"
            case PushEntryRequest(type=PushType.TRUNCATE):
                what = f"let your log end with {shown_entry(request.entries[0])}"
            case _:
                pass
        if what is not None:
            self._lines.append(f"{source} -> {target}: {what}")

    def _say_response(self, source: str, target: str, response: RequestOrResponse) -> None:
        if isinstance(response, VoteResponse):
            is_accepted = response.vote_result is VoteResult.ACCEPT
            answer = "yes" if is_accepted else f"no, {response.vote_result.name}"
            self._lines.append(f"{source} -> {target}: {answer}")


def role_of(peer: Peer) -> RaftRole:
    """The peer's role."""
    return peer.node.role


def shown_entry(entry: DLedgerEntry) -> str:
    """An entry, for a line of output."""
    if entry.channel == MEMBERS_CHANNEL:
        what = "voters " + " ".join(sorted(decode_members(entry)))
    else:
        what = repr(entry.body.decode()) if entry.body else "the first of its term"
    return f"entry {entry.index} of term {entry.term} ({what})"
