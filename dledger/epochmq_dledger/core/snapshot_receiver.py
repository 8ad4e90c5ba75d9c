"""How a peer whose log lacks what the leader's no longer has comes by a snapshot (Raft §7).

The pieces come in order and are kept in memory until all are there, for the state machine takes them whole;
the driver makes them durable (`InstallSnapshot`) before the log is touched. A peer that dies in between has
either its old log, or the snapshot, from which the log is begun anew at the next start.
"""

from __future__ import annotations

import zlib

from epochmq_dledger.core.election import Election
from epochmq_dledger.core.follower import Follower
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.types import Alarm, InstallSnapshot, RestoreSnapshot, Snapshot
from epochmq_protocol.dledger import (
    DLedgerResponseCode,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
)


class SnapshotReceiver:
    """The part of a peer that is sent snapshots."""

    def __init__(self, member: MemberState, election: Election, follower: Follower) -> None:
        self.member = member
        self.election = election
        self.follower = follower
        self._incoming: Snapshot | None = None
        self._data = bytearray()
        self._saving: tuple[int, InstallSnapshotRequest] | None = None
        """The call to be answered once the driver has made the snapshot durable."""
        self.awaiting_erasure: Snapshot | None = None
        """A durable snapshot that waits until the log is settled."""

    def on_chunk(self, call: int, request: InstallSnapshotRequest, now_ms: int) -> None:
        """Takes the next piece. Every answer says which byte is wanted next."""
        member = self.member
        code = self.follower.check_sender(request, now_ms)
        snapshot = Snapshot(request.entry, request.size, request.crc, request.members)
        if code is not DLedgerResponseCode.SUCCESS:
            self._answer(call, request, code, 0)
        elif snapshot.index <= member.committed_index:
            self._answer(call, request, DLedgerResponseCode.SUCCESS, request.size)  # nothing to install
        elif self._saving is not None:
            self._answer(call, request, DLedgerResponseCode.PUSH_REQUEST_IS_FULL, request.size)
        elif not 0 <= request.size <= member.settings.snapshot_bytes_max:
            member.alarm(
                "snapshot",
                f"{request.leader_id} sends a snapshot of {request.size} bytes, "
                f"expected at most {member.settings.snapshot_bytes_max}",
            )
            self._answer(call, request, DLedgerResponseCode.UNEXPECTED_ARGUMENT, 0)
        else:
            self._take(call, request, snapshot)

    def _take(self, call: int, request: InstallSnapshotRequest, snapshot: Snapshot) -> None:
        if snapshot != self._incoming:
            self._incoming, self._data = snapshot, bytearray()
        if request.offset != len(self._data) or len(self._data) + len(request.data) > snapshot.size:
            self._answer(call, request, DLedgerResponseCode.INCONSISTENT_STATE, len(self._data))
            return
        self._data += request.data
        if len(self._data) < snapshot.size:
            self._answer(call, request, DLedgerResponseCode.SUCCESS, len(self._data))
            return
        data, self._incoming, self._data = bytes(self._data), None, bytearray()
        if zlib.crc32(data) != snapshot.crc:
            self.member.emit(Alarm(f"the snapshot that {request.leader_id} sent came garbled"))
            self._answer(call, request, DLedgerResponseCode.INTERNAL_ERROR, 0)
            return
        self._saving = call, request
        self.member.emit(InstallSnapshot(snapshot, data))

    def on_installed(self, snapshot: Snapshot) -> bool:
        """The snapshot is durable: the log begins anew after it, unless what was pushed meanwhile reaches as
        far. Whether it did."""
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
            begun = True
        else:
            begun = False
        if self._saving is not None:
            (call, request), self._saving = self._saving, None
            self._answer(call, request, DLedgerResponseCode.SUCCESS, request.size)
        return begun

    def _answer(
        self, call: int, request: InstallSnapshotRequest, code: DLedgerResponseCode, offset: int
    ) -> None:
        response = InstallSnapshotResponse(code=code, term=self.member.term, offset=offset)
        self.member.reply(call, request, response)
