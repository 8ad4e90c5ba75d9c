"""Sends a replica the log over one HA connection and receives its reports: the master's side
(`DefaultHAConnection`, `AutoSwitchHAConnection`).

Recent bytes are sent from the event loop: a small block with its header in one system call, a large block by
`sendfile` directly from the file. The bytes for a replica that is far behind may have to be read from disk. A
worker thread sends them, a run of blocks at a time, so that no other request waits for the disk.

A report beyond the bytes that were sent is a protocol error.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from epochmq_broker.replication.ha.block_planner import BlockPlanner
from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.epochs import epochs_for_handshake
from epochmq_broker.replication.ha.flow_monitor import FlowMonitor
from epochmq_broker.replication.ha.replica_reports import check_report, start_position
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.epoch_entries import encode_epoch_entries
from epochmq_protocol.errors import EpochMQError, RemoteProtocolError
from epochmq_protocol.ha_frames import (
    ReplicaHandshake,
    decode_default_report,
    decode_from_replica,
    encode_master_handshake,
)
from epochmq_protocol.ha_proofs import ProofAtMaster
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_protocol.transport.peer_warnings import PEER_WARNINGS
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.damaged_ranges import DamagedRanges

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 64 * 1024
COPY_BYTES: Final = 64 * 1024  # up to this size one system call with a copy is cheaper than two without
SEND_TURN_BYTES: Final = 4 * 1024 * 1024  # sent to one replica in one iteration of the event loop
FAR_BEHIND_BYTES: Final = 32 * 1024 * 1024  # a replica this far behind may need bytes from disk
BACKGROUND_RUN_BYTES: Final = 64 * 1024 * 1024  # sent by the worker thread in one run
BACKGROUND_BLOCK_BYTES: Final = 512 * 1024  # the least size of its blocks
POLL_MS: Final = 200
PROOF_S: Final = 5.0
"""Time from the connect to the proof of membership."""


class HAConnectionPhase(enum.Enum):
    """What the master waits for, or does, on one HA connection."""

    AWAITS_HANDSHAKE = "waits for the handshake"
    AWAITS_OFFSET = "waits for the replica's end offset"
    TRANSFER = "sends the log"
    CLOSED = "closed"


class HAConnectionContext:
    """What the HA connections of one mastership share."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        damage: DamagedRanges,
        sync: SyncState,
        epochs: EpochFile | None,
        settings: HASettings,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        on_handshake: Callable[[HAConnection], None],
        on_ack: Callable[[HAConnection], None],
        on_closed: Callable[[HAConnection], None],
        members: MemberAuthentication | None,
        has_proven: Callable[[int], bool],
    ) -> None:
        """`members`: None where nobody proves a membership. `has_proven`: whether a replica with this broker
        id is connected that has."""
        self.members = members
        self.has_proven = has_proven
        self.log = commit_log
        self.damage = damage
        self.sync = sync
        self.epochs = epochs
        self.settings = settings
        self.loop = loop
        self.executor = executor
        self.on_handshake = on_handshake
        self.on_ack = on_ack
        self.on_closed = on_closed

    def configure(self, settings: HASettings) -> None:
        """Uses new settings."""
        self.settings = settings

    @property
    def now_ms(self) -> int:
        """Milliseconds of the event loop's clock."""
        return int(self.loop.time() * 1000)


