"""Tests that epochs are kept, stored and compared as in RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.epochs import (
    Epochs,
    HADivergedError,
    common_prefix_end,
    epochs_for_handshake,
    without_empty_epochs,
)
from epochmq_protocol.epoch_entries import (
    OFFSET_MAX,
    EpochEntry,
    decode_epoch_entries,
    encode_epoch_entries,
    format_epoch_file,
    parse_epoch_file,
    truncation_point,
)
from epochmq_protocol.errors import RemoteProtocolError


def entries(*pairs: tuple[int, int]) -> list[EpochEntry]:
    return [EpochEntry(*pair) for pair in pairs]


def test_an_epoch_must_be_greater_in_number_and_start() -> None:
    epochs = Epochs(entries((1, 0), (2, 100)))
    assert not epochs.append(EpochEntry(3, 100))
    assert not epochs.append(EpochEntry(2, 200))
    assert epochs.append(EpochEntry(5, 200))
    assert epochs.entries == entries((1, 0), (2, 100), (5, 200))


def test_an_epoch_ends_where_the_next_begins() -> None:
    epochs = Epochs(entries((1, 0), (2, 100)))
    assert [epochs.end_of(entry) for entry in epochs.entries] == [100, OFFSET_MAX]
    assert epochs.find(99) == EpochEntry(1, 0)
    assert epochs.find(100) == EpochEntry(2, 100)
    assert Epochs(entries((4, 50))).find(49) is None


def test_truncating_the_log_truncates_its_epochs() -> None:
    epochs = Epochs(entries((1, 0), (2, 100), (3, 200)))
    assert epochs.truncate_suffix(200)
    assert epochs.entries == entries((1, 0), (2, 100))
    assert epochs.truncate_prefix(100)
    assert epochs.entries == entries((2, 100))
    assert not epochs.truncate_prefix(5000)
    assert epochs.truncate_epochs_from(2)
    assert epochs.last is None


def test_an_epoch_without_a_byte_does_not_hide_that_a_log_was_begun_alone() -> None:
    """The replica heard of a mastership under which it received nothing. All members have lost their logs."""
    local = entries((2, 0), (5, 24))
    assert common_prefix_end(local, 0, 24, entries((8, 0)), 0) == 0
    with pytest.raises(HADivergedError, match="no epoch of this log"):
        common_prefix_end(local, 0, 30, entries((8, 0)), 0)


# The cases of RIP-44, and more: (replica's epochs, its end, master's epochs, its end, where to cut).
CASES = {
    "same history, replica behind": ([(1, 0), (2, 100)], 150, [(1, 0), (2, 100)], 300, 150),
    "same history, replica ahead": ([(1, 0), (2, 100)], 400, [(1, 0), (2, 100)], 300, 300),
    "replica's newest epoch unknown to the master": (
        [(1, 0), (2, 100), (3, 200)],
        250,
        [(1, 0), (2, 100), (4, 180)],
        500,
        180,
    ),
    "replica wrote beyond the epoch in which the master continued": (
        [(1, 0)],
        150,
        [(1, 0), (2, 100)],
        300,
        100,
    ),
    "replica shorter than the epoch that the master closed": ([(1, 0)], 80, [(1, 0), (2, 100)], 300, 80),
    "several epochs behind": ([(1, 0)], 100, [(1, 0), (3, 100), (7, 900)], 950, 100),
    "same number, other start": ([(1, 0), (2, 100)], 150, [(1, 0), (2, 90)], 300, 90),
    "nothing in common": ([(5, 0)], 50, [(6, 10)], 300, None),
    "master without the replica's epochs, empty log": ([(1, 0)], 50, [], 0, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replica_truncates_where_its_log_differs_from_its_master_s(case: str) -> None:
    local, local_end, master, master_end, expected = CASES[case]
    assert truncation_point(entries(*local), local_end, entries(*master), master_end) == expected


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 90)), max_size=8), st.data())
def test_a_common_history_is_never_truncated(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Two logs that share a prefix of history and then diverge are truncated at or after its end."""
    history = Epochs()
    epoch, offset = 1, 0
    for more, size in steps:
        history.append(EpochEntry(epoch, offset))
        epoch, offset = epoch + more, offset + size
    shared = history.entries
    if not shared:
        return
    end = shared[-1].start_offset + data.draw(st.integers(1, 100))
    cut = data.draw(st.integers(shared[-1].start_offset + 1, end))
    mine = [*shared, EpochEntry(epoch + 1, end)]
    theirs = [*shared, EpochEntry(epoch + 2, cut)]
    assert truncation_point(mine, end + 10, theirs, cut + 10) == cut


