"""Makes a broker the master or a replica of its group: starts and stops what each role needs
(`DefaultHAService`, `AutoSwitchHAService`).

Without a controller a broker is a master, which any replica may follow, or a replica of the master that the
configuration or the nameserver names. With a controller it is idle until the controller has responded, and
then master or replica of an epoch.

`become_master` takes these steps. If it is interrupted, the broker is neither master nor replica, and the
next call takes all steps again:

1. Stop following. Truncate an incomplete record, and continue at the next file if the log ends in a blank
   record.
2. Dispatch the records that were not confirmed, so that no queue offset is given twice (#7689).
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
import errno
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.replication.ha import log_doubt
from epochmq_broker.replication.ha.client import HAClient
from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.epochs import begin_epoch
from epochmq_broker.replication.ha.log_checksums import LogChecksums
from epochmq_broker.replication.ha.log_doubt_tracker import LogDoubtTracker
from epochmq_broker.replication.ha.log_end import DamagedLogError, dispatch_rest, truncate_torn_tail
from epochmq_broker.replication.ha.master_checksums import MasterChecksumClient
from epochmq_broker.replication.ha.replication_waiters import ReplicationWaiters
from epochmq_broker.replication.ha.server import HAServer
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState, SyncStateSetProposal
from epochmq_broker.replication.ha.tls import HATls
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_store.log.damaged_ranges import DamagedRange
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import RunningFlags

log = logging.getLogger(__name__)


class HARole(enum.Enum):
    """The present role of a broker's replication."""

    IDLE = "idle"
    CHANGING = "changing"
    MASTER = "master"
    REPLICA = "replica"


