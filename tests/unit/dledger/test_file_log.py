"""The log on disk behaves like the log in memory, and survives restarts, truncations and damage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_dledger.core.raft_log import LogFullError, MemoryLog, make_entry
from epochmq_dledger.store.segments import sync_and_close
from epochmq_dledger.store.state_files import SavedVote, load_committed, load_vote, save_checkpoint, save_vote
from epochmq_formats.dledger_log import encode_entry
from tests.support.descriptors import open_files_in
from tests.unit.dledger.file_logs import FILE_SIZE, INDEX_FILE_SIZE, cut, grow, opened, same


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25))
def test_any_history_of_appends_truncations_and_restarts_equals_the_model(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log, model, term = opened(tmp_path), MemoryLog(), 1
    for _ in range(60):
        action = rng.random()
        if action < 0.6:
            entries = grow(rng, model, rng.randint(1, 6), term)
            log.append(entries)
            model.append(entries)
        elif action < 0.75 and model.entries:
            end = rng.randint(model.begin_index - 1, model.end_index)
            cut(log, end)
            model.truncate(end)
            term += 1
        elif action < 0.8:
            entry = make_entry(rng.randint(20, 90), term, rng.randbytes(50), rng.randint(0, 9000), FILE_SIZE)
            log.reset(entry)
            log.erase_now()
            model.reset(entry)
        else:
            sync_and_close(log.take_unsynced())
            log.close()
            log = opened(tmp_path)
        same(log, model)
    log.close()


@pytest.mark.parametrize("seed", range(25))
def test_a_log_truncated_or_damaged_at_any_byte_recovers_a_prefix(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log, model = opened(tmp_path), MemoryLog()
    entries = grow(rng, model, 12, 1)
    log.append(entries)
    log.close()
    victim = rng.choice(entries)
    at = victim.pos + rng.randrange(44 if seed % 2 else 8)
    with (tmp_path / "data" / f"{at - at % FILE_SIZE:020d}").open("r+b") as file:
        file.seek(at % FILE_SIZE)
        rest = FILE_SIZE - at % FILE_SIZE
        file.write(bytes(rest) if seed % 3 else rng.randbytes(min(rest, 60)))
    log = opened(tmp_path)
    count = log.end_index + 1
    assert victim.index <= count <= len(entries)
    for entry in entries[: victim.index]:
        assert log.entry(entry.index) == entry
    log.close()


def test_a_closed_log_holds_no_descriptor(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(grow(random.Random(1), MemoryLog(), 5, 1))
    sync_and_close(log.take_unsynced())
    assert open_files_in(tmp_path)
    log.close()
    assert open_files_in(tmp_path) == []


def test_a_lost_index_is_rebuilt_from_the_data(tmp_path: Path) -> None:
    log, model = opened(tmp_path), MemoryLog()
    entries = grow(random.Random(1), model, 9, 1)
    log.append(entries)
    model.append(entries)
    log.close()
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(bytes(INDEX_FILE_SIZE))
    log = opened(tmp_path)
    same(log, model)
    log.close()


def test_entries_behind_a_lost_start_of_their_file_do_not_count(tmp_path: Path) -> None:
    """A power failure before the first sync may lose any page, including the first. A log cannot begin in the
    middle of a file without a filler."""
    log = opened(tmp_path)
    log.append(grow(random.Random(6), MemoryLog(), 4, 1))
    log.close()
    for path, lost in ((tmp_path / "data", 256), (tmp_path / "index", 32)):
        with (path / f"{0:020d}").open("r+b") as file:
            file.write(bytes(lost))
    log = opened(tmp_path)
    assert (log.begin_index, log.end_index, log.end_pos) == (-1, -1, 0)
    log.close()


def test_a_log_reset_in_the_middle_of_a_file_is_recovered_without_its_index(
    tmp_path: Path,
) -> None:
    log, model = opened(tmp_path), MemoryLog()
    first = make_entry(40, 3, b"anew", 5 * FILE_SIZE + 300, FILE_SIZE)
    log.reset(first)
    log.erase_now()
    model.reset(first)
    entries = grow(random.Random(7), model, 12, 3)
    log.append(entries)
    model.append(entries)
    log.close()
    assert len(list((tmp_path / "data").iterdir())) > 1
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(bytes(INDEX_FILE_SIZE))
    log = opened(tmp_path)
    same(log, model)
    log.close()


def test_truncated_entries_do_not_come_back(tmp_path: Path) -> None:
    log, model = opened(tmp_path), MemoryLog()
    entries = grow(random.Random(2), model, 9, 1)
    log.append(entries)
    cut(log, 3)
    log.close()
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "data").iterdir()))
    assert encode_entry(entries[4])[:48] not in data
    log = opened(tmp_path)
    assert log.end_index == 3
    log.close()


def test_truncated_entries_do_not_come_back_behind_new_ones(tmp_path: Path) -> None:
    """All entries have one size, so that each new one overwrites an old one exactly."""
    log, model = opened(tmp_path), MemoryLog()
    for term in (1, 1, 3, 3, 3):
        entry = make_entry(model.end_index + 1, term, b"old", model.end_pos, FILE_SIZE)
        log.append([entry])
        model.append([entry])
    cut(log, 1)
    log.append([make_entry(2, 2, b"new", model.entries[2].pos, FILE_SIZE)])
    log.close()
    log = opened(tmp_path)
    assert log.end_index == 2
    log.close()


@pytest.mark.parametrize("lost", [1, 7, 60])
def test_an_entry_with_a_torn_body_does_not_count(tmp_path: Path, lost: int) -> None:
    log, model = opened(tmp_path), MemoryLog()
    entries = [make_entry(0, 1, b"a" * 90, 0, FILE_SIZE)]
    entries.append(make_entry(1, 1, b"b" * 90, entries[0].size, FILE_SIZE))
    log.append(entries)
    model.append(entries[:1])
    log.close()
    with (tmp_path / "data" / f"{0:020d}").open("r+b") as file:
        file.seek(entries[1].pos + entries[1].size - lost)
        file.write(bytes(lost))
    log = opened(tmp_path)
    same(log, model)
    log.close()


def test_unsynced_entries_of_a_killed_process_are_synced_before_they_count(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(grow(random.Random(5), MemoryLog(), 30, 1))
    log.close()
    log = opened(tmp_path)
    dirty = log.take_unsynced()
    assert len(dirty.files) >= len(list((tmp_path / "data").iterdir())) > 1
    sync_and_close(dirty)
    log.close()


def test_a_full_disk_does_not_change_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, model = opened(tmp_path), MemoryLog()
    entries = grow(random.Random(3), model, 3, 1)
    log.append(entries)
    model.append(entries)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("epochmq_dledger.store.segments.os.pwrite", full)
        with pytest.raises(LogFullError):
            log.append(grow(random.Random(4), model, 2, 1))
    same(log, model)
    log.close()


def test_term_vote_and_checkpoint_survive(tmp_path: Path) -> None:
    assert load_vote(tmp_path) == SavedVote(0, None)
    assert load_committed(tmp_path) is None
    save_vote(tmp_path, 7, "n1")
    save_vote(tmp_path, 8, None)
    save_checkpoint(tmp_path, 12, 9)
    save_checkpoint(tmp_path, 12, 10)
    assert load_vote(tmp_path) == SavedVote(8, None)
    assert load_committed(tmp_path) == 10
    (tmp_path / "checkpoint").write_text("")
    assert load_committed(tmp_path) == 9


@pytest.mark.parametrize("garbled", ["", "currTerm=", "currTerm=9", "currTerm=x\nvoteLeader=\n", "\0" * 24])
def test_an_unreadable_vote_is_lost_and_the_previous_one_does_not_count(tmp_path: Path, garbled: str) -> None:
    """A peer that used its vote of an earlier term could vote twice in a term between."""
    save_vote(tmp_path, 7, "n1")
    save_vote(tmp_path, 9, "n2")
    (tmp_path / "currterm").write_text(garbled)
    assert load_vote(tmp_path) == SavedVote(7, None, is_lost=True)
    (tmp_path / "currterm").unlink()
    assert load_vote(tmp_path).is_lost


def test_a_flipped_bit_of_the_vote_loses_it_or_changes_nothing(tmp_path: Path) -> None:
    save_vote(tmp_path, 6, "n1")
    save_vote(tmp_path, 7, "n3")
    for _ in every_flipped_bit(tmp_path / "currterm"):
        assert load_vote(tmp_path) in (SavedVote(7, "n3"), SavedVote(6, None, is_lost=True))


def test_a_flipped_bit_of_the_checkpoint_never_commits_more(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 30, 12)
    save_checkpoint(tmp_path, 31, 13)
    for _ in every_flipped_bit(tmp_path / "checkpoint"):
        assert load_committed(tmp_path) in (12, 13)


def every_flipped_bit(path: Path) -> Iterator[None]:
    """The file with each of its bits flipped, one after the other."""
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        path.write_bytes((int.from_bytes(data, "little") ^ 1 << bit).to_bytes(len(data), "little"))
        yield


def test_state_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    """Those of DLedger and of earlier releases."""
    (tmp_path / "currterm").write_text("#Mon Nov 02\ncurrTerm=7\nvoteLeader=n1\n")
    (tmp_path / "checkpoint").write_text("#Mon Nov 02\nendIndex=9\ncommittedIndex=8\n")
    assert (load_vote(tmp_path), load_committed(tmp_path)) == (SavedVote(7, "n1"), 8)


def test_a_java_peer_that_was_killed_while_it_replaced_its_vote_has_not_lost_it(tmp_path: Path) -> None:
    """Java removes the old file before it renames the new one."""
    save_vote(tmp_path, 7, "n1")
    save_vote(tmp_path, 9, "n2")
    (tmp_path / "currterm").rename(tmp_path / "currterm.tmp")
    assert load_vote(tmp_path) == SavedVote(9, "n2")