def test_the_file_counts_and_sums_its_lines() -> None:
    text = format_epoch_file(entries((1, 0), (2, 1000), (3, 2500)))
    assert text.startswith("3\n")
    assert text.endswith("\n1-0\n2-1000\n3-2500\n")
    assert parse_epoch_file(text) == entries((1, 0), (2, 1000), (3, 2500))
    unchecked = "1\n0\n7-70\n"
    assert parse_epoch_file(unchecked) == entries((7, 70))


@pytest.mark.parametrize(
    "text",
    ["", "1", "x\n0\n1-0\n", "2\n0\n1-0\n", "1\n5\n1-0\n", "1\n0\n1\n", "2\n0\n2-0\n1-5\n", "1\n0\n-1-5\n"],
)
def test_a_broken_epoch_file_is_rejected(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_epoch_file(text)


def test_the_backup_is_read_when_the_epoch_file_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    file = EpochFile(path)
    file.load()
    assert file.append(EpochEntry(1, 0))
    assert file.append(EpochEntry(2, 10))
    assert not file.append(EpochEntry(2, 20))
    path.write_text("2\n1\n1-0\n2-10\n")
    again = EpochFile(path)
    again.load()
    assert again.epochs.entries == entries((1, 0))
    path.with_name(path.name + ".bak").write_text("nonsense")
    with pytest.raises(RemoteProtocolError, match=r"Restore the file .* empty its store"):
        EpochFile(path).load()


@given(st.binary(max_size=100))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        found = decode_epoch_entries(data)
    except RemoteProtocolError:
        return
    assert encode_epoch_entries(found) == data


def test_a_handshake_names_earlier_epochs_without_bytes() -> None:
    """A RocketMQ replica may know one of these epochs, and must find it. Our replicas use those that have
    bytes."""
    assert epochs_for_handshake(entries((3, 0), (5, 100))) == entries((1, 0), (2, 0), (3, 0), (5, 100))
    assert epochs_for_handshake(entries((1, 0), (5, 100))) == entries((1, 0), (5, 100))
    assert epochs_for_handshake([]) == []
    late = entries((57, 5000), (60, 9000))
    assert epochs_for_handshake(late) == late, "what was before is expired, not without bytes"
    many = epochs_for_handshake(entries((5000, 0)))
    assert len(many) == 101
    assert decode_epoch_entries(encode_epoch_entries(many)) == many


def test_rocketmq_ends_an_epoch_without_bytes_at_the_first_byte() -> None:
    """By RocketMQ's rule for two histories, what a former master wrote alone is truncated, and nothing
    else."""
    reported = epochs_for_handshake(entries((2, 0), (3, 700)))
    assert truncation_point(entries((1, 0)), 0, reported, 900) == 0
    assert truncation_point(entries((1, 0)), 300, reported, 900) == 0
    assert truncation_point(entries((2, 0)), 300, reported, 900) == 300


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=6))
def test_our_replicas_ignore_epochs_without_bytes(steps: list[tuple[int, int]]) -> None:
    epochs = Epochs(EpochEntry(epoch, start * 100) for epoch, start in sorted(steps))
    assert without_empty_epochs(epochs_for_handshake(epochs.entries)) == epochs.entries
