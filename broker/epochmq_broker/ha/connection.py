"""A master's side of one HA connection: hears how far a replica is, and sends it the log
(`DefaultHAConnection`, `AutoSwitchHAConnection`).

What is fresh is sent from the event loop, a small block in one system call with its header, a large one by
`sendfile` straight from the file. A replica that is far behind reads what may lie on disk only: its blocks go
out on a worker thread, a run at a time, so that no other request waits for the disk.

Nothing a replica says is believed beyond what it was sent.
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

from epochmq_broker.ha.block_planner import BlockPlanner
from epochmq_broker.ha.epoch_file import EpochFile
from epochmq_broker.ha.epochs import epochs_for_handshake
from epochmq_broker.ha.flow_monitor import FlowMonitor
from epochmq_broker.ha.replica_reports import check_report, start_position
from epochmq_broker.ha.settings import HASettings
from epochmq_broker.ha.sync_state import SyncState
from epochmq_broker.store.commit_log import CommitLog
from epochmq_broker.store.mapped_file import MappedFile
from epochmq_protocol.epoch_entries import encode_epoch_entries
from epochmq_protocol.errors import EpochMQError, RemoteProtocolError
from epochmq_protocol.ha_frames import (
    ReplicaHandshake,
    decode_default_report,
    decode_from_replica,
    encode_master_handshake,
)

log = logging.getLogger(__name__)

READ_BYTES: Final = 64 * 1024
COPY_BYTES: Final = 64 * 1024  # up to here one system call with a copy is cheaper than two without
TURN_BYTES: Final = 4 * 1024 * 1024  # what one replica gets in one round of the loop
FAR_BYTES: Final = 32 * 1024 * 1024  # so far behind, the bytes may have to come from disk
RUN_BYTES: Final = 64 * 1024 * 1024  # what the worker thread sends at a time
FAR_BLOCK_BYTES: Final = 512 * 1024  # its blocks, where haTransferBatchSize asks for smaller ones
POLL_MS: Final = 200


class HAConnectionPhase(enum.Enum):
    """What the replica has to do next."""

    INTRODUCE = "introduce itself"
    SAY_WHERE = "say where its log ends"
    FOLLOW = "follow"
    GONE = "gone"


class HAConnectionContext:
    """What the links of one mastership share. `now` is monotonic, in seconds."""

    def __init__(
        self,
        commit_log: CommitLog,
        sync: SyncState,
        epochs: EpochFile | None,
        settings: HASettings,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
    ) -> None:
        self.log = commit_log
        self.sync = sync
        self.epochs = epochs
        self.settings = settings
        self.loop = loop
        self.executor = executor
        self.on_introduced: Callable[[HAConnection], None] = lambda connection: None
        self.on_ack: Callable[[HAConnection], None] = lambda connection: None
        self.on_gone: Callable[[HAConnection], None] = lambda connection: None

    @property
    def now_ms(self) -> int:
        """Milliseconds of the loop's clock."""
        return int(self.loop.time() * 1000)


