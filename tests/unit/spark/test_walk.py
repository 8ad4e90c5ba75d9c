"""Tests the walk over a log: it finds every record once, by any ranges, and resumes after invalid bytes."""

from __future__ import annotations

import itertools
import random
import zlib
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_protocol import javahash, message  # noqa: E402
from epochmq_spark.decode import digest, log_digests  # noqa: E402
from epochmq_spark.decode import walk as w  # noqa: E402

BASE = 1 << 33


def segment(
    seed: int, count: int, *, blank: bool = True, queues: int = 4
) -> tuple[bytes, list[message.MessageExt]]:
    """A segment of random messages, some with IPv6 hosts, long topics and unusual properties."""
    rng = random.Random(seed)
    data, made = bytearray(), []
    for number in range(count):
        properties = {"UNIQ_KEY": f"K{number}", "KEYS": "a b", "TAGS": rng.choice(["t", "Ünïcode", "𝄞"])}
        kept = {name: value for name, value in properties.items() if rng.random() < 0.7}
        one = message.MessageExt(
            rng.choice(["orders", "x" * 140, "tøpic", "SCHEDULE_TOPIC_XXXX"]),
            rng.randbytes(rng.choice([0, 1, 15, 16, 17, 31, 33, 200, 1000])),
            message.format_properties(kept),
            queue_id=rng.randrange(queues),
            queue_offset=number,
            physical_offset=BASE + len(data),
            sys_flag=rng.choice([0, 4, 8, 12]),
            store_timestamp=1_700_000_000_000 + number,
            born_host=rng.choice([bytes(8), bytes(20)]),
            store_host=rng.choice([bytes(8), bytes(20)]),
        )
        data += message.encode_record(one)
        made.append(one)
    if blank:
        data += (500).to_bytes(4, "big") + w.BLANK.to_bytes(4, "big") + bytes(492)
    return bytes(data), made


def walk_range(data: bytes, begin: int = 0, stop: int | None = None, rows_max: int = 1000) -> tuple[Any, Any]:
    """Rows and spans of a range, in as many calls as needed."""
    array = np.frombuffer(data, np.uint8)
    stop = len(data) if stop is None else stop
    state = np.zeros(w.STATE_SIZE, np.int64)
    state[w.NEXT] = w.RESYNC if begin else 0
    rows, spans = [], []
    at = -1
    while at < stop:
        table = np.zeros((rows_max, w.COLUMNS), np.int64)
        runs = np.zeros((3, w.SPAN_COLUMNS), np.int64)
        w.walk(array, begin, stop, BASE, len(data), 0, w.NEED_ALL, table, runs, state)
        at = int(state[w.NEXT])
        rows.append(table[: state[w.RECORDS]])
        spans.append(runs[: state[w.SPANS]])
    return np.concatenate(rows), np.concatenate(spans)


def test_crc32_and_xxh64_equal_the_published_functions() -> None:
    data = np.frombuffer(random.Random(1).randbytes(300), np.uint8)
    for size in [*range(200), 255, 300]:
        for crc32 in (digest.crc32, digest._crc32_by_table):
            assert crc32(data, 0, size) == zlib.crc32(data[:size].tobytes())
            assert crc32(data, 300 - size, 300) == zlib.crc32(data[300 - size :].tobytes())

    def xxh64(text: bytes, seed: int = 0) -> int:
        return int(digest.xxh64(np.frombuffer(text, np.uint8), 0, len(text), np.uint64(seed)))

    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc") == 0x44BC2CF5AD770999
    assert xxh64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1
    assert xxh64(b"xxhash", 20141025) == 0xB559B98D844E0635


@pytest.mark.parametrize("rows_max", [1, 7, 1000])
def test_columns_equal_what_the_protocol_decodes(rows_max: int) -> None:
    data, made = segment(1, 60)
    rows, spans = walk_range(data, rows_max=rows_max)
    assert len(rows) == 61
    assert rows[-1][w.MAGIC] == w.BLANK
    for row, one in zip(rows, made, strict=False):
        properties = message.parse_properties(one.properties)
        assert row[w.POSITION] + BASE == one.physical_offset
        assert (row[w.QUEUE_ID], row[w.QUEUE_OFFSET]) == (one.queue_id, one.queue_offset)
        assert (row[w.STORE_TIME], row[w.CRC_OK]) == (one.store_timestamp, 1)
        assert data[row[w.TOPIC_AT] : row[w.TOPIC_AT] + row[w.TOPIC_SIZE]].decode() == one.topic
        assert row[w.TAGS_CODE] == javahash.tags_code(properties.get("TAGS"))
        keys = data[row[w.KEYS_AT] : row[w.KEYS_AT] + row[w.KEYS_SIZE]].decode()
        assert keys == properties.get("KEYS", "")
    assert spans[0][w.SPAN_START] == 0
    assert spans[-1][w.SPAN_END] == len(data)
    assert sum(spans[:, w.SPAN_RECORDS]) == 60


def test_ranges_together_contain_every_record_once() -> None:
    data, _ = segment(2, 80)
    whole, _ = walk_range(data)
    rng = random.Random(3)
    for _ in range(30):
        cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(rng.randrange(1, 12)))})
        parts = [walk_range(data, low, high)[0] for low, high in itertools.pairwise(cuts)]
        assert np.array_equal(np.concatenate(parts), whole)


