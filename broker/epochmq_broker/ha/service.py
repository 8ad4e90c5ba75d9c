"""Gives a broker its HA role, and leads from one role to the next (`DefaultHAService`,
`AutoSwitchHAService`).

Without a controller a broker is a master, which any replica may follow, or a replica of the master that the
configuration or the nameserver names. With a controller it is idle until the controller has responded, and
then master or replica of an epoch.

`become_master` takes these steps. If it is interrupted, the broker is neither master nor replica, and the
next call takes all steps again:

1. Stop following. Truncate an incomplete record, and go on at the next file if the log ends in a blank
record. 2. Dispatch the records that were not confirmed, so that no queue offset is given twice (#7689).
3. Append the epoch durably, before a byte of it is written or served (#9689).
4. Use the controller's SyncStateSet as it is (#6342); consumers see the confirmed messages.
5. Listen for replicas, and accept messages.

`become_replica` takes these:

1. Accept no more messages, answer the waiting sends, and close the replicas' connections.
2. Show consumers the messages that were confirmed.
3. Follow the master (`client`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from epochmq_broker.config import BrokerConfig, LiveConfig
from epochmq_broker.ha import log_doubt
from epochmq_broker.ha.client import DISPATCH_BATCH_RECORDS, HAClient, find_sound_end
from epochmq_broker.ha.epoch_file import EpochFile
from epochmq_broker.ha.epochs import begin_epoch
from epochmq_broker.ha.log_checksums import LogChecksums
from epochmq_broker.ha.log_doubt_file import FILE as LOG_DOUBT_FILE
from epochmq_broker.ha.log_doubt_file import LogDoubtFile
from epochmq_broker.ha.master_checksums import MasterChecksumClient
from epochmq_broker.ha.replication_waiters import ReplicationWaiters
from epochmq_broker.ha.server import HAServer
from epochmq_broker.ha.settings import HASettings
from epochmq_broker.ha.sync_state import SyncState, SyncStateSetProposal
from epochmq_broker.message_writer import MessageWriter
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import RunningFlags
from epochmq_broker.store.tail_state import TailState
from epochmq_protocol.bodies import (
    EpochEntry as EpochEntryBody,
)
from epochmq_protocol.bodies import (
    EpochEntryCache,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_protocol.errors import EpochMQError

log = logging.getLogger(__name__)


class HARole(enum.Enum):
    """The present role of a broker's replication."""

    IDLE = "idle"
    CHANGING = "changing"
    MASTER = "master"
    REPLICA = "replica"


