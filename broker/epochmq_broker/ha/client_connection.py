"""A replica's side of one HA connection: what the master sends goes into the log as it comes.

Everything goes through one buffer, into which as much is received at a time as there is; but large blocks,
which a master sends to a replica that is far behind, go from the socket into the file
(`SocketToFileSplicer`). Whatever arrived in one round of the loop is acknowledged together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from epochmq_broker.ha.epoch_file import EpochFile
from epochmq_broker.ha.epochs import record_received_epoch, without_empty_epochs
from epochmq_broker.ha.flow_monitor import FlowMonitor
from epochmq_broker.ha.splicer import SocketToFileSplicer
from epochmq_broker.store.mapped_file import DiskFullError
from epochmq_broker.store.replica_log_writer import ReplicaLogWriter
from epochmq_protocol.epoch_entries import EPOCH_ENTRY_SIZE, EpochEntry, decode_epoch_entries
from epochmq_protocol.errors import EpochMQError, RemoteProtocolError
from epochmq_protocol.ha_frames import (
    MASTER_HANDSHAKE_SIZE,
    MasterHandshake,
    ReplicaHandshake,
    TransferHeader,
    decode_default_transfer,
    decode_from_master,
    encode_ack,
    encode_default_report,
    encode_replica_handshake,
)

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 1024 * 1024
LARGE_BYTES: Final = 256 * 1024
"""A block from which on it is worth while to receive little more than its header."""
HEADER_BYTES: Final = 4 * 1024
EPOCHS_MAX: Final = 1000  # as many entries a handshake may carry (Java's buffer has room for)


class HAClientConnection(asyncio.BufferedProtocol):
    """One connection to a master. `closed` is done when it has ended, with why it did."""

    def __init__(
        self,
        replica_log: ReplicaLogWriter,
        epochs: EpochFile | None,
        introduce: ReplicaHandshake | None,
        now: Callable[[], float],
        reported_end: Callable[[], int] | None = None,
    ) -> None:
        """`epochs` and `introduce` are None without a controller. `now` is monotonic, in seconds.
        `reported_end` says how far the log may be acknowledged, -1: not at all any more; without it, all of
        it."""
        self._replica_log = replica_log
        self._epochs = epochs
        self._introduce = introduce
        self._now = now
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.closed: asyncio.Future[str] = loop.create_future()
        self.handshake: asyncio.Future[tuple[MasterHandshake, list[EpochEntry]]] = loop.create_future()
        self.on_bytes: Callable[[], None] = lambda: None
        self.on_confirm: Callable[[int], None] = lambda offset: None
        self.read_at = self.wrote_at = now()
        self.flow = FlowMonitor(now())
        self.following = False
        self.frames = 0
        self._transport: asyncio.Transport | None = None
        self._why = ""
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._left = 0  # of the block that is arriving
        self._large = False  # that block is a large one, and the next one will be
        self._splicer: SocketToFileSplicer | None = None
        self._epoch = -1
        self._known: list[EpochEntry] = []  # the master's epochs, as it told them
        self.confirm = -1
        self._ack_soon = False
        self._reported_end = reported_end if reported_end is not None else lambda: replica_log.end
        self.reported = -1
        """How far the master was last told that the log reaches."""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self._transport = cast("asyncio.Transport", transport)
        if self._introduce is not None:
            # In one write: a Java master does not wait for the second half.
            self._write(encode_replica_handshake(self._introduce))

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where the next bytes go."""
        if self._large:
            return self._view[self._filled : self._filled + HEADER_BYTES]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: so many bytes are there."""
        self.read_at = self._now()
        self.flow.add(nbytes)
        if self._why:
            return
        try:
            self._filled += nbytes
            self._parse()
            if self._large:
                self._pass_on()
        except (EpochMQError, DiskFullError, OSError, ValueError) as error:
            self.close(str(error))

    def eof_received(self) -> bool:
        """asyncio: the master sends no more."""
        self._why = self._why or "the master has closed it"
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over."""
        if self._splicer is not None:
            self._splicer.close()
            self._splicer = None
        self._why = self._why or (str(exc) if exc is not None else "the connection was lost")
        if not self.handshake.done():
            self.handshake.cancel()
        if not self.closed.done():
            self.closed.set_result(self._why)

    # Reading

    def _parse(self) -> None:
        """Takes all that is whole out of the buffer."""
        at = 0
        while at < self._filled:
            if self._left:
                size = min(self._left, self._filled - at)
                self._replica_log.write(self._replica_log.end, self._view[at : at + size], more=self._large)
                self._left -= size
                at += size
                self._grown()
                continue
            used = self._frame(self._view[at : self._filled])
            if used == 0:
                break
            at += used
            if self._why:
                return
        rest = self._filled - at
        if rest and at:
            self._buffer[:rest] = self._buffer[at : self._filled]
        self._filled = rest

    def _pass_on(self) -> None:
        """What has arrived of a large block, and is not in the buffer, goes into the log as it is."""
        if self._splicer is None:
            assert self._transport is not None
            self._splicer = SocketToFileSplicer(self._transport.get_extra_info("socket").fileno())
        while self._left and not self._filled and not self._why:
            took = self._replica_log.splice(self._replica_log.end, self._left, self._splicer.splice)
            if not took:
                break
            self._left -= took
            self.flow.add(took)
            self._grown()
        if not self._splicer.is_supported:
            self._large = False

    def _frame(self, data: memoryview) -> int:
        """One header; the bytes it took, 0 when it is not whole."""
        if self._introduce is None:
            plain = decode_default_transfer(data)
            if plain is None:
                return 0
            self._block(*plain)
            return 12
        found = decode_from_master(data)
        if found is None:
            return 0
        header, used = found
        if isinstance(header, MasterHandshake):
            return self._handshaken(header, data)
        if not self.following:
            raise RemoteProtocolError("a block before the handshake was over")
        self._labelled(header)
        self._block(header.offset, header.body_size)
        self.confirm = header.confirm_offset
        if not header.body_size:
            self._tell_confirm()
        return used

    def _handshaken(self, header: MasterHandshake, data: memoryview) -> int:
        if self.handshake.done():
            raise RemoteProtocolError("a second handshake")
        if header.body_size > EPOCHS_MAX * EPOCH_ENTRY_SIZE:
            raise RemoteProtocolError(f"a handshake with {header.body_size} bytes of epochs")
        size = MASTER_HANDSHAKE_SIZE + header.body_size
        if len(data) < size:
            return 0
        self._known = without_empty_epochs(decode_epoch_entries(bytes(data[MASTER_HANDSHAKE_SIZE:size])))
        self.handshake.set_result((header, self._known))
        return size

    def _labelled(self, header: TransferHeader) -> None:
        """A new epoch is on disk before any byte of it is in the log."""
        if header.epoch == self._epoch:
            return
        assert self._epochs is not None
        record_received_epoch(self._epochs, self._known, header.epoch, header.epoch_start_offset)
        self._epoch = header.epoch

    def _block(self, offset: int, size: int) -> None:
        end = self._replica_log.end
        if end not in (0, offset):
            raise RemoteProtocolError(f"the master sends from {offset}, but the log ends at {end}")
        self.frames += 1
        if size and end != offset:
            # Our log is empty and begins where the master's does.
            self._replica_log.writable_file(offset, size)
        self._left = size
        self._large = size >= LARGE_BYTES and (self._splicer is None or self._splicer.is_supported)

    def _grown(self) -> None:
        """The log has grown."""
        self._tell_confirm()
        self.on_bytes()
        if not self._ack_soon:
            self._ack_soon = True
            self._loop.call_soon(self._ack)

    def _tell_confirm(self) -> None:
        if self._introduce is not None and self.confirm >= 0:
            self.on_confirm(min(self.confirm, self._reported_end()))

    @property
    def lacks_confirmed(self) -> bool:
        """Whether the master has said that more is confirmed than there is here."""
        return self._introduce is not None and self.confirm > self._replica_log.end

    # Writing

    def _ack(self) -> None:
        self._ack_soon = False
        if self._reported_end() != self.reported:
            self.acknowledge()

    def flushed(self) -> None:
        """More of the log is on disk, or nothing will be any more."""
        if self.following and self._reported_end() != self.reported:
            self._tell_confirm()
            self.acknowledge()

    def acknowledge(self) -> None:
        """Tells the master how far the log reaches."""
        if self._why or self._transport is None:
            return
        end = self._reported_end()
        if end < 0:
            self.close("our disk has failed")
            return
        self.reported = end
        self._write(encode_default_report(end) if self._introduce is None else encode_ack(end))

    def follow(self) -> None:
        """From here on the master may send: the log is a beginning of its."""
        self.following = True
        self.acknowledge()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self.wrote_at = self._now()
        self._transport.write(data)

    def close(self, why: str) -> None:
        """Ends the connection at once."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()
