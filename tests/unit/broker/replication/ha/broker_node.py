"""Runs the stores of several brokers with their replication in one process, over loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.replication.ha.checksum_comparison import LogRange
from epochmq_broker.replication.ha.master_checksums import MasterChecksumClient, RangeChecksums
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.replication.ha.status import epoch_entry_cache, ha_runtime_info
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_protocol.bodies import EpochEntryCache, HARuntimeInfo
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig
from tests.support.net import free_port
from tests.unit.store.support import Message, put

HOST = "127.61.4.1"
LOG_FILE = 80 * 1024
SMALL = {
    "brokerName": "group-a",
    "bindAddress": HOST,
    "brokerIP1": HOST,
    "mappedFileSizeCommitLog": str(LOG_FILE),
    "mappedFileSizeConsumeQueue": str(20 * 100),
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "maxMessageSize": "1024",
}


async def until(condition: Callable[[], object], what: str = "the condition", timeout_s: float = 120) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.005)


class BrokerNode:
    """The store, the message writer and the replication of one broker."""

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        settings: Mapping[str, str] | None = None,
        *,
        controlled: bool = True,
    ) -> None:
        self.directory = directory
        self.id = broker_id
        values = (
            SMALL
            | {"haListenPort": str(free_port(HOST))}
            | {"storePathRootDir": str(directory)}
            | dict(settings or {})
        )
        self.live = LiveConfig(from_properties(values).config)
        self.store = MessageStore(StoreConfig.of(self.live.current))
        self.puts = MessageWriter(self.live, self.store)
        config = self.live.current
        members = MemberAuthentication.of(
            config.member_secret_path, allow_unauthenticated=config.allow_unauthenticated_members
        )
        self.ha = HAService(self.live, self.store, self.puts, controlled=controlled, members=members)
        self.controlled = controlled

    async def open(self) -> BrokerNode:
        """Recovers the store and starts it."""
        self.store.load()
        self.ha.load()
        self.store.start()
        await self.ha.start()
        return self

    async def close(self) -> None:
        """Stops in an orderly way."""
        await self.ha.stop()
        self.store.stop()

    async def lead(self, epoch: int, members: set[int] | None = None, set_epoch: int = 0) -> str:
        """Becomes the master of an epoch; returns its HA address."""
        await self.ha.become_master(epoch, members or {self.id}, set_epoch or epoch, broker_id=self.id)
        return self.address

    async def follow(self, address: str | None, epoch: int, master: BrokerNode | None = None) -> None:
        """Becomes a replica; with `master` it can compare its log with that master's."""
        self.ha.compare_with(DirectChecksumClient(master) if master is not None else None)
        await self.ha.become_replica(address, epoch, broker_id=self.id)

    def ha_status(self) -> HARuntimeInfo:
        """What the broker responds to GET_BROKER_HA_STATUS."""
        return ha_runtime_info(self.ha, self.live.current)

    def epoch_cache(self) -> EpochEntryCache:
        """What the broker responds to GET_BROKER_EPOCH_CACHE."""
        return epoch_entry_cache(self.ha, self.live.current)

    @property
    def address(self) -> str:
        """Its HA address."""
        return self.live.current.ha_server_addr

    @property
    def end(self) -> int:
        """The end offset of its log."""
        return self.store.max_phy_offset

    def put(self, count: int, body: bytes = b"x" * 300) -> int:
        """Stores messages; returns the end offset of the log."""
        for number in range(count):
            status, *_ = put(self.store, Message(body=body + b"%d" % number, queue_id=number % 3))
            assert status is PutStatus.PUT_OK, status
        if self.puts.on_append is not None:
            self.puts.on_append()
        return self.end

    def log_bytes(self, end: int | None = None) -> bytes:
        """The bytes of the log up to `end`."""
        data = b""
        for file in self.store.log.files.files:
            data += file.map[: file.wrote]
        return data[: end if end is None else end - max(self.store.min_phy_offset, 0)]

    def offsets(self) -> dict[int, int]:
        """Queue id → end offset of the queue."""
        return {
            queue_id: queue.max_offset
            for (_, queue_id), queue in self.store.queues.items()
            if queue.max_offset
        }

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """The epochs that it knows, as (epoch, start offset)."""
        return [(entry.epoch, entry.start_offset) for entry in self.ha.epochs.epochs.entries]


class DirectChecksumClient(MasterChecksumClient):
    """Gets checksums from a master's node without a connection. `asked` holds the ranges."""

    def __init__(self, master: BrokerNode) -> None:
        super().__init__(RemotingClient(), master.address)
        self.asked: list[LogRange] = []
        self._node = master

    async def checksums(self, wanted: LogRange, epoch: int) -> RangeChecksums | None:
        self.asked.append(wanted)
        begins = max(self._node.store.min_phy_offset, 0)
        assert wanted.is_reasonable
        assert epoch == self._node.ha.epochs.epochs.last_epoch
        if wanted.start < begins:
            return RangeChecksums(begins, b"")
        return RangeChecksums(begins, await self._node.ha.checksums.of(wanted))