class HAService:
    """The replication of one broker. Calls that change the role run one after another."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        writer: MessageWriter,
        *,
        controlled: bool,
        members: MemberAuthentication | None = None,
    ) -> None:
        """`controlled`: controllers decide the role (enableControllerMode). `members`: None where nobody
        proves a membership. ConfigError: the TLS files cannot be used."""
        self._members = members
        self.tls = HATls.of(live.current)
        self.role = HARole.IDLE
        self.controlled = controlled
        self.sync_state: SyncState | None = None
        self._on_proposal: Callable[[SyncStateSetProposal], None] = lambda proposal: None
        config = live.current
        path = config.store_path_epoch_file or str(store.config.root / "epochFileCheckpoint")
        self.epochs = EpochFile(Path(path).expanduser())
        self.doubt = LogDoubtTracker(store, self.epochs)
        """What the log may lack since the last start."""
        self.master_checksums: MasterChecksumClient | None = None
        """See `compare_with`."""
        self.checksums = LogChecksums(store.log)
        self._verified = 0
        """Up to which offset the log is known to be equal to the master's."""
        self._live = live
        self.store = self._store = store
        self._writer = writer
        self.server: HAServer | None = None
        """The HA server; None unless this broker is a master."""
        self._acks: ReplicationWaiters | None = None
        self._alive_replicas: int | None = None
        self.client: HAClient | None = None
        """The HA client; None unless this broker is a replica."""
        self._broker_id = 0
        self._confirmed = ReplicaConfirmOffset(store, controlled=controlled)
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        if controlled:
            store.on_expire.append(lambda min_offset: self.epochs.truncate_prefix(min_offset - 1))
        store.on_flush.append(self._flushed)

    def compare_with(self, master_checksums: MasterChecksumClient | None) -> None:
        """Sets the client that gets the master's checksums for log comparisons; None: logs are not
        compared."""
        self.master_checksums = master_checksums

    def on_proposals(self, on_proposal: Callable[[SyncStateSetProposal], None]) -> None:
        """Calls `on_proposal` with each SyncStateSet to propose to the controllers; subscribed before the
        start. From then on its members count as members, until `adopt` or `proposal_rejected` reports its
        fate."""
        self._on_proposal = on_proposal

    # Start and stop

    def load(self) -> None:
        """Reads the epochs, after the store's `load` and before anything is served. With a controller,
        nothing may be stored, and only confirmed messages may be read, until it has responded (#6609, #6703).
        Raises RemoteProtocolError for a broken epoch file."""
        store = self._store
        if not self.controlled:
            return
        self.epochs.load()
        self.doubt.load()
        self._confirmed.load()
        self._verified = log_doubt.verified_until(
            self.doubt.current, self._confirmed.value, store.max_phy_offset
        )
        store.state.set_flag(RunningFlags.REPLICA, True)

    @property
    def confirmed_by_all(self) -> int:
        """The end of the last record that every member of the SyncStateSet has, as far as this broker knows;
        -1 without `allAckInSyncStateSet`, because masters then confirm bytes that no replica has."""
        if not self.controlled or not self._live.current.all_ack_in_sync_state_set:
            return -1
        return self.confirm_offset

    async def give_up(self, epoch: int) -> None:
        """Gives up the mastership of this epoch, which is from before the log lost its end. Raises OSError if
        that cannot be saved."""
        async with self._lock:
            await self.doubt.give_up(epoch)

    async def start(self) -> None:
        """Without a controller, takes the configured role. Raises OSError if the HA port is in use."""
        self._live.on_change.append(self._reconfigured)
        if self.controlled:
            return
        async with self._lock:
            if not self._live.standing.capabilities.is_master:
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
            followed = self.client is not None
            await self._end_role()
            self.checksums.stop()
            self.role = HARole.IDLE
            await self.doubt.stop()
            if followed:
                await self._dispatch_all()

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
            self._verified = self._store.max_phy_offset
            self._confirmed.save(sync.confirmed_records)
        acks, self._acks = self._acks, None
        self._writer.set_replica_acks(None)
        self._writer.set_append_listener(None)
        if acks is not None:
            acks.stop()
        master, self.server = self.server, None
        if master is not None:
            await master.stop()
        client, self.client = self.client, None
        if client is not None:
            await client.stop()
            self._verified = client.verified
            self._confirmed.note_dispatched()

    async def _dispatch_all(self) -> None:
        """Dispatches all records, first those that are confirmed, so that the end of the last one is
        known."""
        await dispatch_rest(self._store, self._confirmed.value)
        self._confirmed.note_dispatched()
        await dispatch_rest(self._store)

    # With a controller

    async def become_master(
        self, epoch: int, sync_state_set: Collection[int], set_epoch: int, *, broker_id: int, least: int = 1
    ) -> None:
        """Makes this broker, `broker_id`, the master of `epoch`. `least`: see `SyncState.recorded_least`.
        Raises EpochMQError if the epoch is older
        than the log's or was given up, and OSError or DiskFullError."""
        async with self._lock:
            _reject_old_epoch(epoch, self.epochs.epochs.last_epoch)
            if not log_doubt.may_lead(self.doubt.current, epoch):
                raise EpochMQError(
                    f"this broker has given up the mastership of epoch {epoch}: its log may have lost its end"
                )
            members = frozenset(sync_state_set) | {broker_id}
            if self.role is HARole.MASTER and self.sync_state is not None:
                self._continue_mastership(epoch, members, set_epoch, least)
                return
            await self._end_role()
            self._broker_id = broker_id
            try:
                await truncate_torn_tail(self._store, self._confirmed.value)
            except DamagedLogError as error:
                self._report_damage(error.offset)
                raise
            self._confirmed.limit_to_log()
            await self._dispatch_all()
            end = self._store.max_phy_offset
            begin_epoch(self.epochs, self.epochs.epochs.last_epoch, epoch, end)
            await self.doubt.clear()
            last = self.epochs.epochs.last
            assert last is not None
            sync = self._make_sync_state(
                broker_id, members, set_epoch, last.start_offset, min(self._confirmed.records, end)
            )
            sync.recorded_least = least
            sync.check_invariants()
            self.epochs.epochs.check_invariants(end)
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
            _reject_old_epoch(epoch, self.epochs.epochs.last_epoch)
            if self.client is not None and self._broker_id == broker_id:
                self.client.follow(master_ha_address)
                return
            await self._end_role()
            store = self._store
            self._broker_id = broker_id
            self._confirmed.limit_to_log()
            store.state.set_flag(RunningFlags.REPLICA, True)
            store.visibility.set_confirm_offset(self._confirmed.value)
            store.replica_log.mark_all_dispatched()
            self._start_following(master_ha_address, epochs=self.epochs)

    async def leave_role(self) -> None:
        """Ends the present role under a controller, and takes none."""
        async with self._lock:
            await self._end_role()
            self.role = HARole.IDLE

    async def distrust(self) -> None:
        """Puts the log in doubt, durably, so that the whole log is compared with a master's and this broker
        leads under a newer epoch only. Raises OSError if that cannot be saved."""
        async with self._lock:
            await self.doubt.distrust()
            self._verified = 0

    def follow(self, master_ha_address: str | None) -> None:
        """Follows the master at this HA address, and ends the connection to another one. Does nothing on a
        master."""
        if self.client is not None:
            self.client.follow(master_ha_address)

    def adopt(self, members: Collection[int], set_epoch: int, least: int = 1) -> bool:
        """Uses the controllers' SyncStateSet; False if it is not newer than the known one."""
        sync = self.sync_state
        if sync is None or not sync.adopt(frozenset(members), set_epoch, least):
            return False
        self._publish_progress()
        self._propose()
        return True

    def proposal_rejected(self, refused: int | None = None, reason: str = "") -> None:
        """Drops the last proposal, because the controllers surely did not accept it. A proposal whose
        response was lost must not be dropped: it may have been accepted. `refused`: the replica because of
        which they rejected it; the rest is proposed without it."""
        if self.sync_state is not None:
            self.sync_state.proposal_rejected(refused, reason, int(asyncio.get_running_loop().time() * 1000))
            self._publish_progress()
            if refused is not None:
                self._propose()

    def set_alive_replicas(self, count: int) -> None:
        """Sets how many brokers of the group the nameservers know, this one included: without a controller,
        and with `enableSlaveActingMaster`, no send waits for more logs than that (RIP-34)."""
        self._alive_replicas = count
        if self._acks is not None:
            self._acks.alive_replicas = count

    def answer_replicated(self) -> None:
        """Answers the sends that enough replicas have, after messages may be acknowledged again."""
        if self._acks is not None:
            self._acks.answer_replicated()

    def _continue_mastership(self, epoch: int, members: frozenset[int], set_epoch: int, least: int) -> None:
        """Continues the same mastership under another epoch; nothing is rolled back (#6344)."""
        sync, store = self.sync_state, self._store
        assert sync is not None
        elected = epoch > self.epochs.epochs.last_epoch
        if self.epochs.append(EpochEntry(epoch, store.max_phy_offset)):
            sync.epoch_start = store.max_phy_offset
        sync.adopt(members, set_epoch, least, elected=elected)
        if self.server is not None:
            self.server.epochs_changed()
        self._publish_progress()
        self._propose()

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
            durable=self._store.flushed_where if self.controlled else None,
            min_copies=self._min_copies(settings),
        )

    def _min_copies(self, settings: HASettings) -> int:
        is_all_ack = self.controlled and settings.all_ack_in_sync_state_set
        return settings.min_in_sync_replicas if is_all_ack else 1

    def _counted_as_flushed(self) -> int | None:
        """The flushed offset of this log if only flushed bytes count, else None."""
        return self._store.flushed_where if self.controlled and self._store.config.sync_flush else None

    def _flushed(self, offset: int) -> None:
        """More of this log was flushed."""
        sync, counted = self.sync_state, self._counted_as_flushed()
        if sync is None:
            return
        if counted is not None or sync.flushed is not None:
            sync.log_appended(self._store.max_phy_offset)
            sync.log_flushed_to(counted)
            self._publish_progress()
        if self.controlled:
            sync.durable = offset
            self._propose()

    def _start_serving(self, sync: SyncState, *, epochs: EpochFile | None) -> None:
        config, store = self._live.current, self._store
        settings = HASettings.of(config)
        master = HAServer(
            commit_log=store.log,
            damage=store.damage,
            sync=sync,
            epochs=epochs,
            settings=settings,
            on_progress=self._publish_progress,
            on_members=self._propose,
            on_connections=self._writer.set_append_listener,
            members=self._members,
            tls=self.tls,
        )
        master.start(config.bind_address, config.ha_listen_port)
        self.sync_state = sync
        self.server = master
        self._acks = ReplicationWaiters(
            sync,
            settings,
            asyncio.get_running_loop(),
            controlled=self.controlled,
            end=lambda: store.log.max_offset,
            may_acknowledge=self._may_acknowledge if self.controlled else lambda: True,
        )
        self._acks.alive_replicas = self._alive_replicas
        sync.log_appended(store.max_phy_offset)
        self.role = HARole.MASTER
        self._publish_progress()
        self._writer.set_replica_acks(self._acks)
        store.state.set_flag(RunningFlags.REPLICA, False)
        if self.controlled:
            self._check_members()

    def _may_acknowledge(self) -> bool:
        """Whether a message may be acknowledged now. `answer_replicated` is called when it may again."""
        return self._live.standing.capabilities.may_acknowledge(boot_ms())

    def _start_following(self, address: str | None, *, epochs: EpochFile | None) -> None:
        def diverged() -> None:
            """The log differs from the master's below the confirmed offset."""
            if self.doubt.put_in_doubt():
                client.when_caught_up(self.doubt.clear_soon)

        client = HAClient(
            self._store,
            epochs,
            HASettings.of(self._live.current),
            broker_id=self._broker_id,
            confirm_offset=self._confirmed.value,
            verified=self._verified,
            checksums=self.checksums,
            master_checksums=lambda: self.master_checksums,
            doubt=lambda: self.doubt.current,
            acknowledged_until=self._acknowledged_until,
            order=self._election_order(),
            on_confirm=self._confirmed.set_by_master if epochs is not None else lambda _offset: None,
            on_dispatch=self._confirmed.note_dispatched if epochs is not None else lambda: None,
            on_diverged=diverged,
            on_damaged=self._report_damage,
            members=self._members,
            tls=self.tls,
        )
        if epochs is not None and self.doubt.current != log_doubt.LogDoubt():
            client.when_caught_up(self.doubt.clear_soon)
        self.client = client
        self.role = HARole.REPLICA
        client.start(address)

    def _acknowledged_until(self) -> int:
        """Up to where this log holds what every member had, and so what may be acknowledged: no master makes
        this broker truncate it. 0 without `allAckInSyncStateSet`: a master then confirms what only it has."""
        is_all_ack = self.controlled and self._live.current.all_ack_in_sync_state_set
        confirmed = self._confirmed.records if is_all_ack else 0
        return log_doubt.protected_until(self.doubt.current, confirmed)

    def _election_order(self) -> str:
        """The command that makes this broker the master."""
        config = self._live.current
        controller = config.controller_addr.split(";")[0] or "CONTROLLER:PORT"
        if self._members is not None and self._members.required:
            return (
                f"epochmq controller elect {controller} {config.broker_cluster_name} {config.broker_name} "
                f"{self._broker_id}"
            )
        return (
            f"mqadmin electMaster -a {controller} -bn {config.broker_name} -c {config.broker_cluster_name} "
            f"-b {self._broker_id}"
        )

    def _report_damage(self, offset: int) -> None:
        """A record below the confirmed offset is damaged in this log: as after a failed fsync, the broker
        acknowledges nothing more, is in doubt, and lets another one lead, also after a restart. Its bytes
        stay as they are."""
        fault = "a confirmed record cannot be read, and is not dispatched"
        log.critical("the log is damaged at offset %d: %s", offset, fault)
        damaged = DamagedRange(offset, offset + 1, fault)
        self._store.damage.replace_within(damaged.start, damaged.end, [damaged])
        self._store.state.report_damage(OSError(errno.EIO, f"{fault}, at offset {offset} of the log"))

    def _publish_progress(self) -> None:
        """Publishes the confirmed offset and answers sends, after a replica acknowledged, joined or left."""
        sync = self.sync_state
        if sync is None:
            return
        if self.controlled:
            self._store.visibility.set_confirm_offset(
                sync.confirm_offset if sync.waits_for_replicas else None
            )
            self._store.checkpoint.confirm_phy_offset = sync.confirmed_records
        if self._acks is not None:
            self._acks.answer_replicated()

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
            self._on_proposal(proposal)

    def _check_members(self) -> None:
        """Periodically proposes to remove members that have fallen behind."""
        period_s = self._live.current.check_sync_state_set_period / 1000
        self._timer = asyncio.get_running_loop().call_later(period_s, self._check_members)
        try:
            self._propose()
        except Exception:
            # A failure must not end the periodic checks (#7219).
            log.exception("the check for members that have fallen behind failed")

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        settings = HASettings.of(after)
        if self.sync_state is not None:
            self.sync_state.not_caught_up_max_ms = settings.ha_max_time_slave_not_catchup
            self.sync_state.all_ack = self.controlled and settings.all_ack_in_sync_state_set
            self.sync_state.min_copies = self._min_copies(settings)
        if self.server is not None:
            self.server.configure(settings)
        if self._acks is not None:
            self._acks.configure(settings)
            self._writer.set_replica_acks(self._acks)
        if self.client is not None:
            self.client.configure(settings)
            if before.async_learner != after.async_learner:
                self.client.reconnect()
            if before.ha_master_address != after.ha_master_address:
                self.client.follow(after.ha_master_address or None)
        self._publish_progress()

    # Status

    @property
    def confirm_offset(self) -> int:
        """The end of the last confirmed record, as far as this broker knows it."""
        return self.sync_state.confirmed_records if self.sync_state is not None else self._confirmed.records