class HAService:
    """The replication of one broker. Calls that change the role run one after another.

    `on_proposal` is called with a SyncStateSet to propose to the controllers. From then on its members count
    as members, until `adopt` or `proposal_rejected` reports its fate."""

    def __init__(
        self, live: LiveConfig, store: MessageStore, writer: MessageWriter, *, controlled: bool
    ) -> None:
        """`controlled`: controllers decide the role (enableControllerMode)."""
        self.role = HARole.IDLE
        self.controlled = controlled
        self.sync_state: SyncState | None = None
        self.on_proposal: Callable[[SyncStateSetProposal], None] = lambda proposal: None
        self.may_acknowledge: Callable[[], bool] = lambda: True
        """Whether a message may be acknowledged now (a write lease); `settle` when it may again."""
        config = live.current
        path = config.store_path_epoch_file or str(store.config.root / "epochFileCheckpoint")
        self.epochs = EpochFile(Path(path).expanduser())
        self.doubt = log_doubt.LogDoubt()
        """What the log may lack since the last start."""
        self.on_doubt_cleared: Callable[[], None] = lambda: None
        """Called when `doubt` has ended, because the log is known to lack nothing."""
        self.master_checksums: MasterChecksumClient | None = None
        """The client that gets the master's checksums for log comparisons; None: logs are not compared."""
        self.checksums = LogChecksums(store.log)
        self._verified = 0
        """Up to which offset the log is known to be equal to the master's."""
        self._doubt_file = LogDoubtFile(self.epochs.path.with_name(LOG_DOUBT_FILE))
        self._clearing_doubt: asyncio.Task[None] | None = None
        self._live = live
        self.store = self._store = store
        self._writer = writer
        self._server: HAServer | None = None
        self._acks: ReplicationWaiters | None = None
        self._client: HAClient | None = None
        self._broker_id = 0
        self._confirmed = 0
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        store.on_expire.append(self._forget_expired_epochs)
        store.on_flush.append(self._flushed)

    # Start and stop

    def load(self) -> None:
        """Reads the epochs, after the store's `load` and before anything is served. With a controller,
        nothing may be stored, and only confirmed messages may be read, until it has responded (#6609, #6703).
        Raises RemoteProtocolError for a broken epoch file."""
        store = self._store
        if not self.controlled:
            return
        self.epochs.load()
        self._judge_log()
        self._confirmed = min(store.confirm_offset_at_load, store.max_phy_offset)
        self._verified = log_doubt.verified_until(self.doubt, self._confirmed, store.max_phy_offset)
        self._save_confirmed()
        store.visibility.set_confirm_offset(self._confirmed)
        store.state.set_flag(RunningFlags.REPLICA, True)

    def _judge_log(self) -> None:
        """Determines what the log may lack, from this start and from the doubt on disk. The result is on disk
        before the store's abort record is cleared. Raises OSError if the file cannot be read."""
        store, file, epochs = self._store, self._doubt_file, self.epochs
        file.load()
        self.doubt = log_doubt.doubt_after_start(
            file.now,
            store.tail.state,
            may_lack_acknowledged=store.tail.may_lack_acknowledged,
            confirmed=store.confirm_offset_at_load,
            end=store.max_phy_offset,
            recovery_start=store.recovery_start,
        )
        if self.doubt.is_open:
            log.warning("the log ends at %d and may lack messages: %s", store.max_phy_offset, self.doubt)
        try:
            # An epoch is on disk before its first byte, so it may start after the end that recovery found.
            epochs.truncate_suffix(store.max_phy_offset + 1)
            file.save(self.doubt)
            if store.tail.state is not TailState.INTACT:
                store.clear_log_doubt()
        except OSError as error:
            log.error("%s could not be written: %s", file.path, error)

    @property
    def may_lack_acknowledged(self) -> bool:
        """Whether the log is in doubt now, or will be after a restart."""
        return self.doubt.in_doubt or bool(self._store.state.flags & RunningFlags.FLUSH_FAILED)

    @property
    def written_epoch(self) -> int:
        """The epoch of the log's last byte; -1 if the log is empty."""
        return log_doubt.written_epoch(self.epochs.epochs.entries, self._store.max_phy_offset)

    @property
    def confirmed_by_all(self) -> int:
        """The end offset that every member of the SyncStateSet has, as far as this broker knows; -1 without
        `allAckInSyncStateSet`, because masters then confirm bytes that no replica has."""
        if not self.controlled or not self._live.current.all_ack_in_sync_state_set:
            return -1
        return self.confirm_offset

    async def give_up(self, epoch: int) -> None:
        """Gives up the mastership of this epoch, which is from before the log lost its end. Raises OSError if
        that cannot be saved."""
        async with self._lock:
            self.doubt = log_doubt.given_up(self.doubt, max(epoch, self.epochs.epochs.last_epoch))
            await asyncio.to_thread(self._doubt_file.save, self.doubt)

    def _caught_up(self) -> None:
        self._clearing_doubt = asyncio.create_task(self._clear_doubt(), name="clear the log's doubt")

    def _diverged(self) -> None:
        """Puts the log in doubt, so that this broker is not elected: it differs from the master's below the
        confirmed offset."""
        if not self.doubt.in_doubt:
            self.doubt = msgspec.structs.replace(self.doubt, in_doubt=True)
            if self._client is not None:
                self._client.on_caught_up = self._caught_up

    async def _clear_doubt(self) -> None:
        """Ends the doubt: the log was compared with a living master's and lacks nothing, or it is the log of
        a new master."""
        if log_doubt.LogDoubt() == self.doubt == self._doubt_file.now:
            return
        no_doubt = log_doubt.no_doubt()
        try:
            await asyncio.to_thread(self._doubt_file.save, no_doubt)
            await asyncio.to_thread(self._store.clear_log_doubt)
        except OSError as error:
            log.error("the end of the doubt could not be saved in %s: %s", self._doubt_file.path, error)
        self.doubt = no_doubt
        log.info("the log is no longer in doubt, up to %d", self._store.max_phy_offset)
        self.on_doubt_cleared()

    async def start(self) -> None:
        """Without a controller, takes the configured role. Raises OSError if the HA port is in use."""
        self._live.on_change.append(self._reconfigured)
        if self.controlled:
            return
        async with self._lock:
            if self._live.current.broker_role == "SLAVE":
                self._store.state.set_flag(RunningFlags.REPLICA, True)
                self._store.replica_log.mark_all_dispatched()
                self._start_following(self._live.current.ha_master_address or None, epochs=None)
            else:
                end = self._store.max_phy_offset
                self._start_serving(self._make_sync_state(0, frozenset({0}), 0, 0, end), epochs=None)

    async def stop(self) -> None:
        """Ends replication, and leaves the log as it is."""
        async with self._lock:
            if self._reconfigured in self._live.on_change:
                self._live.on_change.remove(self._reconfigured)
            followed = self._client is not None
            await self._end_role()
            self.checksums.stop()
            self.role = HARole.IDLE
            if self._clearing_doubt is not None:
                await asyncio.gather(self._clearing_doubt, return_exceptions=True)
            if followed:
                await self._dispatch_rest()

    async def _end_role(self) -> None:
        """Ends the present role."""
        self.role = HARole.CHANGING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sync, self.sync_state = self.sync_state, None
        if sync is not None:
            self._store.state.set_flag(RunningFlags.REPLICA, True)
            self._store.replica_log.mark_all_dispatched()
            self._confirmed = sync.confirm_offset
            self._verified = self._store.max_phy_offset
            self._save_confirmed()
        acks, self._acks = self._acks, None
        self._writer.replicate(None)
        self._writer.wakes(None)
        if acks is not None:
            acks.stop()
        master, self._server = self._server, None
        if master is not None:
            await master.stop()
        client, self._client = self._client, None
        if client is not None:
            await client.stop()
            self._confirmed = client.confirm_offset
            self._verified = client.verified
            self._save_confirmed()

    # With a controller

    async def become_master(
        self, epoch: int, sync_state_set: Collection[int], set_epoch: int, *, broker_id: int
    ) -> None:
        """Makes this broker, `broker_id`, the master of `epoch`. Raises EpochMQError if the epoch is older
        than the log's or was given up, and OSError or DiskFullError."""
        async with self._lock:
            self._reject_old_epoch(epoch)
            if not log_doubt.may_lead(self.doubt, epoch):
                raise EpochMQError(
                    f"this broker has given up the mastership of epoch {epoch}: its log may have lost its end"
                )
            members = frozenset(sync_state_set) | {broker_id}
            if self.role is HARole.MASTER and self.sync_state is not None:
                self._continue_mastership(epoch, members, set_epoch)
                return
            await self._end_role()
            self._broker_id = broker_id
            await self._truncate_torn_tail()
            await self._dispatch_rest()
            end = self._store.max_phy_offset
            begin_epoch(self.epochs, self.epochs.epochs.last_epoch, epoch, end)
            await self._clear_doubt()
            last = self.epochs.epochs.last
            assert last is not None
            sync = self._make_sync_state(
                broker_id, members, set_epoch, last.start_offset, min(self._confirmed, end)
            )
            self._start_serving(sync, epochs=self.epochs)
            log.info(
                "this broker is the master of epoch %d from offset %d on, SyncStateSet %s",
                epoch,
                end,
                sorted(members),
            )

    async def become_replica(self, master_ha_address: str | None, epoch: int, *, broker_id: int) -> None:
        """Makes this broker a replica of the master of `epoch`. The address is None while unknown; `follow`
        sets it later. Raises EpochMQError if the epoch is older than the log's."""
        async with self._lock:
            self._reject_old_epoch(epoch)
            if self._client is not None and self._broker_id == broker_id:
                self._client.follow(master_ha_address)
                return
            await self._end_role()
            store = self._store
            self._broker_id = broker_id
            self._confirmed = min(self._confirmed, store.max_phy_offset)
            store.state.set_flag(RunningFlags.REPLICA, True)
            store.visibility.set_confirm_offset(self._confirmed)
            store.replica_log.mark_all_dispatched()
            self._start_following(master_ha_address, epochs=self.epochs)

    def follow(self, master_ha_address: str | None) -> None:
        """Follows the master at this HA address, and ends the connection to another one. Does nothing on a
        master."""
        if self._client is not None:
            self._client.follow(master_ha_address)

    def adopt(self, members: Collection[int], set_epoch: int) -> bool:
        """Uses the controllers' SyncStateSet; False if it is not newer than the known one."""
        sync = self.sync_state
        if sync is None or not sync.adopt(frozenset(members), set_epoch):
            return False
        self._publish_progress()
        self._propose()
        return True

    def proposal_rejected(self) -> None:
        """Drops the last proposal, because the controllers surely did not accept it. A proposal whose
        response was lost must not be dropped: it may have been accepted."""
        if self.sync_state is not None:
            self.sync_state.proposal_rejected()
            self._publish_progress()

    def answer_replicated(self) -> None:
        """Answers the sends that enough replicas have, after messages may be acknowledged again."""
        if self._acks is not None:
            self._acks.answer_replicated()

    def _reject_old_epoch(self, epoch: int) -> None:
        last = self.epochs.epochs.last_epoch
        if epoch < last:
            raise EpochMQError(f"epoch {epoch} is over: the log has epoch {last}")

    def _continue_mastership(self, epoch: int, members: frozenset[int], set_epoch: int) -> None:
        """Continues the same mastership under another epoch; nothing is rolled back (#6344)."""
        sync, store = self.sync_state, self._store
        assert sync is not None
        if self.epochs.append(EpochEntry(epoch, store.max_phy_offset)):
            sync.epoch_start = store.max_phy_offset
        sync.adopt(members, set_epoch)
        if self._server is not None:
            self._server.epochs_changed()
        self._publish_progress()
        self._propose()

    async def _truncate_torn_tail(self) -> None:
        """Makes the log end with a complete record, at an offset where the next one may start."""
        store = self._store
        store.replica_log.complete_blank_record()
        store.note_replicated_bytes()
        end = await find_sound_end(store)
        if end < store.max_phy_offset:
            log.warning(
                "the log ends at %d with an incomplete record: it is truncated to %d",
                store.max_phy_offset,
                end,
            )
            store.truncate(end, torn=True)
        self._confirmed = min(self._confirmed, store.max_phy_offset)

    async def _dispatch_rest(self) -> None:
        store = self._store
        more = store.replica_log.has_undispatched
        while more:
            more = store.replica_log.dispatch(store.max_phy_offset, DISPATCH_BATCH_RECORDS)
            await asyncio.sleep(0)  # the event loop serves other work
        store.replica_log.complete_blank_record()
        store.note_replicated_bytes()

    # Serving and following

    def _make_sync_state(
        self, broker_id: int, members: frozenset[int], set_epoch: int, epoch_start: int, confirmed: int
    ) -> SyncState:
        settings = HASettings.of(self._live.current)
        return SyncState(
            self_id=broker_id,
            epoch_start=epoch_start,
            members=members,
            set_epoch=set_epoch,
            confirm_offset=confirmed,
            end=self._store.max_phy_offset,
            not_caught_up_max_ms=settings.ha_max_time_slave_not_catchup,
            since_ms=int(asyncio.get_running_loop().time() * 1000),
            all_ack=self.controlled and settings.all_ack_in_sync_state_set,
            flushed=self._counted_as_flushed(),
        )

    def _counted_as_flushed(self) -> int | None:
        """The flushed offset of this log if only flushed bytes count, else None."""
        return self._store.flushed_where if self.controlled and self._store.config.sync_flush else None

    def _flushed(self, offset: int) -> None:
        """More of this log was flushed."""
        sync, counted = self.sync_state, self._counted_as_flushed()
        if sync is not None and (counted is not None or sync.flushed is not None):
            sync.log_appended(self._store.max_phy_offset)
            sync.log_flushed_to(counted)
            self._publish_progress()

    def _start_serving(self, sync: SyncState, *, epochs: EpochFile | None) -> None:
        config, store = self._live.current, self._store
        settings = HASettings.of(config)
        master = HAServer(
            store.log,
            sync,
            epochs,
            settings,
            on_progress=self._publish_progress,
            on_members=self._propose,
            on_connections=self._writer.wakes,
        )
        master.start(config.bind_address, config.ha_listen_port)
        self.sync_state = sync
        self._server = master
        self._acks = ReplicationWaiters(
            sync,
            settings,
            asyncio.get_running_loop(),
            controlled=self.controlled,
            end=lambda: store.log.max_offset,
            may_acknowledge=self.may_acknowledge,
        )
        sync.log_appended(store.max_phy_offset)
        self.role = HARole.MASTER
        self._publish_progress()
        self._writer.replicate(self._acks)
        store.state.set_flag(RunningFlags.REPLICA, False)
        if self.controlled:
            self._check_members()

    def _start_following(self, address: str | None, *, epochs: EpochFile | None) -> None:
        settings = HASettings.of(self._live.current)
        client = HAClient(
            self._store, epochs, settings, broker_id=self._broker_id, confirm_offset=self._confirmed
        )
        client.verified = self._verified
        client.checksums = self.checksums
        client.master_checksums = lambda: self.master_checksums
        client.protected_until = lambda confirmed: log_doubt.protected_until(self.doubt, confirmed)
        if epochs is not None:
            client.on_confirm = self._confirmed_by_master
            client.on_diverged = self._diverged
            if self.doubt != log_doubt.LogDoubt():
                client.on_caught_up = self._caught_up
        self._client = client
        self.role = HARole.REPLICA
        client.start(address)

    def _publish_progress(self) -> None:
        """Publishes the confirmed offset and answers sends, after a replica acknowledged, joined or left."""
        sync = self.sync_state
        if sync is None:
            return
        if self.controlled:
            self._store.visibility.set_confirm_offset(
                sync.confirm_offset if sync.waits_for_replicas else None
            )
            self._store.checkpoint.confirm_phy_offset = sync.confirm_offset
        if self._acks is not None:
            self._acks.answer_replicated()

    def _confirmed_by_master(self, offset: int) -> None:
        self._confirmed = offset
        self._store.visibility.set_confirm_offset(offset)
        # Only complete records: a partial one does not survive a kill, and its loss is no damage.
        self._store.checkpoint.confirm_phy_offset = min(offset, self._store.replica_log.dispatched_offset)

    def _save_confirmed(self) -> None:
        if self.controlled:
            self._store.checkpoint.confirm_phy_offset = self._confirmed

    def _propose(self) -> None:
        sync = self.sync_state
        if sync is None or not self.controlled or self.role is not HARole.MASTER:
            return
        proposal = sync.change_to_propose(int(asyncio.get_running_loop().time() * 1000))
        if proposal is not None:
            log.info(
                "the master proposes the SyncStateSet %s instead of %s",
                sorted(proposal.members),
                sorted(sync.members),
            )
            sync.proposal_sent(proposal.members)
            self._publish_progress()
            self.on_proposal(proposal)

    def _check_members(self) -> None:
        """Periodically proposes to remove members that have fallen behind."""
        period_s = self._live.current.check_sync_state_set_period / 1000
        self._timer = asyncio.get_running_loop().call_later(period_s, self._check_members)
        try:
            self._propose()
        except Exception:
            # A failure must not end the periodic checks (#7219).
            log.exception("the check for members that have fallen behind failed")

    def _forget_expired_epochs(self, min_offset: int) -> None:
        if self.controlled:
            self.epochs.truncate_prefix(min_offset - 1)

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        settings = HASettings.of(after)
        if self.sync_state is not None:
            self.sync_state.not_caught_up_max_ms = settings.ha_max_time_slave_not_catchup
            self.sync_state.all_ack = self.controlled and settings.all_ack_in_sync_state_set
        if self._server is not None:
            self._server.configure(settings)
        if self._acks is not None:
            self._acks.configure(settings)
            self._writer.replicate(self._acks)
        if self._client is not None:
            self._client.configure(settings)
            if before.async_learner != after.async_learner:
                self._client.reconnect()
            if before.ha_master_address != after.ha_master_address:
                self._client.follow(after.ha_master_address or None)
        self._publish_progress()

    # Status

    @property
    def confirm_offset(self) -> int:
        """The confirmed offset, as far as this broker knows it."""
        if self.sync_state is not None:
            return self.sync_state.confirm_offset
        return self._client.confirm_offset if self._client is not None else self._confirmed

    @property
    def client(self) -> HAClient | None:
        """The HA client; None unless this broker is a replica."""
        return self._client

    @property
    def server(self) -> HAServer | None:
        """The HA server; None unless this broker is a master."""
        return self._server

    def runtime_info(self) -> HARuntimeInfo:
        """For GET_BROKER_HA_STATUS."""
        if self._client is not None:
            return HARuntimeInfo(master=False, ha_client_runtime_info=self._client.runtime_info())
        end = self._store.max_phy_offset
        info = HARuntimeInfo(master=True, master_commit_log_max_offset=end)
        sync, master = self.sync_state, self._server
        if sync is None or master is None:
            return info
        gap = self._live.current.ha_max_gap_not_in_sync
        for connection in master.transferring:
            near = end - connection.ack_offset < gap
            info.ha_connection_info.append(
                HAConnectionRuntimeInfo(
                    addr=connection.remote,
                    slave_ack_offset=connection.ack_offset,
                    diff=end - connection.ack_offset,
                    in_sync=connection.broker_id in sync.members if self.controlled else near,
                    transferred_byte_in_second=connection.flow.bytes_per_second,
                    transfer_from_where=connection.position,
                )
            )
        near_count = sum(one.in_sync for one in info.ha_connection_info)
        info.in_sync_slave_nums = len(sync.members) - 1 if self.controlled else near_count
        return info

    def epoch_cache(self, broker_id: int) -> EpochEntryCache:
        """For GET_BROKER_EPOCH_CACHE."""
        config, epochs = self._live.current, self.epochs.epochs
        return EpochEntryCache(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=broker_id,
            epoch_list=[
                EpochEntryBody(
                    epoch=entry.epoch, start_offset=entry.start_offset, end_offset=epochs.end_of(entry)
                )
                for entry in epochs.entries
            ],
            max_offset=self._store.max_phy_offset,
        )