def test_the_walk_resumes_after_an_invalid_record() -> None:
    data, made = segment(4, 40)
    starts = [one.physical_offset - BASE for one in made] + [len(data) - 500]
    rng = random.Random(5)
    for _ in range(200):
        number = rng.randrange(40)
        broken = bytearray(data)
        at = starts[number] + rng.choice([0, 1, 2, 3, 4, 5, 6, 7, *range(28, 36)])
        broken[at] ^= 1 << rng.randrange(8)
        rows, spans = walk_range(bytes(broken))
        assert [row[w.POSITION] for row in rows] == [at for at in starts if at != starts[number]]
        gaps = [one for one in spans if one[w.SPAN_STOP] in (w.BAD_MAGIC, w.BAD_OFFSET, w.BAD_SIZE)]
        assert [one[w.SPAN_END] for one in gaps] == [starts[number]]


def test_random_bytes_contain_no_record() -> None:
    for seed in range(50):
        rows, _ = walk_range(random.Random(seed).randbytes(5000), seed % 3)
        assert len(rows) == 0


def test_keys_hash_as_in_java() -> None:
    data, made = segment(6, 50)
    rows, _ = walk_range(data)
    hashes, places = np.zeros(1000, np.int64), np.zeros(1000, np.int64)
    array = np.frombuffer(data, np.uint8)
    count = w.key_hashes(array, rows, len(rows), BASE, hashes, places)
    expected = []
    for one in made:
        properties = message.parse_properties(one.properties)
        if one.sys_flag & 0xC == 0xC:
            continue
        names = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        names += [key for key in properties.get("KEYS", "").split(" ") if key]
        expected += [(javahash.key_hash(one.topic, name), one.physical_offset) for name in names]
    assert list(zip(hashes[:count].tolist(), places[:count].tolist(), strict=True)) == expected


def test_text_of_any_length_and_alphabet_hashes_as_in_java() -> None:
    rng = random.Random(7)
    for size in (*range(40), 200):
        text = "".join(rng.choice("azAZ09-") for _ in range(size))
        for other in ("", "é", "𝄞"):
            at = rng.randrange(size + 1)
            data = (text[:at] + other + text[at:]).encode()
            for seed in (0, 0xFFFFFFFF):
                found = w.java_hash(np.frombuffer(b"a" + data, np.uint8), 1, len(data) + 1, np.int64(seed))
                assert int(found) == javahash.unsigned_hash(data.decode(), seed)


@pytest.mark.parametrize("chunk", [1, 777, 4000])
def test_digests_are_those_of_the_units_and_keys_one_by_one(chunk: int) -> None:
    """The range has more queues than a new table has room for."""
    data, made = segment(8, 2000, queues=300)
    array = np.frombuffer(data, np.uint8)
    rows, _ = walk_range(data, rows_max=4000)
    digests = log_digests.LogDigests(BASE, BASE + len(data))
    for begin in range(0, len(rows), chunk):
        digests.add(array, rows[begin : begin + chunk], BASE)
    units: dict[tuple[str, int, int], list[tuple[int, int, int, int]]] = {}
    keys: dict[int, list[tuple[int, int]]] = {}
    for row, one in zip(rows, made, strict=False):
        properties = message.parse_properties(one.properties)
        if not one.sys_flag & 4:  # neither prepared nor rolled back
            key = one.topic, one.queue_id, one.queue_offset >> log_digests.BUCKET_BITS
            tag = 0 if one.topic.startswith("SCHEDULE") else javahash.tags_code(properties.get("TAGS"))
            units.setdefault(key, []).append((one.queue_offset, one.physical_offset, int(row[w.SIZE]), tag))
        if one.sys_flag & 0xC != 0xC:
            names = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
            hashed = [(javahash.key_hash(one.topic, name), one.physical_offset) for name in names if name]
            keys.setdefault(one.physical_offset >> log_digests.BLOCK_BITS, []).extend(hashed)
    topics, buckets = digests.buckets()
    assert len(topics) > 2 * log_digests.BUCKETS_AT_FIRST
    assert {
        (topic, *bucket[[log_digests.QUEUE, log_digests.BUCKET]].tolist()): bucket[
            log_digests.COUNT : log_digests.LAST + 1
        ].tolist()
        for topic, bucket in zip(topics, buckets, strict=True)
    } == {key: [len(found), combined(w.unit_digests, found), *limits(found)] for key, found in units.items()}
    numbers, blocks = digests.blocks_with_keys()
    assert {
        number: block[log_digests.KEYS :].tolist()
        for number, block in zip(numbers.tolist(), blocks, strict=True)
    } == {
        number: [len(found), combined(w.pair_digests, found), max(offset for _, offset in found)]
        for number, found in keys.items()
        if found
    }
    of_log = {
        (BASE + int(row[w.POSITION])) >> log_digests.BLOCK_BITS: row for row in rows
    }  # the last record of each block
    numbers, blocks = digests.blocks()
    assert numbers.tolist() == sorted(of_log)
    assert blocks[:, log_digests.BLOCK_BYTES].sum() == len(data)
    assert np.bitwise_xor.reduce(blocks[:, log_digests.BLOCK_DIGEST]) == np.bitwise_xor.reduce(
        rows[:, w.DIGEST]
    )
    assert blocks[:, log_digests.BLOCK_END].tolist() == [
        BASE + int(row[w.POSITION] + row[w.SIZE]) for _, row in sorted(of_log.items())
    ]
    assert blocks[0, log_digests.BLOCK_LOW] == made[0].store_timestamp
    assert blocks[-1, log_digests.BLOCK_HIGH] == made[-1].store_timestamp


def combined(function: Any, found: list[tuple[int, ...]]) -> int:
    """The digest of units or keys."""
    sums = np.zeros(len(found), np.int64)
    function(*(np.array(column, np.int64) for column in zip(*found, strict=True)), sums)
    return int(np.bitwise_xor.reduce(sums))


def limits(units: list[tuple[int, int, int, int]]) -> list[int]:
    """The lowest and the highest queue offset, and physical offset."""
    offsets, physical = [one[0] for one in units], [one[1] for one in units]
    return [min(offsets), max(offsets), min(physical), max(physical)]
