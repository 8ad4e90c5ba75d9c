"""One flipped bit in the term of a last entry must not win an election: the others would lose what they have
committed since."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from epochmq_dledger.core.raft_log import MemoryLog
from epochmq_dledger.recovery import PeerRecovery, RecoveredPeer
from epochmq_dledger.store.block_log import BlockLog
from epochmq_dledger.store.damage_evidence import RejoinMark
from epochmq_dledger.store.segments import sync_and_close
from epochmq_dledger.store.snapshot_file import SnapshotFile
from epochmq_dledger.store.state_files import load_committed, load_stopped_end, save_checkpoint, save_vote
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, ENTRY_TERM_AT
from epochmq_protocol.dledger import DLedgerEntry
from tests.unit.dledger.block_logs import grow, new_log, opened
from tests.unit.dledger.file_logs import flip_bits
from tests.unit.dledger.scripted_node import settings_of

TERMS = (1, 1, 8, 8, 8)
"""Of the entries 0 to 4."""
LAST_BYTE = ENTRY_TERM_AT + 7


@pytest.fixture
def entries(tmp_path: Path) -> list[DLedgerEntry]:
    """The entries of a peer's directory, whose vote is of term 12."""
    log, model, rng = opened(tmp_path), MemoryLog(), random.Random(1)
    for term in TERMS:
        bodies, made = grow(rng, model, 1, term)
        log.append_bodies(term, bodies)
        model.append(made)
    sync_and_close(log.take_unsynced())
    log.close()
    save_vote(tmp_path, 12, "n1")
    save_checkpoint(tmp_path, 4, 2)
    return model.entries


def recovered(folder: Path, **settings: object) -> tuple[BlockLog, RecoveredPeer]:
    log = new_log(folder)
    made = PeerRecovery(settings_of("n0", **settings), folder, log, SnapshotFile(folder), reads_entries=False)
    return log, made.run(None, lambda _: None)


def test_a_term_that_the_index_denies_makes_the_peer_rejoin(
    tmp_path: Path, entries: list[DLedgerEntry]
) -> None:
    """The rotten term 10 is not beyond the peer's, so that only the index tells."""
    flip_bits(tmp_path, entries[4].pos + LAST_BYTE, 2)
    log, peer = recovered(tmp_path)
    assert (log.end_index, log.end_term) == (3, 8)
    assert peer.rejoin == RejoinMark(vote_lost=False)
    report = (tmp_path / "damaged-1" / "REPORT").read_text()
    assert "(entry 4) has term 10, but term 8 in the index" in report
    log.close()
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (3, RejoinMark(vote_lost=False)), "the same after a restart"
    log.close()


def test_a_rotten_term_before_the_last_entry_ends_the_log_before_it(
    tmp_path: Path, entries: list[DLedgerEntry]
) -> None:
    """Terms that fall end the log, so that the rotten one would be the last."""
    flip_bits(tmp_path, entries[3].pos + LAST_BYTE, 2)
    log, peer = recovered(tmp_path)
    assert (log.end_index, log.end_term) == (2, 8)
    assert peer.rejoin == RejoinMark(vote_lost=False)
    log.close()


def test_without_an_index_a_single_term_beyond_the_peers_makes_it_rejoin(
    tmp_path: Path, entries: list[DLedgerEntry]
) -> None:
    """After a power failure the index of the last file may be lost."""
    flip_bits(tmp_path, entries[4].pos + LAST_BYTE, 16)
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    log, peer = recovered(tmp_path)
    assert (log.end_index, log.end_term) == (3, 8)
    assert peer.rejoin == RejoinMark(vote_lost=False)
    assert "has term 24, but the term of this peer is 12" in (tmp_path / "damaged-1" / "REPORT").read_text()
    log.close()


def test_several_entries_of_a_later_term_are_believed(tmp_path: Path, entries: list[DLedgerEntry]) -> None:
    """RocketMQ does not sync `currterm`: after a power failure it may be older than the log."""
    save_vote(tmp_path, 7, "n1")
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (4, None)
    log.close()


@pytest.mark.usefixtures("entries")
def test_an_index_that_was_lost_is_rebuilt(tmp_path: Path) -> None:
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (4, None)
    log.close()


def test_the_only_voter_keeps_its_entries(tmp_path: Path, entries: list[DLedgerEntry]) -> None:
    """No other peer has them, and no other peer can be elected."""
    flip_bits(tmp_path, entries[4].pos + LAST_BYTE, 2)
    log, peer = recovered(tmp_path, peers=("n0",))
    assert (log.end_index, peer.rejoin) == (4, None)
    log.close()


@pytest.mark.parametrize("byte", range(ENTRY_HEADER_SIZE))
def test_a_last_entry_that_rots_after_an_orderly_stop_makes_the_peer_rejoin(
    tmp_path: Path, entries: list[DLedgerEntry], byte: int
) -> None:
    """The peer has acknowledged it, and no write can be torn."""
    save_checkpoint(tmp_path, 4, 2, has_stopped=True)
    flip_bits(tmp_path, entries[4].pos + byte, 1)
    log, peer = recovered(tmp_path)
    if log.end_index == 4:
        assert log.end_term == 8
    else:
        assert (log.end_index, peer.committed) == (3, 2)
        assert peer.rejoin == RejoinMark(vote_lost=False)
        assert (tmp_path / "damaged-1" / "REPORT").exists()
    log.close()


def test_a_header_without_its_magic_ends_the_log_of_a_peer_that_stopped_in_order(
    tmp_path: Path, entries: list[DLedgerEntry]
) -> None:
    save_checkpoint(tmp_path, 4, 2, has_stopped=True)
    flip_bits(tmp_path, entries[4].pos, 1)
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (3, RejoinMark(vote_lost=False))
    assert (
        "ended with entry 4 when the peer stopped in order" in (tmp_path / "damaged-1" / "REPORT").read_text()
    )
    log.close()
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (3, RejoinMark(vote_lost=False)), "the same after a restart"
    log.close()


@pytest.mark.parametrize(
    "checkpoint", ["endIndex=4\ncommittedIndex=2\n", "#Mon Nov 02\nendIndex=99\ncommittedIndex=2\n"]
)
def test_a_torn_last_entry_of_a_peer_that_did_not_stop_in_order_is_dropped(
    tmp_path: Path, entries: list[DLedgerEntry], checkpoint: str
) -> None:
    """A checkpoint of DLedger's, or of a peer that was killed: the log may have been truncated since."""
    (tmp_path / "checkpoint").write_text(checkpoint)
    flip_bits(tmp_path, entries[4].pos, 1)
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (3, None)
    log.close()


def test_a_stop_counts_for_the_next_start_only(tmp_path: Path, entries: list[DLedgerEntry]) -> None:
    """Afterwards a leader may have truncated the last entry, and the peer may be killed."""
    save_checkpoint(tmp_path, 4, 2, has_stopped=True)
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (4, None)
    assert (load_stopped_end(tmp_path), load_committed(tmp_path)) == (None, 2)
    log.close()
    flip_bits(tmp_path, entries[4].pos, 1)
    log, peer = recovered(tmp_path)
    assert (log.end_index, peer.rejoin) == (3, None)
    log.close()