class HAConnection:
    """One HA connection. `position` is the log offset of the next byte to send, and the highest offset that
    the replica may report; -1 before its first report."""

    def __init__(self, sock: socket.socket, remote: str, master: HAConnectionContext, serial: int) -> None:
        """`serial` stands for the replica's broker id until its handshake names that."""
        self.remote = remote
        self.broker_id = serial
        self.position = -1
        self.ack_offset = -1
        self.phase = (
            HAConnectionPhase.AWAITS_OFFSET if master.epochs is None else HAConnectionPhase.AWAITS_HANDSHAKE
        )
        self._learner = False
        # As RocketMQ's, an empty slave gets the last file only. One that may act for its master needs the
        # others, too: consumers that it serves would skip what it lacks.
        self._sync_from_last_file = master.epochs is None and not master.settings.enable_slave_acting_master
        self._context = master
        self._sock = sock
        self._fd = sock.fileno()
        self._inbox = bytearray()
        self._proof = None if master.members is None else master.members.proof_at_master()
        now = master.loop.time()
        self._opened_at = self._read_at = self._wrote_at = now
        self.flow = FlowMonitor(now)
        epochs = master.epochs.epochs if master.epochs is not None else None
        self._blocks = BlockPlanner(epochs, master.log.files.file_size)
        self._confirm_sent = -1
        self._epoch_unannounced = False  # the replica does not know the epoch of the next bytes yet
        # Being sent: first the header, then the unsent bytes of a file.
        self._header = b""
        self._file: MappedFile | None = None
        self._file_position = 0
        self._unsent = 0
        self._blocked = False
        self._resume_scheduled = False
        self.job: asyncio.Future[None] | None = None  # the present run of the worker thread
        self._stopping = threading.Event()
        master.loop.add_reader(self._fd, self._readable)

    def __repr__(self) -> str:
        return f"replica {self.broker_id} at {self.remote}"

    # Receiving

    def _readable(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(str(error))
            return
        if not data:
            self.close("the replica has closed the connection")
            return
        self._read_at = self._context.loop.time()
        try:
            if self._proof is not None and not (data := self._check_proof(self._proof, data)):
                return
            self._inbox += data
            if self._context.epochs is None:
                self._decode_default_reports()
            else:
                self._decode_frames()
        except (EpochMQError, OSError) as error:
            self.close(str(error))

    @property
    def awaits_proof(self) -> bool:
        """Whether it is not known yet if the peer is a member."""
        return self._proof is not None and not self._proof.is_over

    @property
    def is_waiting(self) -> bool:
        """Whether nothing shows yet that the peer is a replica of this group."""
        return self.awaits_proof or self.phase in (
            HAConnectionPhase.AWAITS_HANDSHAKE,
            HAConnectionPhase.AWAITS_OFFSET,
        )

    @property
    def is_proven(self) -> bool:
        """Whether the replica has proven that it is a member."""
        return self._proof is not None and self._proof.is_proven

    def _check_proof(self, proof: ProofAtMaster, data: bytes) -> bytes:
        """The bytes that the replica has sent beyond its proof. RemoteProtocolError: it is not a member."""
        members = self._context.members
        assert members is not None
        was_over = proof.is_over
        try:
            answer, rest = proof.receive(data)
        except RemoteProtocolError:
            members.stranger_rejected()
            raise
        if answer and self._sock.send(answer) < len(answer):
            raise RemoteProtocolError("the replica does not read")
        if proof.is_over and not was_over and not proof.is_proven:
            members.accepted_unproven(self.remote)
        return rest

    def _decode_default_reports(self) -> None:
        found = decode_default_report(bytes(self._inbox))
        if found is not None:
            offset, used = found
            del self._inbox[:used]
            self._report_received(offset)

    def _decode_frames(self) -> None:
        offset = -1
        while (found := decode_from_replica(bytes(self._inbox))) is not None:
            frame, used = found
            del self._inbox[:used]
            if isinstance(frame, ReplicaHandshake):
                self._handshake_received(frame)
            elif self.phase is HAConnectionPhase.AWAITS_HANDSHAKE:
                raise RemoteProtocolError("the replica sent a report before its handshake")
            else:
                offset = frame.max_offset
        if offset >= 0:
            self._report_received(offset)

    def _handshake_received(self, frame: ReplicaHandshake) -> None:
        if self.phase is not HAConnectionPhase.AWAITS_HANDSHAKE:
            raise RemoteProtocolError("the replica sent a second handshake")
        master = self._context
        assert master.epochs is not None
        if frame.broker_id == master.sync.self_id:
            raise RemoteProtocolError(f"the replica has the master's own broker id {frame.broker_id}")
        if not self.is_proven and master.has_proven(frame.broker_id):
            raise RemoteProtocolError(
                f"it has no proof of membership, and replica {frame.broker_id} is connected with one"
            )
        self.broker_id = frame.broker_id
        self._learner, self._sync_from_last_file = frame.async_learner, frame.sync_from_last_file
        self.phase = HAConnectionPhase.AWAITS_OFFSET
        master.sync.replica_connected(self.broker_id, async_learner=self._learner)
        master.on_handshake(self)
        epochs = master.epochs.epochs
        self._header = encode_master_handshake(
            master.log.max_offset,
            epochs.last_epoch,
            encode_epoch_entries(epochs_for_handshake(epochs.entries)),
        )
        self._wrote_at = master.loop.time()
        self._send_queued()

    def _report_received(self, offset: int) -> None:
        """Takes the replica's report that its log ends at `offset`."""
        master = self._context
        end = master.log.max_offset
        if self.phase is HAConnectionPhase.AWAITS_OFFSET:
            self._start_transfer(offset, end)
        else:
            check_report(offset, self.position)
        self.ack_offset = offset
        master.sync.log_appended(end)
        if not master.sync.replica_acknowledged(self.broker_id, offset, master.now_ms):
            raise RemoteProtocolError(
                f"the replica reports offset {offset}, but the master's log ends at {end}"
            )
        master.on_ack(self)
        self.send_pending()

    def _start_transfer(self, offset: int, end: int) -> None:
        """Chooses the offset to send from."""
        commit_log = self._context.log
        self.position = start_position(
            offset,
            max(commit_log.min_offset, 0),
            end,
            commit_log.files.file_size,
            last_file=self._sync_from_last_file,
        )
        self.phase = HAConnectionPhase.TRANSFER
        self._epoch_unannounced = self._context.epochs is not None
        if self._context.epochs is None:
            self._context.sync.replica_connected(self.broker_id, async_learner=False)
            self._context.on_handshake(self)
        log.info("%r gets the log from offset %d", self, self.position)

    # Sending

    def epochs_changed(self) -> None:
        """Announces another epoch of the master to the replica."""
        self._blocks.epochs_changed()
        self._epoch_unannounced = True
        self.send_pending()

    def send_pending(self) -> None:
        """Sends the bytes that the replica lacks, up to its share of this iteration of the event loop."""
        if (
            self.phase is not HAConnectionPhase.TRANSFER
            or self._blocked
            or self.job is not None
            or self._unsent
            or self._header
        ):
            return
        master = self._context
        commit_log, settings, sync = master.log, master.settings, master.sync
        end = commit_log.max_offset
        if master.damage:
            end = self._healthy_end(end)
            if end < 0:
                return
        if self.position < end:
            limit = settings.max_ha_transfer_byte_in_second if settings.ha_flow_control_enable else None
            if limit is None and end - self.position > FAR_BEHIND_BYTES:
                self._start_background_run(end)
                return
            allowed = min(self.flow.allowed_bytes(master.loop.time(), limit), SEND_TURN_BYTES)
            while self.position < end:
                size = self._blocks.size(self.position, end, min(settings.block_bytes, allowed))
                if size <= 0:
                    break
                file = commit_log.files.find(self.position)
                if file is None:
                    self.close(f"the master's log no longer has the bytes at {self.position}")
                    return
                allowed -= size
                self._queue_block(file, size)
                sync.block_sent(self.broker_id, master.now_ms)
                if not self._send_queued():
                    return
            if self.position < end and limit is None:
                self._resume_soon()
        elif self._epoch_unannounced:
            self._send_heartbeat()

    def _healthy_end(self, end: int) -> int:
        """Up to where the log may be sent: broken records would break the replica's log, too. Ends the
        connection and returns -1 if the next bytes are broken."""
        broken = self._context.damage.first_broken_within(self.position, end)
        if broken is None:
            return end
        if broken.start > self.position:
            return broken.start
        self.close(
            f"the master's log is damaged from offset {broken.start} to {broken.end} ({broken.fault}): these "
            "bytes are sent when they are repaired, from another replica or a backup"
        )
        return -1

    def _resume_soon(self) -> None:
        """Continues in the next iteration of the event loop."""
        if not self._resume_scheduled:
            self._resume_scheduled = True
            self._context.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_scheduled = False
        self.send_pending()

    def _queue_block(self, file: MappedFile, size: int) -> None:
        confirm = self._context.sync.confirmed_records
        self._header = self._blocks.header(self.position, size, confirm)
        self._file, self._file_position, self._unsent = file, self.position - file.start, size
        self._confirm_sent = confirm
        self._epoch_unannounced = False
        self.position += size
        self._wrote_at = self._context.loop.time()
        self.flow.add(size)

    def _send_heartbeat(self) -> None:
        """Sends a frame without bytes, which carries the epoch and the confirmed offset."""
        confirm = self._context.sync.confirmed_records
        self._header = self._blocks.header(self.position, 0, confirm)
        self._confirm_sent = confirm
        self._epoch_unannounced = False
        self._wrote_at = self._context.loop.time()
        self._send_queued()

    def _send_queued(self) -> bool:
        """Sends the queued header and block. False if the socket does not take all of it now, or has
        failed."""
        sock = self._sock
        try:
            if self._header:
                self._send_header(sock)
            file = self._file
            while self._unsent and not self._header:
                assert file is not None
                sent = os.sendfile(self._fd, file.fd, self._file_position, self._unsent)
                if sent == 0:
                    raise OSError(f"{file.path} ends before position {self._file_position}")
                self._file_position += sent
                self._unsent -= sent
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, ValueError) as error:
            self.close(str(error))
            return False
        if self._header or self._unsent:
            if not self._blocked:
                self._blocked = True
                self._context.loop.add_writer(self._fd, self._writable)
            return False
        self._file = None
        return True

    def _send_header(self, sock: socket.socket) -> None:
        head = self._header
        if self._file is None or not self._unsent or self._unsent > COPY_BYTES:
            sent = sock.send(head, socket.MSG_MORE if self._unsent else 0)
            self._header = head[sent:]
            return
        with memoryview(self._file.map)[self._file_position : self._file_position + self._unsent] as body:
            sent = sock.sendmsg((head, body))
        self._header = head[sent:]
        taken = max(sent - len(head), 0)
        self._file_position += taken
        self._unsent -= taken

    def _writable(self) -> None:
        if self._send_queued():
            self._blocked = False
            self._context.loop.remove_writer(self._fd)
            self.send_pending()

    # Replicas far behind

    def _start_background_run(self, end: int) -> None:
        """Lets the worker thread send a run of blocks of one file."""
        master = self._context
        file = master.log.files.find(self.position)
        if file is None:
            self.close(f"the master's log no longer has the bytes at {self.position}")
            return
        run_end = min(end, self.position + BACKGROUND_RUN_BYTES)
        pieces: list[tuple[bytes, int, int]] = []
        most = max(master.settings.block_bytes, BACKGROUND_BLOCK_BYTES)
        confirm = self._confirm_sent = master.sync.confirmed_records
        while self.position < run_end:
            at = self.position - file.start
            if at >= file.size:
                break
            size = self._blocks.size(self.position, run_end, most)
            pieces.append((self._blocks.header(self.position, size, confirm), at, size))
            self.position += size
        self._epoch_unannounced = False
        sent = sum(size for _, _, size in pieces)
        # A duplicate, for the file may expire during the run, and its descriptor be reused.
        fd = os.dup(file.fd)
        self.job = master.loop.run_in_executor(
            master.executor, _send_blocks, self._sock, fd, pieces, self._stopping
        )
        master.sync.block_sent(self.broker_id, master.now_ms)
        self.job.add_done_callback(lambda job: self._background_run_ended(job, sent))

    def _background_run_ended(self, job: asyncio.Future[None], sent: int) -> None:
        self.job = None
        self._wrote_at = self._context.loop.time()
        error = None if job.cancelled() else job.exception()
        if self.phase is HAConnectionPhase.CLOSED:
            self._sock.close()
        elif job.cancelled() or error is not None:
            self.close(str(error))
        else:
            self.flow.add(sent)
            self.send_pending()

    # Timer and end

    def tick(self) -> None:
        """Called ten times a second: checks for timeouts, sends heartbeats and pending bytes."""
        master = self._context
        settings = master.settings
        now = master.loop.time()
        self.flow.update_rate(now)
        if now - self._read_at > settings.ha_housekeeping_interval / 1000:
            self.close(f"the replica has sent nothing for {settings.ha_housekeeping_interval} ms")
            return
        if self.awaits_proof and now - self._opened_at > PROOF_S:
            self.close(f"it has not proven its membership within {PROOF_S:g} s")
            return
        if self.phase is not HAConnectionPhase.TRANSFER or self._blocked or self.job is not None:
            return
        self.send_pending()
        if self.position != master.log.max_offset or self._header or self._unsent:
            return
        master.sync.nothing_to_send(self.broker_id, master.now_ms)
        due = now - self._wrote_at > settings.ha_send_heartbeat_interval / 1000
        if due or (master.epochs is not None and self._confirm_sent < master.sync.confirmed_records):
            self._send_heartbeat()

    def close(self, why: str) -> None:
        """Ends the connection."""
        if self.phase is HAConnectionPhase.CLOSED:
            return
        was_counted = self.position >= 0 or self.phase is not HAConnectionPhase.AWAITS_HANDSHAKE
        self.phase = HAConnectionPhase.CLOSED
        if was_counted:
            log.warning("the HA connection of %r ends: %s", self, why)
        else:
            PEER_WARNINGS.write(log, "the HA connection of %r ends: %s", self, why)
        self._stopping.set()
        self._context.loop.remove_reader(self._fd)
        if self._blocked:
            self._context.loop.remove_writer(self._fd)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self.job is None:
            self._sock.close()
        if was_counted:
            self._context.sync.replica_disconnected(self.broker_id)
        self._context.on_closed(self)


def _send_blocks(
    sock: socket.socket, fd: int, pieces: list[tuple[bytes, int, int]], stopping: threading.Event
) -> None:
    """Sends blocks (header, position in the file, bytes) on a worker thread. Raises OSError."""
    try:
        out = sock.fileno()
        poller = select.poll()
        poller.register(out, select.POLLOUT)

        def wait() -> None:
            while not poller.poll(POLL_MS):
                if stopping.is_set():
                    raise OSError("the HA connection was closed during the run")

        for head, at, left in pieces:
            while head:
                try:
                    head = head[sock.send(head, socket.MSG_MORE) :]
                except BlockingIOError:
                    wait()
            while left:
                try:
                    sent = os.sendfile(out, fd, at, left)
                except BlockingIOError:
                    wait()
                    continue
                if sent == 0:
                    raise OSError(f"the commit log file ends before position {at}")
                at += sent
                left -= sent
    finally:
        os.close(fd)
