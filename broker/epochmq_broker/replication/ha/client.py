"""Follows a master: connects, truncates the replica's log to what it has in common with the master's,
receives the rest, and reconnects after any failure (`DefaultHAClient`, `AutoSwitchHAClient`).

The steps of a connection. Each may be interrupted; the next connection starts with the first again:

1. Truncate an incomplete record at the end of the log.
2. Connect, send the handshake, and receive the master's epochs.
3. Truncate log, queues, index and epochs where they differ from the master's: by the epochs, and by comparing
   the content that the epochs say is common (`checksum_comparison`). This is durable before the next step.
4. Report the log's end offset to the master, and receive what follows. Received records are checked
   (`ReceivedRecords`) before they are acknowledged.

Without a controller there are no epochs, and steps 2 and 3 only connect.

With SYNC_FLUSH a replica acknowledges what it has flushed. One flush at a time covers all bytes received so
far, and they are acknowledged when it is done. A replica whose disk has failed acknowledges nothing any more
and ends the connection, upon which the master removes it from the SyncStateSet.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Callable
from typing import Final

from epochmq_broker.replication.ha.checksum_comparison import LogComparison, may_truncate
from epochmq_broker.replication.ha.client_connection import HAClientConnection
from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.epochs import HADivergedError, common_prefix_end
from epochmq_broker.replication.ha.log_checksums import ChecksumsBusyError, LogChecksums
from epochmq_broker.replication.ha.log_doubt import LogDoubt, has_caught_up, protected_until, reported_end
from epochmq_broker.replication.ha.log_end import DISPATCH_BATCH_RECORDS, find_record_start, find_sound_end
from epochmq_broker.replication.ha.master_access import MasterAccess
from epochmq_broker.replication.ha.master_checksums import MasterChecksumClient
from epochmq_broker.replication.ha.missing_start import check_missing_start
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.tls import HATls
from epochmq_protocol.bodies import HAClientRuntimeInfo
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.ha_frames import HAConnectionState, MasterHandshake, ReplicaHandshake
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_store.appending.received_records import DamagedRecordError, ReceivedRecords
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import PutStatus, RunningFlags

log = logging.getLogger(__name__)

CONNECT_S: Final = 3.0
HANDSHAKE_S: Final = 5.0
RECONNECT_MIN_S: Final = 0.1
RECONNECT_MAX_S: Final = 3.0
SUPERVISE_INTERVAL_S: Final = 0.5
CHECK_BATCH_RECORDS: Final = 4096
"""How many received records are checked before the event loop serves other work."""
CATCH_UP_DISPATCH_INTERVAL_S: Final = 0.05
"""How often a batch is dispatched while the log lacks confirmed bytes. Receiving them comes first, because it
makes the group safe again. Late dispatching costs time only if this replica becomes the master at once."""


class HAClientPhase(enum.Enum):
    """What an HA client does now."""

    WAITING = "waits for the master's address"
    CONNECTING = "connects to the master"
    COMPARING = "compares its log with the master's"
    FOLLOWING = "follows the master"
    FAILED = "follows no master because its disk has failed"
    DIVERGED = "follows no master because its log and the master's have diverged"
    STOPPED = "stopped"


class HAClient:
    """Follows one master after another. `confirm_offset` is the master's confirmed offset, limited to the end
    of this log."""

    def __init__(
        self,
        store: MessageStore,
        epochs: EpochFile | None,
        settings: HASettings,
        *,
        broker_id: int,
        confirm_offset: int,
        verified: int,
        checksums: LogChecksums,
        master_checksums: Callable[[], MasterChecksumClient | None],
        doubt: Callable[[], LogDoubt],
        acknowledged_until: Callable[[], int],
        order: str,
        on_confirm: Callable[[int], None],
        on_dispatch: Callable[[], None],
        on_diverged: Callable[[], None],
        on_damaged: Callable[[int], None],
        members: MemberAuthentication | None = None,
        tls: HATls | None = None,
    ) -> None:
        """`epochs` is None without a controller; everything received then counts as confirmed. Up to offset
        `verified` the log is known to be equal to the master's. `checksums` are those of this log,
        `master_checksums` returns the client that gets the master's; None: logs are not compared.
        `doubt` returns what the log may lack, `acknowledged_until` the offset below which a shorter log of a
        master is no reason to truncate it. `order` is the command that makes this broker the master.

        `on_confirm` is called with each new confirmed offset, `on_dispatch` after confirmed records were
        dispatched, `on_diverged` when the log differs from the master's below the confirmed offset,
        `on_damaged` with the offset of a damaged record of this log below the confirmed offset. `members`:
        None where nobody proves a membership. `tls`: None for plain connections."""
        self._access = MasterAccess(tls, members)
        self.phase = HAClientPhase.WAITING
        self.confirm_offset = confirm_offset
        self.address: str | None = None
        self.reached: str | None = None
        """The address of the master to which the latest HA connection was made."""
        self.verified = verified
        """Up to which offset the log is known to be equal to the master's."""
        self._checksums = checksums
        self._master_checksums = master_checksums
        self._doubt = doubt
        self._acknowledged_until = acknowledged_until
        self._order = order
        self._on_damaged = on_damaged
        self._received = ReceivedRecords(store.log, store.max_phy_offset)
        self._transfer_start = 0
        """The end of the log that was reported first over the present connection."""
        self._damaged_offset: int | None = None
        """Where the master has sent a damaged record."""
        self.divergence = ""
        """Why this replica follows no master until a person decides, or the master changes; empty if it
        may."""
        self._on_confirm = on_confirm
        self._on_dispatch = on_dispatch
        self._on_diverged = on_diverged
        self._on_caught_up: Callable[[], None] | None = None
        self._master_end = 0
        self._disk_has_failed = bool(store.state.flags & RunningFlags.FLUSH_FAILED)
        """Whether the disk has failed, so that received bytes may be missing after a restart."""
        self._store = store
        self._epochs = epochs
        self._settings = settings
        self._broker_id = broker_id
        self._address_changed = asyncio.Event()
        self._stream: HAClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._dispatching = False
        self._stopped = False
        self._dispatch_failures = 0
        self._loop = asyncio.get_running_loop()

    def when_caught_up(self, done: Callable[[], None]) -> None:
        """Calls `done` once, when the log has all bytes that the master had at the handshake, and all
        confirmed bytes."""
        self._on_caught_up = done

    # Start and stop

    def start(self, address: str | None) -> None:
        """Starts to follow the master at `address`; None: waits for `follow`."""
        self.address = address
        self._store.on_flush.append(self._flushed)
        self._store.state.on_fsync_failure.append(self._disk_failed)
        self._task = asyncio.create_task(self._reconnect_forever(), name="follow the master")

    async def stop(self) -> None:
        """Ends the connection and leaves the log as it is."""
        self._stopped = True
        if self._flushed in self._store.on_flush:
            self._store.on_flush.remove(self._flushed)
            self._store.state.on_fsync_failure.remove(self._disk_failed)
        if self._stream is not None:
            self._stream.close("this broker stops being a replica")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.phase = HAClientPhase.STOPPED

    def configure(self, settings: HASettings) -> None:
        """Uses new settings."""
        self._settings = settings

    def follow(self, address: str | None) -> None:
        """Follows another master, and ends the connection to the former one at once."""
        if address == self.address:
            return
        log.info("the replica follows the master at %s instead of %s", address, self.address)
        self.address = address
        self.divergence, self._damaged_offset = "", None
        self._address_changed.set()
        if self._stream is not None:
            self._stream.close(f"the master is at {address} now")

    def reconnect(self) -> None:
        """Reconnects, because the content of the handshake has changed."""
        self._address_changed.set()
        if self._stream is not None:
            self._stream.close("the replica's handshake has changed")

    async def _reconnect_forever(self) -> None:
        pause_s = RECONNECT_MIN_S
        while True:
            self._address_changed.clear()
            address = self.address
            if not address:
                self.phase = HAClientPhase.WAITING
                await self._address_changed.wait()
                continue
            if self._disk_has_failed:
                self.phase = HAClientPhase.FAILED
                await self._address_changed.wait()
                continue
            self.phase = HAClientPhase.CONNECTING
            followed = False
            try:
                followed = await self._run_connection(address)
            except (
                EpochMQError,
                DiskFullError,
                OSError,
                ValueError,
                TimeoutError,
                ChecksumsBusyError,
            ) as error:
                self._cannot_follow(address, error)
            except Exception:
                log.exception("the replica failed to follow %s", address)
            if followed:
                pause_s = RECONNECT_MIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._address_changed.wait()
            pause_s = (
                min(pause_s * 2, RECONNECT_MAX_S) if not self._address_changed.is_set() else RECONNECT_MIN_S
            )

    def _cannot_follow(self, address: str, error: Exception) -> None:
        """Logs why the attempt has failed; what only a person can mend is logged once."""
        if isinstance(error, HADivergedError):
            self.phase = HAClientPhase.DIVERGED
            known, self.divergence = self.divergence, str(error)
            if known != self.divergence:
                log.error("the replica cannot follow %s: %s", address, error)
        else:
            log.warning("the replica cannot follow %s: %s", address, error or type(error).__name__)

    async def _run_connection(self, address: str) -> bool:
        """Runs one connection to its end; returns whether it received any block or heartbeat."""
        self._store.note_replicated_bytes()
        if self._epochs is not None:
            await self._truncate_torn_tail()
        host, _, port = address.rpartition(":")
        own_handshake = self._own_handshake()
        await self._wait_until_flushed()
        stream = HAClientConnection(
            self._store.replica_log,
            self._epochs,
            own_handshake,
            now=self._loop.time,
            reported_end=self._reported_end,
            check=self._check_received,
            on_bytes=self._bytes_received,
            on_confirm=self._confirm_offset_received,
            proof=self._access.proof_for(address),
            is_sealed=(tls := self._access.tls_for(address)) is not None,
        )
        async with asyncio.timeout(CONNECT_S):
            own = self._settings.source_address
            await self._access.connect(stream, address, host.strip("[]"), int(port), tls, own)
        self._stream = stream
        try:
            await self._access.wait_proven(stream, address)
            if address != self.address or own_handshake != self._own_handshake():
                return False  # they have changed meanwhile
            if self._epochs is not None:
                self.phase = HAClientPhase.COMPARING
                await self._agree_with_master(stream, self._epochs)
            self.phase = HAClientPhase.FOLLOWING
            if self._damaged_offset is None:
                self.divergence = ""
            self._transfer_start = self._store.max_phy_offset
            self.reached = address
            log.info("the replica follows %s from offset %d", address, self._store.max_phy_offset)
            stream.start_transfer()
            why = await self._supervise(stream)
            log.warning("the replica no longer follows %s: %s", address, why)
            return stream.frames > 0
        finally:
            stream.close("the replica gives up this connection")
            self._stream = None
            if stream.following:
                self.verified = self._store.max_phy_offset

    def _own_handshake(self) -> ReplicaHandshake | None:
        """The handshake by the present settings; without a controller there is none."""
        if self._epochs is None:
            return None
        settings = self._settings
        return ReplicaHandshake(self._broker_id, settings.sync_from_last_file, settings.async_learner)

    async def _supervise(self, stream: HAClientConnection) -> str:
        """Supervises the connection until it ends: reports at least once per heartbeat interval, and closes
        the connection if the master is silent. Returns why it ended."""
        while True:
            done, _ = await asyncio.wait([stream.closed], timeout=SUPERVISE_INTERVAL_S)
            if done:
                return stream.closed.result()
            settings = self._settings
            now = self._loop.time()
            stream.flow.update_rate(now)
            if now - stream.read_at > settings.ha_housekeeping_interval / 1000:
                stream.close(f"the master has sent nothing for {settings.ha_housekeeping_interval} ms")
            elif now - stream.wrote_at > settings.ha_send_heartbeat_interval / 1000 or self._disk_has_failed:
                stream.acknowledge()
            if self._store.replica_log.has_undispatched:
                self._dispatch_soon()  # also after a failed dispatch

    # Flushing

    def _reported_end(self) -> int:
        if self._disk_has_failed:
            return -1
        store = self._store
        checked = max(self._received.position, self._transfer_start)
        return reported_end(sync_flush=store.config.sync_flush, flushed=store.flushed_where, end=checked)

    def _flushed(self, offset: int) -> None:
        if self._stream is not None and self._store.config.sync_flush:
            self._stream.flushed()

    def _disk_failed(self) -> None:
        self._disk_has_failed = True
        log.critical("the disk of this replica has failed: it acknowledges nothing to the master any more")
        if self._stream is not None:
            self._stream.close("the disk of this replica has failed")

    async def _wait_until_flushed(self) -> None:
        """With SYNC_FLUSH, flushes the whole log before its end offset is reported. Raises EpochMQError."""
        store = self._store
        if not store.config.sync_flush or store.flushed_where >= store.max_phy_offset:
            return
        done: asyncio.Future[PutStatus] = self._loop.create_future()
        store.when_flushed(
            store.max_phy_offset, lambda status: done.set_result(status) if not done.done() else None
        )
        if await done is not PutStatus.PUT_OK:
            raise EpochMQError(f"the replica could not flush its log up to {store.max_phy_offset}")

    # Agreeing with the master

    async def _truncate_torn_tail(self) -> None:
        """Step 1: the last bytes of a former master may be a part of a record."""
        store = self._store
        end = await find_sound_end(store)
        if end < self.confirm_offset and store.replica_log.is_damaged_at(end):
            self._on_damaged(end)
            raise EpochMQError(f"the log is damaged at offset {end}, below the confirmed offset")
        if end < store.max_phy_offset:
            log.info(
                "the log ends at %d with an incomplete record: the replica truncates it to %d",
                store.max_phy_offset,
                end,
            )
            self._truncate(end, torn=True)
            store.note_replicated_bytes()
        assert self._epochs is not None
        self._epochs.truncate_suffix(store.max_phy_offset + 1)

    async def _agree_with_master(self, stream: HAClientConnection, epochs: EpochFile) -> None:
        """Steps 2 and 3. Raises HADivergedError."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                header, theirs = await stream.handshake
        except asyncio.CancelledError:
            if stream.closed.done() and not self._stopped:
                raise ConnectionError(stream.closed.result()) from None
            raise
        store = self._store
        await check_missing_start(store.log, self._doubt(), self._master_checksums(), header.epoch)
        self._master_end = header.max_offset
        end = store.max_phy_offset
        known = epochs.epochs.entries
        point = common_prefix_end(known, store.min_phy_offset, end, theirs, header.max_offset)
        if not known and end > 0:
            # The epochs were lost, or the log was written without a controller: compare all of it.
            point, self.verified = min(end, header.max_offset), 0
        difference = await self._find_difference(point, header.epoch, must_know=not known)
        if difference is not None:
            point = await self._handle_divergence(difference)
        elif not known and point < protected_until(self._doubt(), self.confirm_offset):
            raise HADivergedError(
                f"the log has no epochs and ends at {end}; the master's ends at {header.max_offset}, below "
                f"the confirmed offset {self.confirm_offset}: compare the two logs (epochmq audit), and "
                "clear the store that is wrong"
            )
        if point < end:
            self._check_acknowledged(point, header)
            log.warning(
                "the log ends at %d and differs from the master's from %d on: the replica truncates it there",
                end,
                point,
            )
            self._truncate(point)
        self.verified = point
        epochs.truncate_suffix(point)

    def _check_acknowledged(self, point: int, header: MasterHandshake) -> None:
        """Raises HADivergedError if a truncation at `point` would remove what may be acknowledged, whatever
        the epochs say: then the master has lost it, or a person has given it up."""
        acknowledged = self._acknowledged_until()
        if point >= acknowledged:
            return
        raise HADivergedError(
            f"broker {self._broker_id} (this one) has acknowledged messages up to offset {acknowledged} in "
            f"{self._store.log.files.directory}. The log of the master at {self.address}, epoch "
            f"{header.epoch}, ends at {header.max_offset} and agrees up to {point} only. Nothing was "
            "changed: this replica keeps its messages and waits for a master that has them. To make it the "
            f"master: {self._order}. To give the messages up: stop this broker, and empty its store, so that "
            "it copies the master's log"
        )

    async def _find_difference(self, end: int, epoch: int, *, must_know: bool) -> int | None:
        """The offset of the first byte before `end` that differs from the master's; None if there is none, or
        if the master is a RocketMQ broker, which cannot compare. With `must_know` the latter raises
        HADivergedError."""
        store = self._store
        comparison = LogComparison(max(store.min_phy_offset, 0), self.verified, end)
        master = self._master_checksums()
        while (log_range := comparison.next_range()) is not None:
            theirs, own = None, b""
            if master is not None:
                theirs, own = await asyncio.gather(
                    master.checksums(log_range, epoch), self._checksums.of(log_range)
                )
            if theirs is None and must_know:
                raise HADivergedError(
                    f"the log ends at {end}, but {self._epochs.path if self._epochs else 'its epoch file'} "
                    "holds no epoch of it, and this master cannot compare its content: restore the epoch "
                    "file from a copy, or clear this store so that it is copied again"
                )
            if theirs is None:
                return None
            if theirs.begins > log_range.start:
                comparison.limit_to_master_start(theirs.begins)
                continue
            comparison.add_checksums(own, theirs.checksums)
        return comparison.difference

    async def _handle_divergence(self, difference: int) -> int:
        """The offset at which to truncate a log that differs from the master's at `difference`. Raises
        HADivergedError if that is below the protected offset; both logs then stay as they are."""
        store = self._store
        start = await find_record_start(store, difference)
        if may_truncate(difference, protected_until(self._doubt(), self.confirm_offset)):
            log.error(
                "the log differs from the master's at offset %d, in the record at %d", difference, start
            )
            return start
        self._on_diverged()
        raise HADivergedError(
            f"the log in {store.log.files.directory} differs from that of the master at {self.address} at "
            f"offset {difference}, in the record at {start}, below the confirmed offset "
            f"{self.confirm_offset}. Nothing was changed. Compare the two logs (epochmq audit), and clear "
            "the store that is wrong"
        )

    def _truncate(self, offset: int, *, torn: bool = False) -> None:
        self._store.truncate(offset, torn=torn)
        self._received.truncate(offset)
        self.verified = min(self.verified, offset)
        if self.confirm_offset > offset:
            self.confirm_offset = offset
            self._on_confirm(offset)

    # Receiving

    def _check_received(self, master_end: int) -> bool:
        """Checks received records, and returns whether more are left. Raises DamagedRecordError: then this
        replica acknowledges nothing from that record on, and is not in sync."""
        try:
            more = self._received.advance(CHECK_BATCH_RECORDS, complete_until=master_end)
        except DamagedRecordError as error:
            self._damaged_offset = error.offset
            known = self.divergence
            self.divergence = (
                f"the master at {self.address} has sent damaged bytes: {error}. This replica acknowledges "
                f"nothing behind them. Run epochmq audit, and make a broker whose log is sound the master; "
                f"to make it this one: {self._order}"
            )
            if known != self.divergence:
                log.critical("the replica is not in sync: %s", self.divergence)
            raise
        if self._damaged_offset is not None and self._received.position > self._damaged_offset:
            log.warning("the replica has received the record at %d as a whole", self._damaged_offset)
            self.divergence, self._damaged_offset = "", None
        return more

    def _bytes_received(self) -> None:
        """Flushes and dispatches what the connection has appended to the log."""
        store = self._store
        if store.config.sync_flush:
            store.log_flusher.flush_soon()
        if self._on_caught_up is not None:
            self._loop.call_soon(self._check_caught_up)
        store.note_replicated_bytes()
        if self._epochs is None:
            self._dispatch_soon()

    def _confirm_offset_received(self, offset: int) -> None:
        if offset > self.confirm_offset:
            self.confirm_offset = offset
            self._on_confirm(offset)
            self._dispatch_soon()
        if self._on_caught_up is not None:
            self._check_caught_up()

    def _check_caught_up(self) -> None:
        stream, caught_up = self._stream, self._on_caught_up
        if caught_up is None or stream is None or not stream.following or stream.confirm < 0:
            return
        if has_caught_up(reported=stream.reported, master_end=self._master_end, confirmed=stream.confirm):
            self._on_caught_up = None
            caught_up()

    def _dispatch_soon(self) -> None:
        if self._dispatching:
            return
        self._dispatching = True
        if self._stream is not None and self._stream.lacks_confirmed:
            self._loop.call_later(CATCH_UP_DISPATCH_INTERVAL_S, self._dispatch)
        else:
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Dispatches one batch of confirmed records to queues and index."""
        self._dispatching = False
        if self._stopped:
            return
        store = self._store
        limit = store.max_phy_offset if self._epochs is None else self.confirm_offset
        try:
            more = store.replica_log.dispatch(limit, DISPATCH_BATCH_RECORDS)
        except (DiskFullError, OSError) as error:
            if self._dispatch_failures == 0:
                log.error("the replica could not dispatch received records: %s", error)
            self._dispatch_failures += 1
            return
        self._dispatch_failures = 0
        store.note_replicated_bytes()
        self._on_dispatch()
        if not more and store.replica_log.is_damaged_before(limit):
            self._on_damaged(store.replica_log.dispatched_offset)
            return
        if more:
            self._dispatch_soon()

    # Status

    @property
    def state(self) -> HAConnectionState:
        """RocketMQ's name for the present phase."""
        return {
            HAClientPhase.COMPARING: HAConnectionState.HANDSHAKE,
            HAClientPhase.FOLLOWING: HAConnectionState.TRANSFER,
            HAClientPhase.STOPPED: HAConnectionState.SHUTDOWN,
        }.get(self.phase, HAConnectionState.READY)

    def runtime_info(self) -> HAClientRuntimeInfo:
        """For GET_BROKER_HA_STATUS."""
        stream = self._stream
        shift = time.time() - self._loop.time()
        return HAClientRuntimeInfo(
            master_addr=self.address,
            transferred_byte_in_second=stream.flow.bytes_per_second if stream is not None else 0,
            max_offset=self._store.max_phy_offset,
            last_read_timestamp=int((stream.read_at + shift) * 1000) if stream is not None else 0,
            last_write_timestamp=int((stream.wrote_at + shift) * 1000) if stream is not None else 0,
            master_flush_offset=self._store.checkpoint.master_flushed_offset,
        )
