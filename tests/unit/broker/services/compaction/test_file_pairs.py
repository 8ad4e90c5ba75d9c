"""The files of a compacted queue: what is written is found again, whatever a crash has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.services.compaction.file_pairs import END_UNIT, FileSizes, file_sizes
from epochmq_formats.batch_unit import UNIT_BYTES
from epochmq_store.files.mapped_file import StoreDamagedError
from tests.unit.broker.services.compaction.made_records import SIZES, file_pairs, keyed, offsets_of

COUNT = 40
PER_PAIR = 9  # one unit marks the end


def filled(directory: Path, count: int = COUNT) -> None:
    pairs = file_pairs(directory)
    pairs.append(keyed(offset) for offset in range(count))
    pairs.sync()


@pytest.mark.parametrize(
    ("log", "queue", "expected"),
    [
        (100 << 20, 10 << 20, FileSizes(104_857_460, 10_485_746)),  # RocketMQ's defaults
        (46_000, 4600, FileSizes(50_600, 4600)),  # a multiple gets one more
        (46_000, 4650, FileSizes(46_460, 4646)),  # a rest of more than half counts as one
        (24_000, 4600, FileSizes(23_000, 4600)),
        (4096, 4600, FileSizes(23_000, 4600)),
    ],
)
def test_sizes_are_those_of_rocketmq(log: int, queue: int, expected: FileSizes) -> None:
    assert file_sizes(log, queue) == expected


def test_appended_messages_are_found_again(tmp_path: Path) -> None:
    filled(tmp_path)
    pairs = file_pairs(tmp_path)
    assert offsets_of(pairs) == list(range(COUNT))
    assert (pairs.min_offset, pairs.max_offset) == (0, COUNT)
    assert [pair.start for pair in pairs.pairs] == [number * SIZES.log for number in range(5)]
    assert {path.stat().st_size for path in (tmp_path / "log").iterdir()} == {SIZES.log}
    assert {path.stat().st_size for path in (tmp_path / "queue").iterdir()} == {SIZES.queue}
    first = (tmp_path / "queue" / pairs.pairs[0].name).read_bytes()
    assert first[PER_PAIR * UNIT_BYTES :] == END_UNIT


def test_a_full_log_file_ends_its_pair(tmp_path: Path) -> None:
    pairs = file_pairs(tmp_path)
    pairs.append([keyed(0, body=bytes(1500)), keyed(1, body=bytes(1500))])
    assert [(pair.units, pair.first) for pair in pairs.pairs] == [(1, 0), (1, 1)]
    assert offsets_of(file_pairs(tmp_path)) == [0, 1]


def test_a_message_that_fits_into_no_file_is_left_out(tmp_path: Path) -> None:
    pairs = file_pairs(tmp_path)
    pairs.append([keyed(0), keyed(1, body=bytes(SIZES.log)), keyed(2)])
    assert offsets_of(pairs) == [0, 2]


def test_messages_that_are_there_are_not_appended_again(tmp_path: Path) -> None:
    filled(tmp_path, 12)
    pairs = file_pairs(tmp_path)
    pairs.append(keyed(offset) for offset in range(8, 15))
    assert offsets_of(pairs) == list(range(15))


def test_a_search_finds_the_next_message_in_a_gap(tmp_path: Path) -> None:
    pairs = file_pairs(tmp_path)
    pairs.append(keyed(offset) for offset in range(5, 100, 5))
    for wanted in range(96):
        found = pairs.find(wanted)
        assert found is not None
        pair, number = found
        assert next(pairs.units(pair, number, 1)).base == max(-(-wanted // 5) * 5, 5)
    assert pairs.find(96) is None


@pytest.mark.parametrize("trusted", [True, False])
def test_a_queue_continues_after_its_last_message(tmp_path: Path, *, trusted: bool) -> None:
    filled(tmp_path)
    pairs = file_pairs(tmp_path, trusted=trusted)
    pairs.append([keyed(COUNT + 5)])
    assert offsets_of(file_pairs(tmp_path)) == [*range(COUNT), COUNT + 5]


@pytest.mark.parametrize("lost", [0, 3])
def test_after_a_power_loss_the_queue_ends_before_a_lost_record(tmp_path: Path, lost: int) -> None:
    filled(tmp_path)
    last = file_pairs(tmp_path).pairs[-1]
    start = COUNT // PER_PAIR * PER_PAIR
    unit = next(file_pairs(tmp_path).units(last, lost, 1))
    with (tmp_path / "log" / last.name).open("r+b") as file:
        file.seek(unit.physical - last.start)
        file.write(bytes(unit.size))
    assert offsets_of(file_pairs(tmp_path, trusted=False)) == list(range(start + lost))


def test_a_missing_queue_file_is_built_from_its_log_file(tmp_path: Path) -> None:
    filled(tmp_path)
    paths = sorted((tmp_path / "queue").iterdir())
    content = [path.read_bytes() for path in paths]
    paths[1].unlink()
    paths[-1].unlink()
    assert offsets_of(file_pairs(tmp_path)) == list(range(COUNT))
    assert paths[-1].read_bytes() == content[-1]
    assert paths[1].read_bytes() == content[1].replace(END_UNIT, bytes(UNIT_BYTES))


def test_a_missing_log_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    filled(tmp_path)
    missing = sorted((tmp_path / "log").iterdir())[1]
    missing.unlink()
    with pytest.raises(StoreDamagedError, match=missing.name):
        file_pairs(tmp_path)


def test_a_file_of_another_size_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    filled(tmp_path)
    path = sorted((tmp_path / "log").iterdir())[0]
    path.write_bytes(bytes(10))
    with pytest.raises(StoreDamagedError, match=r"10 bytes, expected 2300 \(compactionMappedFileSize\)"):
        file_pairs(tmp_path)


def test_files_that_a_kill_left_empty_are_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    name = f"{5 * SIZES.log:020d}"
    (tmp_path / "log" / name).touch()
    assert offsets_of(file_pairs(tmp_path)) == list(range(COUNT))
    assert not (tmp_path / "log" / name).exists()
    (tmp_path / "queue" / name).write_bytes(bytes(SIZES.queue))
    assert offsets_of(file_pairs(tmp_path)) == list(range(COUNT))
    assert not (tmp_path / "queue" / name).exists()


@pytest.mark.parametrize("end", [0, 1, 8, 9, 10, 35, 39, 40, 50])
def test_a_truncation_leaves_what_an_append_up_to_there_writes(tmp_path: Path, end: int) -> None:
    filled(tmp_path / "whole")
    pairs = file_pairs(tmp_path / "whole")
    pairs.truncate_to(end)
    kept = list(range(min(end, COUNT)))
    assert (offsets_of(pairs), pairs.max_offset) == (kept, len(kept))
    assert offsets_of(file_pairs(tmp_path / "whole", trusted=False)) == kept
    pairs.append(keyed(offset) for offset in range(100, 120))
    assert offsets_of(file_pairs(tmp_path / "whole")) == kept + list(range(100, 120))
