"""Receives a master's log over one HA connection and writes it into the replica's log: the replica's side.

Bytes are received into one buffer. Large blocks, which a master sends to a replica that is far behind, go
from the socket directly into the file (`SocketToFileSplicer`). The bytes that arrive in one iteration of the
event loop are acknowledged together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.epochs import record_received_epoch, without_empty_epochs
from epochmq_broker.replication.ha.flow_monitor import FlowMonitor
from epochmq_broker.replication.ha.splicer import SocketToFileSplicer
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
from epochmq_protocol.ha_proofs import ProofAtReplica
from epochmq_store.appending.replica_log_writer import ReplicaLogWriter
from epochmq_store.files.mapped_file import DiskFullError

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 1024 * 1024
LARGE_BYTES: Final = 256 * 1024
"""From this size on a block is spliced: little more than its header is received into the buffer."""
HEADER_BYTES: Final = 4 * 1024
PROOF_S: Final = 3.0  # time for the proofs of membership
EPOCHS_MAX: Final = 1000  # the most epochs in a handshake (as many as fit into RocketMQ's buffer)


class HAClientConnection(asyncio.BufferedProtocol):
    """One connection to a master. The future `closed` completes at its end, with the reason."""

    def __init__(
        self,
        replica_log: ReplicaLogWriter,
        epochs: EpochFile | None,
        own_handshake: ReplicaHandshake | None,
        *,
        now: Callable[[], float],
        reported_end: Callable[[], int],
        check: Callable[[int], bool],
        on_bytes: Callable[[], None],
        on_confirm: Callable[[int], None],
        proof: ProofAtReplica | None = None,
        is_sealed: bool = False,
    ) -> None:
        """`epochs` and `own_handshake` are None without a controller. `now` is monotonic, in seconds.
        `reported_end` says how far the log may be acknowledged, -1: not at all any more. `check` checks
        received records, which may be acknowledged then, and returns whether more are left; it gets the
        offset at which the master has said that its log ends, and raises EpochMQError. `on_bytes` is called
        after bytes of the master were appended to the log, `on_confirm` with the master's confirmed offset,
        limited to the reported end. `proof`: by which master and replica prove their membership to each
        other first. `is_sealed`: the bytes on the network are not those of the log."""
        self._replica_log = replica_log
        self._epochs = epochs
        self._own_handshake = own_handshake
        self._now = now
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.closed: asyncio.Future[str] = loop.create_future()
        self.handshake: asyncio.Future[tuple[MasterHandshake, list[EpochEntry]]] = loop.create_future()
        self.proven: asyncio.Future[None] = loop.create_future()
        """Completes once RocketMQ's frames may be sent."""
        self.proof = proof
        self._is_sealed = is_sealed
        self._on_bytes = on_bytes
        self._on_confirm = on_confirm
        self.read_at = self.wrote_at = now()
        self.flow = FlowMonitor(now())
        self.following = False
        self.frames = 0
        self._transport: asyncio.Transport | None = None
        self._close_reason = ""
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._block_remaining = 0  # bytes of the present block that have not arrived yet
        self._is_large = False  # the present block is spliced, and the next one probably, too
        self._splicer: SocketToFileSplicer | None = None
        self._epoch = -1
        self._master_epochs: list[EpochEntry] = []  # the epochs of the master's handshake
        self.confirm = -1
        self._report_scheduled = False
        self._reported_end = reported_end
        self._check = check
        self._master_end = -1  # the end of the master's log, when it had nothing to send last
        self.reported = -1
        """The end offset of the last report to the master."""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection is made."""
        self._transport = cast("asyncio.Transport", transport)
        if self.proof is None:
            self._start_frames()
        else:
            self._transport.write(self.proof.hello())

    def _start_frames(self) -> None:
        self.proven.set_result(None)
        if self._own_handshake is not None:
            # In one write: a RocketMQ master does not wait for the rest of a handshake.
            self._write(encode_replica_handshake(self._own_handshake))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio: the buffer for the next bytes."""
        if self._is_large:
            return self._view[self._filled : self._filled + HEADER_BYTES]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when bytes have arrived."""
        self.read_at = self._now()
        self.flow.add(nbytes)
        if self._close_reason:
            return
        try:
            self._filled += nbytes
            if self.proof is not None and self.proof.sealer is None:
                self._receive_proof(self.proof)
            self._parse()
            if self._is_large:
                self._splice_block()
        except (EpochMQError, DiskFullError, OSError, ValueError) as error:
            self.close(str(error))

    def eof_received(self) -> bool:
        """Called by asyncio when the master has closed its side."""
        self._close_reason = self._close_reason or "the master has closed the connection"
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has ended."""
        if self._splicer is not None:
            self._splicer.close()
            self._splicer = None
        self._close_reason = self._close_reason or (
            str(exc) if exc is not None else "the connection was lost"
        )
        if not self.handshake.done():
            self.handshake.cancel()
        if not self.closed.done():
            self.closed.set_result(self._close_reason)

    # Proof of membership

    async def wait_proven(self, timeout_s: float = PROOF_S) -> None:
        """Waits until both have proven their membership, if they have to. Raises ConnectionError."""
        ends: list[asyncio.Future[Any]] = [self.proven, self.closed]
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not self.proven.done():
            why = self.closed.result() if self.closed.done() else f"no response within {timeout_s:g} s"
            raise ConnectionError(f"no proof of membership: {why}")

    # Reading

    def _receive_proof(self, proof: ProofAtReplica) -> None:
        """Consumes the master's part of the proofs."""
        assert self._transport is not None
        while True:
            used, reply = proof.receive(bytes(self._view[: self._filled]))
            if not used:
                return
            self._buffer[: self._filled - used] = self._buffer[used : self._filled]
            self._filled -= used
            if reply:
                self._transport.write(reply)
            if proof.sealer is not None:
                self._start_frames()
                return

    def _parse(self) -> None:
        """Consumes the complete frames, and the block bytes, in the buffer."""
        at = 0
        while at < self._filled and self.proven.done():
            if self._block_remaining:
                size = min(self._block_remaining, self._filled - at)
                self._replica_log.write(
                    self._replica_log.end, self._view[at : at + size], more=self._is_large
                )
                self._block_remaining -= size
                at += size
                self._bytes_appended()
                continue
            used = self._decode_header(self._view[at : self._filled])
            if used == 0:
                break
            at += used
            if self._close_reason:
                return
        rest = self._filled - at
        if rest and at:
            self._buffer[:rest] = self._buffer[at : self._filled]
        self._filled = rest

    def _splice_block(self) -> None:
        """Splices the arrived bytes of a large block into the log, once the buffer is empty."""
        if self._splicer is None:
            assert self._transport is not None
            self._splicer = SocketToFileSplicer(self._transport.get_extra_info("socket").fileno())
        while self._block_remaining and not self._filled and not self._close_reason:
            took = self._replica_log.splice(
                self._replica_log.end, self._block_remaining, self._splicer.splice
            )
            if not took:
                break
            self._block_remaining -= took
            self.flow.add(took)
            self._bytes_appended()
        if not self._splicer.is_supported:
            self._is_large = False

    def _decode_header(self, data: memoryview) -> int:
        """Decodes one header; returns its size in bytes, 0 if it is incomplete."""
        if self._own_handshake is None:
            plain = decode_default_transfer(data)
            if plain is None:
                return 0
            self._block_received(*plain)
            if not plain[1]:
                self._nothing_to_receive()
            return 12
        found = decode_from_master(data)
        if found is None:
            return 0
        header, used = found
        if isinstance(header, MasterHandshake):
            return self._handshake_received(header, data)
        if not self.following:
            raise RemoteProtocolError("the master sent a block before this replica reported its end offset")
        self._epoch_received(header)
        self._block_received(header.offset, header.body_size)
        self.confirm = header.confirm_offset
        if not header.body_size:
            self._report_confirm_offset()
            self._nothing_to_receive()
        return used

    def _handshake_received(self, header: MasterHandshake, data: memoryview) -> int:
        if self.handshake.done():
            raise RemoteProtocolError("the master sent a second handshake")
        if header.body_size > EPOCHS_MAX * EPOCH_ENTRY_SIZE:
            raise RemoteProtocolError(
                f"the master's handshake has {header.body_size} bytes of epochs, "
                f"expected at most {EPOCHS_MAX * EPOCH_ENTRY_SIZE}"
            )
        size = MASTER_HANDSHAKE_SIZE + header.body_size
        if len(data) < size:
            return 0
        self._master_epochs = without_empty_epochs(
            decode_epoch_entries(bytes(data[MASTER_HANDSHAKE_SIZE:size]))
        )
        self.handshake.set_result((header, self._master_epochs))
        return size

    def _epoch_received(self, header: TransferHeader) -> None:
        """Saves a new epoch, before any byte of it is in the log."""
        if header.epoch == self._epoch:
            return
        assert self._epochs is not None
        record_received_epoch(self._epochs, self._master_epochs, header.epoch, header.epoch_start_offset)
        self._epoch = header.epoch

    def _block_received(self, offset: int, size: int) -> None:
        end = self._replica_log.end
        if end not in (0, offset):
            raise RemoteProtocolError(
                f"the master sends from offset {offset}, but this replica's log ends at {end}"
            )
        self.frames += 1
        if size and end != offset:
            # This log is empty and starts at the offset of the master's block.
            self._replica_log.writable_file(offset, size)
        self._block_remaining = size
        may_splice = not self._is_sealed and (self._splicer is None or self._splicer.is_supported)
        self._is_large = size >= LARGE_BYTES and may_splice

    def _bytes_appended(self) -> None:
        """Reports the new end of the log, which sends of the master wait for, before the records are
        dispatched."""
        self._check_soon()
        self._report_confirm_offset()
        self._on_bytes()

    def _nothing_to_receive(self) -> None:
        """A frame without bytes: the master has sent its whole log."""
        self._master_end = self._replica_log.end
        self._check_soon()

    def _check_soon(self) -> None:
        if not self._report_scheduled:
            self._report_scheduled = True
            self._loop.call_soon(self._report_if_changed)

    def _report_confirm_offset(self) -> None:
        if self._own_handshake is not None and self.confirm >= 0:
            self._on_confirm(min(self.confirm, self._reported_end()))

    @property
    def lacks_confirmed(self) -> bool:
        """Whether the master's confirmed offset lies after the end of this log."""
        return self._own_handshake is not None and self.confirm > self._replica_log.end

    # Reporting

    def _report_if_changed(self) -> None:
        self._report_scheduled = False
        if self._close_reason:
            return
        try:
            if self._check(self._master_end):
                self._check_soon()
        except EpochMQError as error:
            self.close(str(error))
            return
        if self.following and self._reported_end() != self.reported:
            self._report_confirm_offset()
            self.acknowledge()

    def flushed(self) -> None:
        """Reports the new flushed offset to the master, or the failure of the disk."""
        if self.following and self._reported_end() != self.reported:
            self._report_confirm_offset()
            self.acknowledge()

    def acknowledge(self) -> None:
        """Reports this log's end offset to the master."""
        if self._close_reason or self._transport is None:
            return
        end = self._reported_end()
        if end < 0:
            self.close("the disk of this replica has failed")
            return
        self.reported = end
        self._write(encode_default_report(end) if self._own_handshake is None else encode_ack(end))

    def start_transfer(self) -> None:
        """Starts the transfer: this log is a prefix of the master's now, and the report asks for more."""
        self.following = True
        self.acknowledge()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self.wrote_at = self._now()
        sealer = None if self.proof is None else self.proof.sealer
        self._transport.write(data if sealer is None else sealer.seal(data))

    def close(self, why: str) -> None:
        """Closes the connection at once."""
        self._close_reason = self._close_reason or why
        if self._transport is not None:
            self._transport.abort()
