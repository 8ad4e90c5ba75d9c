"""The store reads only files that its peer has: none that waits for its erasure, and none that is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epochmq_broker.membership.dledger.commit_log_peer import CommitLogPeer
from epochmq_broker.membership.dledger.first_record import encode_first_record
from epochmq_dledger.core.raft_log import make_entry
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE
from epochmq_protocol.dledger import DLedgerEntry, DLedgerResponseCode, PushEntryRequest, PushType
from epochmq_protocol.record_layout import PHYSICAL_OFFSET_AT, SYS_FLAG_AT
from epochmq_store.files.mapped_file import StoreDamagedError
from tests.unit.broker.dledger_bench import dledger_of, peers_of, running, settings_of
from tests.unit.broker.kit import until
from tests.unit.broker.membership.dledger.test_log_upgrade import (
    FILE_SIZE,
    PLAIN,
    fill_plain,
    long_texts,
)


class HeldErasures:
    """Holds the erasures of logs back on their worker threads until `release`."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self.waits = threading.Event()
        """A worker thread is about to erase."""

    def hold(self, peer: CommitLogPeer) -> None:
        log = peer.peer.log
        take = log.take_erasure

        def held() -> Callable[[], None]:
            erase = take()

            def run() -> None:
                self.waits.set()
                self._released.wait()
                erase()

            return run

        log.take_erasure = held  # type: ignore[method-assign]

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def erasures() -> Iterator[HeldErasures]:
    held = HeldErasures()
    yield held
    held.release()


def first_entry(index: int, position: int) -> DLedgerEntry:
    """The first entry of term 1, as a leader sends it."""
    body = bytearray(encode_first_record(1, bytes(8), 1))
    body[PHYSICAL_OFFSET_AT:SYS_FLAG_AT] = (position + ENTRY_HEADER_SIZE).to_bytes(8, "big")
    return make_entry(index, 1, bytes(body), position, FILE_SIZE)


def truncate_to(entry: DLedgerEntry) -> PushEntryRequest:
    """The push of a leader, n0, that has committed this entry."""
    push = PushEntryRequest(group="group-a", remote_id="n1", local_id="n0", leader_id="n0", term=1)
    push.type, push.entry, push.commit_index = PushType.TRUNCATE, entry, entry.index
    return push


async def test_a_peer_stops_rather_than_reading_a_file_that_it_does_not_have(tmp_path: Path) -> None:
    """The leader's log begins a file later than this peer's plain log ends: what lies between has expired."""
    await fill_plain(tmp_path, long_texts(10))
    async with running(tmp_path, settings_of(peers_of(3), 1, **PLAIN)) as bench:
        dledger = dledger_of(bench)
        missing = dledger.peer.log.end_pos
        push = truncate_to(first_entry(7, missing + FILE_SIZE))
        dledger.peer.handle_request(push, lambda _: None)
        await until(lambda: dledger.peer._context.error is not None)
        assert isinstance(dledger.peer._context.error, StoreDamagedError)
        assert not dledger.is_ready
        data = sorted(path.name for path in (tmp_path / "dledger-n1" / "data").iterdir())
        assert f"{missing:020d}" not in data


async def test_an_entry_that_is_committed_before_an_erasure_ends_is_read_from_the_new_file(
    tmp_path: Path, erasures: HeldErasures
) -> None:
    """A peer with the empty file of an upgrade gets the leader's first entry. The push says that it is
    committed, while the former file of that name waits for its erasure."""
    await fill_plain(tmp_path, long_texts(10))
    async with running(tmp_path, settings_of(peers_of(3), 1, **PLAIN)) as bench:
        dledger, store = dledger_of(bench), bench.broker.store
        erasures.hold(dledger)
        codes: list[int] = []
        entry = first_entry(0, dledger.peer.log.end_pos)
        dledger.peer.handle_request(truncate_to(entry), lambda it: codes.append(it.code if it else -1))
        await until(erasures.waits.is_set)
        committed, shown = dledger.peer.committed_index, store.log.max_offset
        erasures.release()
        assert (committed, shown) == (0, entry.pos)
        await until(lambda: codes == [DLedgerResponseCode.SUCCESS])
        await until(lambda: store.dispatcher.position == entry.pos + entry.size)
        assert store.log.read(entry.pos + ENTRY_HEADER_SIZE) == entry.body
