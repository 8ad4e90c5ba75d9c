"""The heartbeat rounds of one leadership, and the reads that wait for a proof of it (Raft §6.4).

A read is proven by a round that began after the read came and that a quorum has answered. One round under
way serves all reads that wait for it; reads that come meanwhile wait together for the next one, which begins
as soon as the one under way is proven. When answers get lost, the next one begins after
`RaftSettings.read_retry_ms`.
"""

from __future__ import annotations

from collections import deque

from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.types import OperationFailed, ReadReady
from epochmq_protocol.dledger import DLedgerResponseCode


class HeartbeatRounds:
    """Rounds are numbered through all leaderships of this process: a leader that is elected again in its own
    term, as it happens beside Java peers, takes no answer to its earlier leadership for one to this one. (An
    answer does not survive the process that asked.)"""

    def __init__(self, member: MemberState, now_ms: int) -> None:
        self.member = member
        self.started_ms = now_ms
        self._sent_ms: deque[int] = deque()
        """When each round that may still be answered began; the last one is `member.heartbeat_round`."""
        self._reads: deque[tuple[int, int]] = deque()
        """(token, round that must be proven), in the order of rounds."""

    @property
    def number(self) -> int:
        """The round that began last."""
        return self.member.heartbeat_round

    def start(self, now_ms: int) -> int:
        """Begins a round and returns its number. The cost is that of the rounds forgotten, one as a rule."""
        settings = self.member.settings
        self.member.heartbeat_round += 1
        self._sent_ms.append(now_ms)
        self.started_ms = now_ms
        horizon_ms = now_ms - settings.rpc_timeout_ms - settings.heartbeat_interval_ms
        while self._sent_ms[0] < horizon_ms:
            self._sent_ms.popleft()
        return self.member.heartbeat_round

    def sent_ms(self, number: int) -> int | None:
        """When a round of this leadership began; None if it is too old, or of an earlier leadership."""
        at = number - self.member.heartbeat_round + len(self._sent_ms) - 1
        return self._sent_ms[at] if 0 <= at < len(self._sent_ms) else None

    def add_read(self, token: int) -> None:
        """A read has come: the next round will prove it."""
        member = self.member
        if len(self._reads) >= member.settings.pending_max:
            member.emit(OperationFailed(token, DLedgerResponseCode.LEADER_PENDING_FULL))
        else:
            self._reads.append((token, self.number + 1))

    def is_due(self, now_ms: int) -> bool:
        """Whether the reads that wait call for a new round now."""
        if not self._reads:
            return False
        return self._reads[0][1] > self.number or now_ms >= self.started_ms + self._retry_ms

    def next_deadline_ms(self) -> int | None:
        """When the reads that wait call for a new round, whatever is answered until then."""
        return self.started_ms + self._retry_ms if self._reads else None

    @property
    def _retry_ms(self) -> int:
        return self.member.settings.read_retry_interval_ms

    def confirm_reads(self, number: int, term: int) -> None:
        """A quorum has answered this round, or a later one: serves the reads that waited for it."""
        while self._reads and self._reads[0][1] <= number:
            token, _ = self._reads.popleft()
            self.member.emit(ReadReady(token, self.member.committed_index, term))

    def abort(self) -> None:
        """The leadership is over."""
        for token, _ in self._reads:
            self.member.emit(OperationFailed(token, DLedgerResponseCode.NOT_LEADER))
        self._reads.clear()
