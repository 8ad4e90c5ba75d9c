"""Follows a master: connects, agrees with it where the two logs part, takes what it sends, and begins anew
when anything goes wrong (`DefaultHAClient`, `AutoSwitchHAClient`).

The steps of a connection, each of which may be interrupted and is then taken again from the first:

1. cut a record that is not whole off the end of the log;
2. connect, introduce ourselves, receive the master's epochs;
3. cut the log, queues, index and epochs where they stop being the master's: by the epochs, and by comparing
   the content of what they say is common (`comparison`); durable before the next step;
4. tell the master where the log ends, and take what comes.

Without a controller there are no epochs: steps 2 and 3 are a connection only.

With SYNC_FLUSH a replica acknowledges what it has flushed: one flush at a time takes along all that was
received, and each is acknowledged when it is done. A replica whose disk has failed acknowledges nothing any
more and ends the connection, upon which a master takes it out of the SyncStateSet.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Callable
from typing import Final

from epochmq_broker.ha.client_connection import HAClientConnection
from epochmq_broker.ha.epoch_file import EpochFile
from epochmq_broker.ha.epochs import HADivergedError, common_prefix_end
from epochmq_broker.ha.log_checksums import ChecksumsBusyError, LogChecksums
from epochmq_broker.ha.log_comparison import LogComparison, may_truncate
from epochmq_broker.ha.log_doubt import has_caught_up, reported_end
from epochmq_broker.ha.master_checksums import MasterChecksumClient
from epochmq_broker.ha.settings import HASettings
from epochmq_broker.store import record
from epochmq_broker.store.mapped_file import DiskFullError
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import PutStatus, RunningFlags
from epochmq_protocol.bodies import HAClientRuntimeInfo
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.ha_frames import HAConnectionState, ReplicaHandshake

log = logging.getLogger(__name__)

CONNECT_S: Final = 3.0
HANDSHAKE_S: Final = 5.0
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 3.0
CHECK_S: Final = 0.5
DISPATCH_BATCH_RECORDS: Final = 256
"""Records looked at, or dispatched, before others have their turn."""
CATCH_UP_DISPATCH_INTERVAL_S: Final = 0.05
"""How often a slice is dispatched while the log lacks what is confirmed: to have that makes the group safe
again; what is dispatched later costs time only if this replica becomes the master at once."""


class HAClientPhase(enum.Enum):
    """Where a replica is."""

    WAITING = "waits for an address"
    CONNECTING = "connects"
    AGREEING = "agrees with its master where the logs part"
    FOLLOWING = "follows"
    FAILED = "follows no master: its disk has failed"
    STOPPED = "stopped"


class HAClient:
    """One replica's life under one master after the other. `confirm_offset` is what the master said is
    confirmed, as far as it is here."""

    def __init__(
        self,
        store: MessageStore,
        epochs: EpochFile | None,
        settings: HASettings,
        *,
        broker_id: int,
        confirm_offset: int = 0,
    ) -> None:
        """`epochs` is None without a controller: everything received counts as confirmed then."""
        self.phase = HAClientPhase.WAITING
        self.confirm_offset = confirm_offset
        self.address: str | None = None
        self.on_confirm: Callable[[int], None] = lambda offset: None
        self.on_caught_up: Callable[[], None] | None = None
        """Called once, when the log has everything that the master had when the two met and has confirmed."""
        self.on_diverged: Callable[[], None] = lambda: None
        """Called when the log differs from the master's below what was confirmed."""
        self.verified = 0
        """Up to where the log is known to be the master's."""
        self.checksums = LogChecksums(store.log)
        self.master_checksums: Callable[[], MasterChecksumClient | None] = lambda: None
        self.protected_until: Callable[[int], int] = lambda confirmed: confirmed
        """Of what was confirmed, what this broker does not know to have lost."""
        self._master_end = 0
        self._has_failed = bool(store.state.flags & RunningFlags.FLUSH_FAILED)
        """Whether the disk has failed: what is received may not be there after a restart."""
        self._store = store
        self._epochs = epochs
        self._settings = settings
        self._broker_id = broker_id
        self._changed = asyncio.Event()
        self._stream: HAClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._dispatching = False
        self._stopped = False
        self._faults = 0
        self._loop = asyncio.get_running_loop()

    # Life

    def start(self, address: str | None) -> None:
        """Begins to follow; None: waits for `follow`."""
        self.address = address
        self._store.on_flush.append(self._flushed)
        self._store.state.on_fsync_failure.append(self._disk_failed)
        self._task = asyncio.create_task(self._run(), name="follow the master")

    async def stop(self) -> None:
        """Ends the connection; the log stays as it is."""
        self._stopped = True
        if self._flushed in self._store.on_flush:
            self._store.on_flush.remove(self._flushed)
            self._store.state.on_fsync_failure.remove(self._disk_failed)
        if self._stream is not None:
            self._stream.close("we follow nobody any more")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.phase = HAClientPhase.STOPPED

    def configure(self, settings: HASettings) -> None:
        """Takes over new settings."""
        self._settings = settings

    def follow(self, address: str | None) -> None:
        """Another master: the connection to the former one ends at once."""
        if address == self.address:
            return
        log.info("follows %s instead of %s", address, self.address)
        self.address = address
        self._changed.set()
        if self._stream is not None:
            self._stream.close(f"the master is at {address} now")

    def reconnect(self) -> None:
        """Introduces itself to the master anew: something that it says then has changed."""
        self._changed.set()
        if self._stream is not None:
            self._stream.close("it introduces itself anew")

    async def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while True:
            self._changed.clear()
            address = self.address
            if not address:
                self.phase = HAClientPhase.WAITING
                await self._changed.wait()
                continue
            if self._has_failed:
                self.phase = HAClientPhase.FAILED
                await self._changed.wait()
                continue
            self.phase = HAClientPhase.CONNECTING
            followed = False
            try:
                followed = await self._follow(address)
            except (
                EpochMQError,
                DiskFullError,
                OSError,
                ValueError,
                TimeoutError,
                ChecksumsBusyError,
            ) as error:
                level = logging.ERROR if isinstance(error, HADivergedError) else logging.WARNING
                log.log(level, "does not follow %s: %s", address, error or type(error).__name__)
            except Exception:
                log.exception("following %s failed", address)
            if followed:
                pause_s = PAUSE_MIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            pause_s = min(pause_s * 2, PAUSE_MAX_S) if not self._changed.is_set() else PAUSE_MIN_S

    async def _follow(self, address: str) -> bool:
        """One connection, to its end; whether it came as far as following."""
        self._store.note_replicated_bytes()
        if self._epochs is not None:
            await self._cut_torn()
        host, _, port = address.rpartition(":")
        introduce = None
        if self._epochs is not None:
            settings = self._settings
            introduce = ReplicaHandshake(
                self._broker_id, settings.sync_from_last_file, settings.async_learner
            )
        await self._flush_rest()
        stream = HAClientConnection(
            self._store.replica_log, self._epochs, introduce, self._loop.time, self._reported_end
        )
        stream.on_bytes = self._grown
        stream.on_confirm = self._confirmed
        async with asyncio.timeout(CONNECT_S):
            await self._loop.create_connection(lambda: stream, host.strip("[]"), int(port))
        self._stream = stream
        try:
            if address != self.address:
                return False
            if self._epochs is not None:
                self.phase = HAClientPhase.AGREEING
                await self._agree(stream, self._epochs)
            self.phase = HAClientPhase.FOLLOWING
            log.info("follows %s from offset %d", address, self._store.max_phy_offset)
            stream.follow()
            why = await self._watch(stream)
            log.warning("follows %s no more: %s", address, why)
            return stream.frames > 0
        finally:
            stream.close("it is given up")
            self._stream = None
            if stream.following:
                self.verified = self._store.max_phy_offset

    async def _watch(self, stream: HAClientConnection) -> str:
        """Until the connection ends: reports when there was nothing to report, and ends it when the master
        is silent."""
        while True:
            done, _ = await asyncio.wait([stream.closed], timeout=CHECK_S)
            if done:
                return stream.closed.result()
            settings = self._settings
            now = self._loop.time()
            stream.flow.turn(now)
            if now - stream.read_at > settings.ha_housekeeping_interval / 1000:
                stream.close(f"nothing was heard for {settings.ha_housekeeping_interval} ms")
            elif now - stream.wrote_at > settings.ha_send_heartbeat_interval / 1000 or self._has_failed:
                stream.acknowledge()
            if self._store.replica_log.has_undispatched:
                self._dispatch_soon()  # also after a fault

    # What is on disk

    def _reported_end(self) -> int:
        if self._has_failed:
            return -1
        store = self._store
        return reported_end(
            sync_flush=store.config.sync_flush, flushed=store.flushed_where, end=store.log.max_offset
        )

    def _flushed(self, offset: int) -> None:
        if self._stream is not None and self._store.config.sync_flush:
            self._stream.flushed()

    def _disk_failed(self) -> None:
        self._has_failed = True
        log.critical("the disk has failed: nothing is acknowledged to the master any more")
        if self._stream is not None:
            self._stream.close("our disk has failed")

    async def _flush_rest(self) -> None:
        """What a former master sent is on disk before a master is told where the log ends. EpochMQError."""
        store = self._store
        if not store.config.sync_flush or store.flushed_where >= store.max_phy_offset:
            return
        done: asyncio.Future[PutStatus] = self._loop.create_future()
        store.when_flushed(
            store.max_phy_offset, lambda status: done.set_result(status) if not done.done() else None
        )
        if await done is not PutStatus.PUT_OK:
            raise EpochMQError(f"the log could not be flushed up to {store.max_phy_offset}")

    # Agreeing

    async def _cut_torn(self) -> None:
        """Step 1. What a former master sent last may be a part of a record."""
        store = self._store
        end = await find_sound_end(store)
        if end < store.max_phy_offset:
            log.info("the log ends at %d with a part of a record: cut to %d", store.max_phy_offset, end)
            self._truncate(end, torn=True)
            store.note_replicated_bytes()
        assert self._epochs is not None
        self._epochs.truncate_suffix(store.max_phy_offset + 1)

    async def _agree(self, stream: HAClientConnection, epochs: EpochFile) -> None:
        """Steps 2 and 3. Raises HADivergedError."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                header, theirs = await stream.handshake
        except asyncio.CancelledError:
            if stream.closed.done() and not self._stopped:
                raise ConnectionError(stream.closed.result()) from None
            raise
        store = self._store
        self._master_end = header.max_offset
        end = store.max_phy_offset
        known = epochs.epochs.entries
        point = common_prefix_end(known, store.min_phy_offset, end, theirs, header.max_offset)
        if not known and end > 0:
            # Its epochs were lost, or it was written without a controller: nothing is known of it.
            point, self.verified = min(end, header.max_offset), 0
        difference = await self._difference(point, header.epoch, must_know=not known)
        if difference is not None:
            point = await self._part(difference)
        elif not known and point < self.protected_until(self.confirm_offset):
            raise HADivergedError(
                f"the log has no epochs and ends at {end}, the master's at {header.max_offset}, below what "
                f"was confirmed ({self.confirm_offset}): compare the two, and clear the store that is wrong"
            )
        if point < end:
            log.warning("the log ends at %d, the master's parts from it at %d: cut there", end, point)
            self._truncate(point)
        self.verified = point
        epochs.truncate_suffix(point)

    async def _difference(self, end: int, epoch: int, *, must_know: bool) -> int | None:
        """The first byte in front of `end` that is not the master's; None when all are, as far as that can be
        known: a master of RocketMQ's cannot be asked. HADivergedError when it must be known and cannot."""
        store = self._store
        comparison = LogComparison(max(store.min_phy_offset, 0), self.verified, end)
        master = self.master_checksums()
        while (wanted := comparison.next()) is not None:
            theirs, own = None, b""
            if master is not None:
                theirs, own = await asyncio.gather(master.checksums(wanted, epoch), self.checksums.of(wanted))
            if theirs is None and must_know:
                raise HADivergedError(
                    f"the log ends at {end}, but {self._epochs.path if self._epochs else 'its epoch file'} "
                    "holds no epoch of it, and this master cannot compare its content: put the epoch file "
                    "back from a copy, or clear this store, which is then copied anew"
                )
            if theirs is None:
                return None
            if theirs.begins > wanted.start:
                comparison.begins(theirs.begins)
                continue
            comparison.answered(own, theirs.checksums)
        return comparison.difference

    async def _part(self, difference: int) -> int:
        """Where to cut a log that differs from the master's from the byte at `difference` on. HADivergedError
        when that is below what was confirmed: then both logs stay as they are."""
        store = self._store
        start = await find_record_start(store, difference)
        if may_truncate(difference, self.protected_until(self.confirm_offset)):
            log.error("the log differs from the master's at %d, in the record at %d", difference, start)
            return start
        self.on_diverged()
        raise HADivergedError(
            f"the log in {store.config.commit_log_dir} differs from that of the master at {self.address} at "
            f"offset {difference}, in the record at {start}, below what was confirmed "
            f"({self.confirm_offset}). Nothing was changed. Compare the two (epochmq audit), and clear the "
            "store that is wrong"
        )

    def _truncate(self, offset: int, *, torn: bool = False) -> None:
        self._store.truncate(offset, torn=torn)
        self.verified = min(self.verified, offset)
        if self.confirm_offset > offset:
            self.confirm_offset = offset
            self.on_confirm(offset)

    # Taking

    def _grown(self) -> None:
        store = self._store
        if store.config.sync_flush:
            store.log_flusher.flush_soon()
        if self.on_caught_up is not None:
            self._loop.call_soon(self._look_whether_caught_up)
        store.note_replicated_bytes()
        if self._epochs is None:
            self._dispatch_soon()

    def _confirmed(self, offset: int) -> None:
        if offset > self.confirm_offset:
            self.confirm_offset = offset
            self.on_confirm(offset)
            self._dispatch_soon()
        if self.on_caught_up is not None:
            self._look_whether_caught_up()

    def _look_whether_caught_up(self) -> None:
        stream, told = self._stream, self.on_caught_up
        if told is None or stream is None or not stream.following or stream.confirm < 0:
            return
        if has_caught_up(reported=stream.reported, master_end=self._master_end, confirmed=stream.confirm):
            self.on_caught_up = None
            told()

    def _dispatch_soon(self) -> None:
        if self._dispatching:
            return
        self._dispatching = True
        if self._stream is not None and self._stream.lacks_confirmed:
            self._loop.call_later(CATCH_UP_DISPATCH_INTERVAL_S, self._dispatch)
        else:
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """One slice of what is confirmed goes into queues and index."""
        self._dispatching = False
        if self._stopped:
            return
        store = self._store
        limit = store.max_phy_offset if self._epochs is None else self.confirm_offset
        try:
            more = store.replica_log.dispatch(limit, DISPATCH_BATCH_RECORDS)
        except (DiskFullError, OSError) as error:
            if self._faults == 0:
                log.error("what was received cannot be dispatched: %s", error)
            self._faults += 1
            return
        self._faults = 0
        store.note_replicated_bytes()
        if more:
            self._dispatch_soon()

    # What is told of it

    @property
    def state(self) -> HAConnectionState:
        """RocketMQ's word for where this replica is."""
        return {
            HAClientPhase.AGREEING: HAConnectionState.HANDSHAKE,
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


async def find_sound_end(store: MessageStore) -> int:
    """Where the last whole, sound record behind what is dispatched ends; others have their turn meanwhile."""
    position = store.replica_log.dispatched_offset
    if position >= store.max_phy_offset:
        return store.max_phy_offset
    while True:
        position, over = store.replica_log.scan_valid_records(position, DISPATCH_BATCH_RECORDS)
        if over:
            return position
        await asyncio.sleep(0)


async def find_record_start(store: MessageStore, offset: int) -> int:
    """Where the record begins that the byte at `offset` belongs to; others have their turn meanwhile."""
    commit_log = store.log
    file = commit_log.files.find(offset)
    if file is None:
        raise ValueError(f"the log has no byte at {offset}")
    position = file.start
    while True:
        for _ in range(DISPATCH_BATCH_RECORDS):
            found = commit_log.parse(position, (), check_crc=False)
            if not isinstance(found, record.DispatchRequest) or position + found.size > offset:
                return position
            position += found.size
        await asyncio.sleep(0)
