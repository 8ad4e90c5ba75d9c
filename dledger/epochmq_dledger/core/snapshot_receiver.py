"""Receives a leader's snapshot, if this peer needs entries that the leader's log no longer holds (Raft §7).

The chunks arrive in order and stay in memory until all have arrived, for the state machine loads a snapshot
as a whole. The driver makes the snapshot durable (`InstallSnapshot`) before the log changes. A peer that dies
in between has either its old log, or the snapshot, after which it restarts the log at its next start.
"""

from __future__ import annotations

from epochmq_dledger.core.election import Election
from epochmq_dledger.core.follower import Follower
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.types import Alarm, InstallSnapshot, RestoreSnapshot, Snapshot
from epochmq_protocol.checksum import crc32
from epochmq_protocol.dledger import (
    MEMBERS_CHANNEL,
    DLedgerResponseCode,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
)
from epochmq_protocol.errors import RemoteProtocolError


class SnapshotReceiver:
    """The part of a peer that receives snapshots."""

    def __init__(self, member: MemberState, election: Election, follower: Follower) -> None:
        self.member = member
        self.election = election
        self.follower = follower
        self._incoming: Snapshot | None = None
        self._data = bytearray()
        self._pending_request: tuple[int, InstallSnapshotRequest] | None = None
        """The request to respond to once the driver has made the snapshot durable."""
        self.awaiting_erasure: Snapshot | None = None
        """A durable snapshot that waits until the log is writable."""

    def on_chunk(self, call: int, request: InstallSnapshotRequest, now_ms: int) -> None:
        """Takes the next chunk. Every response names the byte to send next."""
        member = self.member
        code = self.follower.check_sender(request, now_ms)
        snapshot = Snapshot(request.entry, request.size, request.crc, request.members)
        if code is DLedgerResponseCode.SUCCESS:
            code = self._check_form(request)
        if code is not DLedgerResponseCode.SUCCESS:
            self._respond(call, request, code, 0)
        elif snapshot.index <= member.committed_index:
            self._respond(call, request, DLedgerResponseCode.SUCCESS, request.size)  # already applied here
        elif self._pending_request is not None:
            self._respond(call, request, DLedgerResponseCode.PUSH_REQUEST_IS_FULL, request.size)
        elif not 0 <= request.size <= member.settings.snapshot_bytes_max:
            member.alarm(
                "snapshot",
                f"rejected a snapshot of {request.size} bytes by {request.leader_id}: "
                f"expected at most {member.settings.snapshot_bytes_max}",
            )
            self._respond(call, request, DLedgerResponseCode.UNEXPECTED_ARGUMENT, 0)
        else:
            self._add_chunk(call, request, snapshot)

    def _check_form(self, request: InstallSnapshotRequest) -> DLedgerResponseCode:
        """Checks the form of a chunk. A log of blocks has no state machine, and takes no snapshot."""
        member = self.member
        if member.body_log is not None:
            return DLedgerResponseCode.UNSUPPORTED
        if request.entry.channel == MEMBERS_CHANNEL:
            try:
                member.decode_members(request.entry)
            except RemoteProtocolError:
                return DLedgerResponseCode.UNEXPECTED_ARGUMENT
        return DLedgerResponseCode.SUCCESS

    def _add_chunk(self, call: int, request: InstallSnapshotRequest, snapshot: Snapshot) -> None:
        if snapshot != self._incoming:
            self._incoming, self._data = snapshot, bytearray()
        if request.offset != len(self._data) or len(self._data) + len(request.data) > snapshot.size:
            self._respond(call, request, DLedgerResponseCode.INCONSISTENT_STATE, len(self._data))
            return
        self._data += request.data
        if len(self._data) < snapshot.size:
            self._respond(call, request, DLedgerResponseCode.SUCCESS, len(self._data))
            return
        data, self._incoming, self._data = bytes(self._data), None, bytearray()
        if crc32(data) != snapshot.crc:
            self.member.emit(Alarm(f"rejected a snapshot by {request.leader_id}: wrong CRC-32"))
            self._respond(call, request, DLedgerResponseCode.INTERNAL_ERROR, 0)
            return
        self._pending_request = call, request
        self.member.emit(InstallSnapshot(snapshot, data))

    def on_rejected(self, reason: str) -> None:
        """The state machine cannot load what the leader sent."""
        if self._pending_request is None:
            return
        (call, request), self._pending_request = self._pending_request, None
        self.member.alarm("snapshot", f"rejected a snapshot by {request.leader_id}: {reason:.300}")
        self._respond(call, request, DLedgerResponseCode.UNEXPECTED_ARGUMENT, 0)

    def on_installed(self, snapshot: Snapshot) -> bool:
        """The snapshot is durable: restarts the log after it, unless the log has reached its index meanwhile.
        Returns whether the state machine loads the snapshot."""
        member = self.member
        if member.is_erasing:
            self.awaiting_erasure = snapshot
            return False
        self.awaiting_erasure = None
        member.snapshot = snapshot
        if snapshot.index > member.committed_index:
            if member.log.entry(snapshot.index) != snapshot.entry:
                member.reset(snapshot.entry, snapshot.members)
                self.follower.restart_after_snapshot(snapshot.index)
            member.committed_index = snapshot.index
            member.emit(RestoreSnapshot(snapshot))
            is_newer = True
        else:
            is_newer = False
        if self._pending_request is not None:
            (call, request), self._pending_request = self._pending_request, None
            self._respond(call, request, DLedgerResponseCode.SUCCESS, request.size)
        return is_newer

    def _respond(
        self, call: int, request: InstallSnapshotRequest, code: DLedgerResponseCode, offset: int
    ) -> None:
        response = InstallSnapshotResponse(code=code, term=self.member.term, offset=offset)
        self.member.reply(call, request, response)