def _reject_old_epoch(epoch: int, last: int) -> None:
    if epoch < last:
        raise EpochMQError(f"epoch {epoch} is over: the log has epoch {last}")


class ReplicaConfirmOffset:
    """The confirm offset of a broker that is not master (`value`), and the end of the last record that is
    confirmed as a whole (`records`), which the store's checkpoint keeps: a part of a record does not survive
    a stop, and its loss is no damage. Both are limited to the end of the log."""

    def __init__(self, store: MessageStore, *, controlled: bool) -> None:
        """`controlled`: controllers decide the role; only then the offset is saved."""
        self.value = 0
        self.records = 0
        self._store = store
        self._controlled = controlled

    def load(self) -> None:
        """Takes the offset of the checkpoint, and shows consumers the messages up to it."""
        store = self._store
        self.save(min(store.confirm_offset_at_load, store.max_phy_offset))
        store.visibility.set_confirm_offset(self.value)

    def limit_to_log(self) -> None:
        """Lowers the offset to the end of a truncated log."""
        end = self._store.max_phy_offset
        self.value, self.records = min(self.value, end), min(self.records, end)

    def set_by_master(self, offset: int) -> None:
        """Takes the offset that the master reports, and shows consumers the messages up to it."""
        self.value = offset
        self._store.visibility.set_confirm_offset(offset)
        self.note_dispatched()

    def note_dispatched(self) -> None:
        """Looks up the last confirmed record: all records before it are dispatched, and none behind the
        confirm offset, unless this broker was master before."""
        end = self._store.replica_log.dispatched_records_end
        known = end if end <= self.value else 0
        self._save_records(min(max(self.records, known), self.value))

    def save(self, offset: int) -> None:
        """Takes the offset of a role that has ended, at which a record ends."""
        self.value = offset
        self._save_records(offset)

    def _save_records(self, offset: int) -> None:
        self.records = offset
        if self._controlled:
            self._store.checkpoint.confirm_phy_offset = offset
