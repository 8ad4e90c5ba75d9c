"""Counts the heartbeat rounds of one leadership, and holds the reads that wait for a confirmation of the
leadership (ReadIndex, Raft §6.4).

A round confirms a read if it started after the read arrived and a quorum has responded to it. One round
confirms all reads that wait for it. Reads that arrive during a round wait together for the next one, which
starts as soon as the current one is confirmed. If responses get lost, the next one starts after
`RaftSettings.read_retry_interval_ms`.
"""

from __future__ import annotations

from collections import deque

from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.types import OperationFailed, ReadReady
from epochmq_protocol.dledger import DLedgerResponseCode
from epochmq_protocol.errors import InvariantError


class HeartbeatRounds:
    """The rounds of one leadership. The leader sends the heartbeats and counts the responses; this class
    numbers the rounds.

    The numbers keep rising over all leaderships of this process. Beside Java peers a leader can be elected
    twice in one term. By the number it knows that a response belongs to its earlier leadership. (A response
    does not outlive the process that sent the heartbeat.)"""

    def __init__(self, member: MemberState, now_ms: int) -> None:
        self.member = member
        self.round_started_ms = now_ms
        """When the latest round started; before the first round, when the leadership began."""
        self._sent_ms: deque[int] = deque()
        """When each round that may still get responses started. The last one is `member.heartbeat_round`."""
        self._reads: deque[tuple[int, int]] = deque()
        """(token of the caller, number of the round that must be confirmed). Invariants: in the order of
        rounds; none waits for a later round than the next one; at most `RaftSettings.pending_max`."""

    @property
    def number(self) -> int:
        """The number of the latest round."""
        return self.member.heartbeat_round

    def start(self, now_ms: int) -> int:
        """Gives a new round its number, and returns the number. Drops the times of rounds that are too old to
        get responses; usually that is one round."""
        settings = self.member.settings
        self.member.heartbeat_round += 1
        self._sent_ms.append(now_ms)
        self.round_started_ms = now_ms
        horizon_ms = now_ms - settings.rpc_timeout_ms - settings.heartbeat_interval_ms
        while self._sent_ms[0] < horizon_ms:
            self._sent_ms.popleft()
        return self.member.heartbeat_round

    def sent_ms(self, number: int) -> int | None:
        """When a round of this leadership started; None if it is too old, or of an earlier leadership."""
        at = number - self.member.heartbeat_round + len(self._sent_ms) - 1
        return self._sent_ms[at] if 0 <= at < len(self._sent_ms) else None

    def add_read(self, token: int) -> None:
        """Adds a read, which the next round will confirm. `token` identifies it in the effects ReadReady and
        OperationFailed."""
        member = self.member
        if len(self._reads) >= member.settings.pending_max:
            member.emit(OperationFailed(token, DLedgerResponseCode.LEADER_PENDING_FULL))
        else:
            self._reads.append((token, self.number + 1))

    def is_due(self, now_ms: int) -> bool:
        """Whether the waiting reads need a new round now."""
        if not self._reads:
            return False
        return self._reads[0][1] > self.number or now_ms >= self.round_started_ms + self._retry_ms

    def next_deadline_ms(self) -> int | None:
        """When the waiting reads need a new round, even without further responses."""
        return self.round_started_ms + self._retry_ms if self._reads else None

    @property
    def _retry_ms(self) -> int:
        return self.member.settings.read_retry_interval_ms

    def confirm_reads(self, number: int, term: int) -> None:
        """Confirms the reads that waited for this round or an earlier one: a quorum has responded to it."""
        while self._reads and self._reads[0][1] <= number:
            token, _ = self._reads.popleft()
            self.member.emit(ReadReady(token, self.member.committed_index, term))

    def abort(self) -> None:
        """Fails all waiting reads: the leadership is over."""
        for token, _ in self._reads:
            self.member.emit(OperationFailed(token, DLedgerResponseCode.NOT_LEADER))
        self._reads.clear()

    def check_invariants(self) -> None:
        """Raises InvariantError if the reads contradict the rules at `_reads`. O(1)."""
        reads = self._reads
        if reads and (
            not reads[0][1] <= reads[-1][1] <= self.number + 1
            or len(reads) > self.member.settings.pending_max
        ):
            raise InvariantError(
                "HeartbeatRounds",
                "reads wait in the order of rounds, and for the next round at most",
                first=reads[0][1],
                last=reads[-1][1],
                round=self.number,
                reads=len(reads),
            )
