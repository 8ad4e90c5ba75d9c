"""Runs the DLedger peer of a broker: connects its log with the store, and its role with the broker's.

The peer's log is the broker's commit log. The store sees it up to the committed position (`CommittedLog`):
units and index entries are written from there, on leader and followers alike. A leader accepts messages once
everything that its log holds is committed and dispatched.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.port_settings import port_settings
from epochmq_broker.config.tls_settings import server_tls
from epochmq_broker.membership.dledger import serving_watch
from epochmq_broker.membership.dledger.commit_waiters import CommitWaiters
from epochmq_broker.membership.dledger.committed_log import CommittedLog
from epochmq_broker.membership.dledger.first_record import (
    decode_members_record,
    encode_first_record,
    encode_members_record,
)
from epochmq_broker.membership.dledger.leader_appender import LeaderAppender
from epochmq_broker.membership.dledger.log_folders import data_folder, peer_folder
from epochmq_broker.membership.dledger.queue_ends import QueueEnds
from epochmq_broker.membership.dledger.serving_watch import ServingWatch
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_dledger.core.types import RaftRole, RaftSettings, RoleChanged
from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.peer_addresses import parse_peers
from epochmq_dledger.processor import DLedgerProcessor
from epochmq_dledger.results import AppendResult, RaftOperationError
from epochmq_dledger.store.block_log import BlockLog
from epochmq_dledger.store.damage_evidence import RejoinMark
from epochmq_formats.abort_file import TailState
from epochmq_protocol import record_layout
from epochmq_protocol.dledger import DLedgerRequestCode, DLedgerResponseCode
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.member_requests import RAFT_REQUESTS
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.member_authentication import MemberAuthentication, guarded
from epochmq_protocol.transport.server import RemotingServer
from epochmq_store import record
from epochmq_store.files.mapped_file import DiskFullError, StoreDamagedError
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.queue_extension import BitMapOf
from epochmq_store.statuses import PutStatus, RunningFlags
from epochmq_store.store_config import StoreConfig

log = logging.getLogger(__name__)

DISPATCH_RECORDS_MAX: Final = 1000
"""Records dispatched in one turn of the event loop; the others follow in the next turns."""
RETRY_S: Final = 1.0
"""Pause after records could not be dispatched, because the disk is full."""

_STATUSES: Final = {
    DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT: PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
    DLedgerResponseCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
}
"""The result of messages by the reason why they are not committed; SERVICE_NOT_AVAILABLE for all others
(`DLedgerCommitLog.handleAppendResult`)."""


def store_config_of(config: BrokerConfig) -> StoreConfig:
    """The settings of a store whose log is that of the peer, which decides what has to be on disk."""
    return msgspec.structs.replace(
        StoreConfig.of(config),
        store_path_commit_log=str(data_folder(config)),
        read_only_commit_log_store_paths="",
        flush_disk_type="ASYNC_FLUSH",
    )


def make_store(
    config: BrokerConfig,
    store_host: bytes,
    *,
    is_batch_topic: Callable[[str], bool | None],
    bit_map: BitMapOf | None,
) -> MessageStore:
    """The store over a DLedger log. `is_batch_topic` and `bit_map` are those of `MessageStore`."""
    plain = StoreConfig.of(config)
    committed = CommittedLog(
        data_folder(config),
        config.mapped_file_size_commit_log,
        plain.commit_log_dirs,
        plain.read_only_log_dirs,
    )
    return MessageStore(
        store_config_of(config),
        store_host,
        log=committed,
        make_appender=LeaderAppender,
        is_batch_topic=is_batch_topic,
        bit_map=bit_map,
    )


def broker_id_of_peer(peer: str) -> int:
    """The broker id of a peer as a slave, which identifies it: 1 for n0."""
    return int(peer[1:]) + 1


def broker_id_of(config: BrokerConfig) -> int:
    """The broker id of this broker as a slave."""
    return broker_id_of_peer(config.dledger_self_id)


def is_record(data: bytes, at: int, size: int, position: int) -> bool:
    """Whether the body of an entry is a whole record of the commit log."""
    found = record.parse(data, at, at + size, position, (), check_crc=True)
    return isinstance(found, record.DispatchRequest) and found.size == size


class PeerPhase(enum.Enum):
    """What this peer is in its group."""

    OUTSIDE = "outside"
    """It has not joined yet, or has left."""
    FOLLOWING = "following"
    LEADING = "leading"
    """It leads, and its log is not wholly committed and dispatched."""
    READY = "ready"
    """It leads and accepts messages."""


class CommitLogPeer:
    """The peer of one broker. `on_master` and `on_slave` are called when the broker has to change its
    role."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        writer: MessageWriter,
        client: RemotingClient,
        *,
        members: MemberAuthentication | None = None,
        on_master: Callable[[], None],
        on_slave: Callable[[], None],
        on_fatal: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        config = live.current
        assert isinstance(store.log, CommittedLog)
        assert isinstance(store.appender, LeaderAppender)
        self._store = store
        self._committed = store.log
        self._committed.recover = self._recover
        self._appender = store.appender
        self._on_master = on_master
        self._on_slave = on_slave
        self._on_fatal = on_fatal
        self._bind_address = config.bind_address
        self._flush_async = config.flush_disk_type == "ASYNC_FLUSH"
        self.waiters = CommitWaiters()
        writer.set_replica_acks(self.waiters)
        self._appender.submit_soon = self._submit_soon
        addresses = parse_peers(config.dledger_peers)
        settings = RaftSettings(
            group=config.dledger_group,
            self_id=config.dledger_self_id,
            peers=tuple(addresses),
            joining=config.join_dledger_group,
            file_size=config.mapped_file_size_commit_log,
            preferred_leaders=config.preferred_leaders,
        )
        folder = peer_folder(config)
        self._log = BlockLog(
            folder,
            settings.file_size,
            data_folder=data_folder(config),
            position_at=record_layout.PHYSICAL_OFFSET_AT,
            check=is_record,
            first_body=lambda term: encode_first_record(
                term, store.appender.store_host, int(time.time() * 1000)
            ),
            members_body=lambda _, peers: encode_members_record(
                peers, store.appender.store_host, int(time.time() * 1000)
            ),
            members_of=decode_members_record,
        )
        self._committed.data_files = self._log
        self._log.on_dropped = self._committed.check_dropped
        self.peer = DLedgerPeer(
            settings,
            addresses,
            folder,
            client,
            on_role=self._role_changed,
            on_fatal=self._failed,
            flush_async=self._flush_async,
            log=self._log,
            on_committed=self._log_committed,
            before_membership=self._submit,
            on_members=self._members_changed,
        )
        self.queue_ends = QueueEnds(folder, self._begins_late)
        self._address = addresses[settings.self_id]
        self.processor = DLedgerProcessor(self.peer)
        handlers = self.processor.handlers()
        del handlers[DLedgerRequestCode.APPEND]  # only the broker appends records
        self._server = RemotingServer(
            guarded(members, handlers, RAFT_REQUESTS),
            settings=port_settings(config),
            tls=server_tls(config),
        )
        self._phase = PeerPhase.OUTSIDE
        self._dispatch: asyncio.Handle | None = None
        self._watch = ServingWatch()

    # Start and stop

    def _recover(self) -> tuple[int, int]:
        """Recovers the peer's log, when the store opens its log. Raises StoreDamagedError or OSError."""
        try:
            self._log.set_origin(self._committed.plain_end())
            end = self.peer.recover(self._doubt())
            alone = len(self.peer.settings.peers) == 1
            self.queue_ends.load(is_empty=self._log.end_index < 0, is_alone=alone)
        except ValueError as error:
            raise StoreDamagedError(str(error)) from error
        return self._begin, end

    def _doubt(self) -> RejoinMark | None:
        """What the disk may have lost, as the abort file of the store's last run tells: votes, too, if the
        volume was restored or an fsync had failed; what was not flushed, if the machine lost its power."""
        state = self._store.tail.state
        if state is TailState.UNKNOWN:
            return RejoinMark(vote_lost=True)
        if state is TailState.UNFLUSHED_LOST and self._flush_async:
            return RejoinMark(vote_lost=False, only_unflushed=True)
        return None

    def _begins_late(self) -> bool | None:
        """Whether the committed log lacks the first entry of the group, or the plain files before it. None if
        nothing is committed."""
        begin = self._log.begin_index
        if begin < 0 or not self.has_joined or self.peer.committed_index < begin:
            return None
        return begin > 0 or self._log.position(0) != self._committed.plain_end()

    @property
    def _begin(self) -> int:
        """Where the first data file begins."""
        begin = self._log.begin_index
        pos = self._log.position(begin) if begin >= 0 else self._log.end_pos
        return pos - pos % self._committed.files.file_size

    def loaded(self) -> None:
        """The store is loaded: nothing is accepted before this peer leads."""
        dispatcher = self._store.dispatcher
        dispatcher.position = max(dispatcher.position, self._begin)
        self.waiters.end = dispatcher.position
        self.queue_ends.apply(self._store)
        self._store.state.set_flag(RunningFlags.REPLICA, True)
        self._store.on_expire.append(self._expire)
        self._store.log_expiry.keep_after(lambda: self._log.position(self._log.durable_index))

    async def start(self) -> None:
        """Listens for the other peers, and joins the group. Raises OSError if the port is in use."""
        port = int(self._address.rpartition(":")[2])
        try:
            await self._server.start(self._bind_address, port)
        except OSError as error:
            raise ConfigError(
                "dLegerPeers", self._address, f"an address that this broker can listen on ({error})"
            ) from error
        self._phase = PeerPhase.FOLLOWING
        self.peer.join()

    async def stop(self) -> None:
        """Leaves the group, after the messages that were just stored are committed, if that is soon."""
        self._submit()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_result(_: PutStatus) -> None:
            if not settled.done():
                settled.set_result(None)

        self.waiters.when_replicated(self._appender.end, on_result)
        await settled
        self._store.state.reject_messages()
        self.waiters.stop()
        await self.queue_ends.stop()
        await self._server.stop()
        self._phase = PeerPhase.OUTSIDE
        await self.peer.stop()
        if self._dispatch is not None:
            self._dispatch.cancel()
            self._dispatch = None

    # Roles

    @property
    def has_joined(self) -> bool:
        """Whether this peer takes part in its group."""
        return self._phase is not PeerPhase.OUTSIDE

    @property
    def is_ready(self) -> bool:
        """Whether this broker leads and accepts messages."""
        return self._phase is PeerPhase.READY

    @property
    def cannot_serve(self) -> bool:
        """Whether this broker leads, and makes no progress towards accepting messages."""
        return self._watch.cannot_serve

    @property
    def problem(self) -> str:
        """Why this peer could not lead its group, in words for a person; empty without such a reason."""
        if not self.has_joined:
            return ""
        peer, stall = self.peer, self._watch.stall
        if peer.divergence:
            return peer.divergence
        if stall:
            return f"it dispatches no committed message: {stall}"
        rejoin = peer.node.member.rejoin
        if rejoin is None:
            return ""
        if rejoin.is_new_directory:
            silent = ", ".join(rejoin.voters_without_term(peer.node.member.other_voters)) or "no other peer"
            return (
                "it has no vote: its directory was empty at its start, and it does not know yet whether the "
                f"group is new. It waits for its leader's log, and for responses of {silent}"
            )
        if rejoin.votes_if_all:
            return (
                "it has no vote until it has its leader's log, or all peers elect the same leader: its "
                "machine lost its power, and it may lack what it had acknowledged before the flush"
            )
        return (
            "it has no vote until it has its leader's log: its directory is damaged, lacks entries, or was "
            "restored from a copy"
        )

    def check_progress(self) -> None:
        """Finds out whether this leader is stuck, and hides what differs from the leader's log. Called every
        second."""
        if not self.has_joined:
            return
        peer, watch, store = self.peer, self._watch, self._store
        waits = peer.role is RaftRole.LEADER and (not self.is_ready or bool(watch.stall))
        mark = (store.dispatcher.position, peer.committed_index) if waits else None
        now_s = asyncio.get_running_loop().time()
        if watch.look(mark, now_s, serving_watch.READY_WAIT_MAX_S):
            log.error(
                "%s leads term %d, but accepts no message: its log ends at %d, is committed up to entry %d, "
                "and is dispatched up to %d. It gives the leadership away",
                peer.settings.self_id,
                peer.term,
                self._log.end_pos,
                peer.committed_index,
                store.dispatcher.position,
            )
        self._hide_divergence()

    def _hide_divergence(self) -> None:
        """While this peer's log differs from its leader's, readers see only what both have."""
        reader, index = self._store.reader, self.peer.common_index
        if index is None:
            reader.visible_end = None
        else:
            reader.visible_end = max(self._log.end_position(index), 0)

    async def transfer_leadership(self, to: str) -> None:
        """Transfers the leadership, and the role of master with it, to the broker of this id (n1). Sends are
        rejected until it leads, for 1 s at most. RaftOperationError: this broker does not lead, the other one
        is unknown, lacks many entries, or does not win."""
        self._submit()
        await self.peer.transfer_leadership(to)

    def _role_changed(self, change: RoleChanged) -> None:
        leads = change.role is RaftRole.LEADER
        if self.has_joined:
            self._phase = PeerPhase.LEADING if leads else PeerPhase.FOLLOWING
        self._end_readiness(PutStatus.SERVICE_NOT_AVAILABLE)
        if leads:
            asyncio.get_running_loop().call_soon(self._become_ready)
        else:
            self._on_slave()

    def _end_readiness(self, status: PutStatus) -> None:
        """Accepts no message until everything in the log is committed and dispatched."""
        if self._phase is PeerPhase.READY:
            self._phase = PeerPhase.LEADING
        self._store.state.set_flag(RunningFlags.REPLICA, True)
        self._appender.batch.begin(0)
        self._appender.forget_offsets()
        self.waiters.end_leadership(status)

    def _become_ready(self) -> None:
        """Accepts messages, if this peer leads and its whole log is committed and dispatched."""
        peer, raft_log = self.peer, self._log
        if self._phase is not PeerPhase.LEADING or peer.role is not RaftRole.LEADER:
            return
        if self.queue_ends.are_missing:
            return  # `Leadership` transfers this leadership
        if peer.is_transferring:
            asyncio.get_running_loop().call_later(RETRY_S, self._become_ready)
            return
        if raft_log.end_term != peer.term or peer.committed_index != raft_log.end_index:
            return
        if self._store.dispatcher.position != raft_log.end_pos or not raft_log.is_writable:
            return
        self._phase = PeerPhase.READY
        self._appender.batch.begin(raft_log.end_pos)
        self._appender.forget_offsets()
        self.waiters.begin()
        log.info("%s leads term %d and accepts messages", peer.settings.self_id, peer.term)
        self._on_master()
        self._store.state.set_flag(RunningFlags.REPLICA, False)

    def _failed(self, error: Exception) -> None:
        """The peer has stopped for good: this broker neither leads nor follows."""
        if self.has_joined:
            self._phase = PeerPhase.FOLLOWING
        self._end_readiness(PutStatus.SERVICE_NOT_AVAILABLE)
        self._on_slave()
        self._on_fatal(error)

    # Appending

    def _submit_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._submit)

    def _submit(self) -> None:
        """Passes the records of this turn to the peer."""
        batch = self._appender.batch
        start, end, records = batch.start, batch.end, batch.records
        if not records:
            return
        if not self.is_ready:
            batch.begin(0)
            return
        if self._log.end_pos != start:
            self._lose_batch()
            return
        batch.begin(end)
        self.peer.append_now(records, partial(self._appended, start, end))
        if self.is_ready and self._log.end_pos != batch.start:
            self._lose_batch()

    def _members_changed(self) -> None:
        """The log may have got a membership entry, behind the records that were submitted before."""
        batch = self._appender.batch
        if self.is_ready and not batch.records:
            batch.begin(self._log.end_pos)

    def _lose_batch(self) -> None:
        """Records were not appended: the disk is full, or this peer no longer leads. The offsets that they
        got are void, and so is what services have noted about them. Starts anew as master."""
        self._end_readiness(PutStatus.SERVICE_NOT_AVAILABLE)
        self._on_slave()
        asyncio.get_running_loop().call_later(RETRY_S, self._become_ready)

    def _appended(self, start: int, end: int, result: AppendResult | RaftOperationError) -> None:
        """The records from `start` to `end` are committed, or not."""
        if isinstance(result, RaftOperationError):
            self.waiters.fail(start, _STATUSES.get(result.code, PutStatus.SERVICE_NOT_AVAILABLE))

    # Committed records

    def _log_committed(self, end: int) -> None:
        """The log is committed up to this position."""
        if self._committed.file is None:  # a leader's log may begin at a later file
            self._committed.set_committed(self._begin, end)
            self._store.dispatcher.position = max(self._store.dispatcher.position, self._begin)
        self._committed.show(end)
        if self._dispatch is None:
            self._dispatch = asyncio.get_running_loop().call_soon(self._dispatch_committed)

    def _dispatch_committed(self) -> None:
        """Writes units and index entries of committed records, and answers their sends."""
        self._dispatch = None
        store = self._store
        loop = asyncio.get_running_loop()
        before = store.dispatcher.position
        try:
            store.dispatcher.catch_up(max_records=DISPATCH_RECORDS_MAX)
        except (DiskFullError, OSError) as error:
            store.state.report_space_failure(error)
            self._dispatch = loop.call_later(RETRY_S, self._dispatch_committed)
        store.appender.last_timestamp = max(store.appender.last_timestamp, store.dispatcher.last_timestamp)
        position = store.dispatcher.position
        self.waiters.advance(position)
        end = self._committed.max_offset
        if self._dispatch is None and self._watch.dispatched(before, position, end):
            log.error("%s dispatches no committed message: %s", self.peer.settings.self_id, self._watch.stall)
        if self._dispatch is None and self._watch.stall:
            self._dispatch = loop.call_later(RETRY_S, self._dispatch_committed)
        elif self._dispatch is None and position < end:
            self._dispatch = loop.call_soon(self._dispatch_committed)
        if self._phase is PeerPhase.LEADING:
            loop.call_soon(self._become_ready)

    def _expire(self, min_offset: int) -> None:
        """The store has dropped the log files before this offset."""
        self._log.expire_files(min_offset, self.peer.committed_index)