class HAConnection:
    """One connection. `position` is the log offset of the next byte to send, and so the end of what the
    replica may claim to have; -1 before the replica has said where it is."""

    def __init__(self, sock: socket.socket, remote: str, master: HAConnectionContext, serial: int) -> None:
        """`serial` is the replica's id as long as it has not told its own."""
        self.remote = remote
        self.broker_id = serial
        self.position = -1
        self.ack_offset = -1
        self.phase = HAConnectionPhase.SAY_WHERE if master.epochs is None else HAConnectionPhase.INTRODUCE
        self._learner = False
        self._last_file = master.epochs is None  # an empty replica begins with the last file
        self._context = master
        self._sock = sock
        self._fd = sock.fileno()
        self._inbox = bytearray()
        now = master.loop.time()
        self._read_at = self._wrote_at = now
        self.flow = FlowMonitor(now)
        epochs = master.epochs.epochs if master.epochs is not None else None
        self._blocks = BlockPlanner(epochs, master.log.files.file_size)
        self._confirm_sent = -1
        self._announce = False  # the replica has yet to be told the epoch of what comes next
        # What is being sent: a header, then bytes of a file.
        self._head = b""
        self._file: MappedFile | None = None
        self._at = 0
        self._left = 0
        self._blocked = False
        self._again = False
        self.job: asyncio.Future[None] | None = None  # a run of the worker thread
        self._stopping = threading.Event()
        master.loop.add_reader(self._fd, self._readable)

    def __repr__(self) -> str:
        return f"replica {self.broker_id} at {self.remote}"

    # Hearing

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(str(error))
            return
        if not data:
            self.close("it has closed the connection")
            return
        self._read_at = self._context.loop.time()
        self._inbox += data
        try:
            if self._context.epochs is None:
                self._take_reports()
            else:
                self._take_frames()
        except EpochMQError as error:
            self.close(str(error))

    def _take_reports(self) -> None:
        found = decode_default_report(bytes(self._inbox))
        if found is not None:
            offset, used = found
            del self._inbox[:used]
            self._heard(offset)

    def _take_frames(self) -> None:
        offset = -1
        while (found := decode_from_replica(bytes(self._inbox))) is not None:
            frame, used = found
            del self._inbox[:used]
            if isinstance(frame, ReplicaHandshake):
                self._introduced(frame)
            elif self.phase is HAConnectionPhase.INTRODUCE:
                raise RemoteProtocolError("a report before the handshake")
            else:
                offset = frame.max_offset
        if offset >= 0:
            self._heard(offset)

    def _introduced(self, frame: ReplicaHandshake) -> None:
        if self.phase is not HAConnectionPhase.INTRODUCE:
            raise RemoteProtocolError("a second handshake")
        master = self._context
        assert master.epochs is not None
        if frame.broker_id == master.sync.self_id:
            raise RemoteProtocolError(f"a replica with our own broker id {frame.broker_id}")
        self.broker_id = frame.broker_id
        self._learner, self._last_file = frame.async_learner, frame.sync_from_last_file
        self.phase = HAConnectionPhase.SAY_WHERE
        master.sync.replica_connected(self.broker_id, async_learner=self._learner)
        master.on_introduced(self)
        epochs = master.epochs.epochs
        self._head = encode_master_handshake(
            master.log.max_offset,
            epochs.last_epoch,
            encode_epoch_entries(epochs_for_handshake(epochs.entries)),
        )
        self._wrote_at = master.loop.time()
        self._flush()

    def _heard(self, offset: int) -> None:
        """The replica's log reaches up to `offset`."""
        master = self._context
        end = master.log.max_offset
        if self.phase is HAConnectionPhase.SAY_WHERE:
            self._begin(offset, end)
        else:
            check_report(offset, self.position)
        self.ack_offset = offset
        master.sync.log_appended(end)
        if not master.sync.replica_acknowledged(self.broker_id, offset, master.now_ms):
            raise RemoteProtocolError(f"its report of {offset} cannot be: our log ends at {end}")
        master.on_ack(self)
        self.pump()

    def _begin(self, offset: int, end: int) -> None:
        """Finds the place to send from."""
        commit_log = self._context.log
        self.position = start_position(
            offset,
            max(commit_log.min_offset, 0),
            end,
            commit_log.files.file_size,
            last_file=self._last_file,
        )
        self.phase = HAConnectionPhase.FOLLOW
        self._announce = self._context.epochs is not None
        if self._context.epochs is None:
            self._context.sync.replica_connected(self.broker_id, async_learner=False)
            self._context.on_introduced(self)
        log.info("%r follows from offset %d", self, self.position)

    # Sending

    def epochs_changed(self) -> None:
        """The master has begun another epoch."""
        self._blocks.epochs_changed()
        self._announce = True
        self.pump()

    def pump(self) -> None:
        """Sends what there is, up to this round's share."""
        if (
            self.phase is not HAConnectionPhase.FOLLOW
            or self._blocked
            or self.job is not None
            or self._left
            or self._head
        ):
            return
        master = self._context
        commit_log, settings, sync = master.log, master.settings, master.sync
        end = commit_log.max_offset
        if self.position < end:
            limit = settings.max_ha_transfer_byte_in_second if settings.ha_flow_control_enable else None
            if limit is None and end - self.position > FAR_BYTES:
                self._run(end)
                return
            allowed = min(self.flow.allowed(master.loop.time(), limit), TURN_BYTES)
            while self.position < end:
                size = self._blocks.size(self.position, end, min(settings.block_bytes, allowed))
                if size <= 0:
                    break
                file = commit_log.files.find(self.position)
                if file is None:
                    self.close(f"our log no longer has the bytes at {self.position}")
                    return
                allowed -= size
                self._stage(file, size)
                sync.block_sent(self.broker_id, master.now_ms)
                if not self._flush():
                    return
            if self.position < end and limit is None:
                self._soon()
        elif self._announce:
            self._beat()

    def _soon(self) -> None:
        """Goes on in the next round of the loop."""
        if not self._again:
            self._again = True
            self._context.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._again = False
        self.pump()

    def _stage(self, file: MappedFile, size: int) -> None:
        confirm = self._context.sync.confirm_offset
        self._head = self._blocks.header(self.position, size, confirm)
        self._file, self._at, self._left = file, self.position - file.start, size
        self._confirm_sent = confirm
        self._announce = False
        self.position += size
        self._wrote_at = self._context.loop.time()
        self.flow.add(size)

    def _beat(self) -> None:
        """A frame without bytes: we are there, this is the epoch, so much is confirmed."""
        confirm = self._context.sync.confirm_offset
        self._head = self._blocks.header(self.position, 0, confirm)
        self._confirm_sent = confirm
        self._announce = False
        self._wrote_at = self._context.loop.time()
        self._flush()

    def _flush(self) -> bool:
        """Sends what was staged; False when the rest has to wait, or the connection is gone."""
        sock = self._sock
        try:
            if self._head:
                self._send_head(sock)
            file = self._file
            while self._left and not self._head:
                assert file is not None
                sent = os.sendfile(self._fd, file.fd, self._at, self._left)
                if sent == 0:
                    raise OSError(f"{file.path} ends in front of {self._at}")
                self._at += sent
                self._left -= sent
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, ValueError) as error:
            self.close(str(error))
            return False
        if self._head or self._left:
            if not self._blocked:
                self._blocked = True
                self._context.loop.add_writer(self._fd, self._writable)
            return False
        self._file = None
        return True

    def _send_head(self, sock: socket.socket) -> None:
        head = self._head
        if self._file is None or not self._left or self._left > COPY_BYTES:
            sent = sock.send(head, socket.MSG_MORE if self._left else 0)
            self._head = head[sent:]
            return
        with memoryview(self._file.map)[self._at : self._at + self._left] as body:
            sent = sock.sendmsg((head, body))
        self._head = head[sent:]
        taken = max(sent - len(head), 0)
        self._at += taken
        self._left -= taken

    def _writable(self) -> None:
        if self._flush():
            self._blocked = False
            self._context.loop.remove_writer(self._fd)
            self.pump()

    # Far behind

    def _run(self, end: int) -> None:
        """Has the worker thread send a run of blocks of one file."""
        master = self._context
        file = master.log.files.find(self.position)
        if file is None:
            self.close(f"our log no longer has the bytes at {self.position}")
            return
        run_end = min(end, self.position + RUN_BYTES)
        pieces: list[tuple[bytes, int, int]] = []
        most = max(master.settings.block_bytes, FAR_BLOCK_BYTES)
        confirm = self._confirm_sent = master.sync.confirm_offset
        while self.position < run_end:
            at = self.position - file.start
            if at >= file.size:
                break
            size = self._blocks.size(self.position, run_end, most)
            pieces.append((self._blocks.header(self.position, size, confirm), at, size))
            self.position += size
        self._announce = False
        sent = sum(size for _, _, size in pieces)
        # The file may expire, and its number go to another one, while the thread is at it.
        fd = os.dup(file.fd)
        self.job = master.loop.run_in_executor(
            master.executor, _send_run, self._sock, fd, pieces, self._stopping
        )
        master.sync.block_sent(self.broker_id, master.now_ms)
        self.job.add_done_callback(lambda job: self._ran(job, sent))

    def _ran(self, job: asyncio.Future[None], sent: int) -> None:
        self.job = None
        self._wrote_at = self._context.loop.time()
        error = None if job.cancelled() else job.exception()
        if self.phase is HAConnectionPhase.GONE:
            self._sock.close()
        elif job.cancelled() or error is not None:
            self.close(str(error))
        else:
            self.flow.add(sent)
            self.pump()

    # Life

    def tick(self) -> None:
        """Ten times a second: silence, heartbeats, and what the last round could not send."""
        master = self._context
        settings = master.settings
        now = master.loop.time()
        self.flow.turn(now)
        if now - self._read_at > settings.ha_housekeeping_interval / 1000:
            self.close(f"nothing was heard for {settings.ha_housekeeping_interval} ms")
            return
        if self.phase is not HAConnectionPhase.FOLLOW or self._blocked or self.job is not None:
            return
        self.pump()
        if self.position != master.log.max_offset or self._head or self._left:
            return
        master.sync.nothing_to_send(self.broker_id, master.now_ms)
        due = now - self._wrote_at > settings.ha_send_heartbeat_interval / 1000
        if due or (master.epochs is not None and self._confirm_sent < master.sync.confirm_offset):
            self._beat()

    def close(self, why: str) -> None:
        """Ends the connection."""
        if self.phase is HAConnectionPhase.GONE:
            return
        met = self.position >= 0 or self.phase is not HAConnectionPhase.INTRODUCE
        self.phase = HAConnectionPhase.GONE
        log.warning("the connection of %r ends: %s", self, why)
        self._stopping.set()
        self._context.loop.remove_reader(self._fd)
        if self._blocked:
            self._context.loop.remove_writer(self._fd)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self.job is None:
            self._sock.close()
        if met:
            self._context.sync.replica_disconnected(self.broker_id)
        self._context.on_gone(self)


def _send_run(
    sock: socket.socket, fd: int, pieces: list[tuple[bytes, int, int]], stopping: threading.Event
) -> None:
    """On a worker thread: sends the blocks (header, position in the file, bytes). Raises OSError."""
    try:
        out = sock.fileno()
        poller = select.poll()
        poller.register(out, select.POLLOUT)

        def wait() -> None:
            while not poller.poll(POLL_MS):
                if stopping.is_set():
                    raise OSError("the connection was closed meanwhile")

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
                    raise OSError(f"the file ends in front of {at}")
                at += sent
                left -= sent
    finally:
        os.close(fd)
