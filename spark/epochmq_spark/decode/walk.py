# pure: bytes of a commit log to columns
"""Walks over the bytes of a commit log segment and finds its records and gaps.

`walk` reads the records that start in a range of a segment. If the range starts inside a record, or meets
bytes that are not a record, it resumes at the next valid position: one where the magic number, the record's
own physical offset and the sizes of its parts are consistent. A span is a sequence of records without a gap
between them. Where a span does not start at the end of the previous one, bytes are missing, or the log has
ended and zeros or old records follow.

`epochmq_protocol.record_layout` defines the format of a record. The rest of a segment after its last message
is one blank record, which counts as a record here.

In a data file of DLedger each record is the body of an entry, behind its header, and a filler takes the place
of the blank record (`epochmq_formats.dledger_log`). There the digest of a record covers the header, too, and
a span also ends where the index of an entry is not the next one or its term is lower."""

from __future__ import annotations

from typing import Any, Final

import numba as nb
import numpy as np

from epochmq_formats.dledger_log import BODY_SIZE_AT as ENTRY_BODY_SIZE_AT
from epochmq_formats.dledger_log import (
    ENTRY_HEADER_SIZE,
    ENTRY_INDEX_AT,
    ENTRY_POSITION_AT,
    ENTRY_SIZE_AT,
    ENTRY_TERM_AT,
    FILLER_MAGIC,
    FILLER_SIZE_MIN,
)
from epochmq_protocol.dledger import ENTRY_MAGIC
from epochmq_protocol.message_const import (
    BLANK_MAGIC,
    BORNHOST_V6_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    STOREHOSTADDRESS_V6_FLAG,
    TRANSACTION_ROLLBACK_TYPE,
)
from epochmq_protocol.record_layout import (
    BLANK_BYTES,
    BODY_CRC_AT,
    BODY_SIZE_BYTES,
    HEAD_BYTES,
    HOST_V6_EXTRA_BYTES,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_OVERHEAD,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from epochmq_spark.decode.digest import Bytes, crc32, mix, xxh64
from epochmq_spark.decode.memory_loads import big_i64, big_u32, little_u32, little_u64

V1: Final = MAGIC_V1 & 0xFFFFFFFF
V2: Final = MAGIC_V2 & 0xFFFFFFFF
BLANK: Final = BLANK_MAGIC & 0xFFFFFFFF
SIZE_MIN: Final = RECORD_OVERHEAD
_FILLER: Final = FILLER_MAGIC & 0xFFFFFFFF
_UNIQ_KEY: Final = np.uint64(int.from_bytes(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX.encode(), "little"))
_KEYS: Final = np.uint32(int.from_bytes(PROPERTY_KEYS.encode(), "little"))
_TAGS: Final = np.uint32(int.from_bytes(PROPERTY_TAGS.encode(), "little"))
"""Names of properties as `little_u64` and `little_u32` read them."""
_MESSAGE_0, _MESSAGE_1, _MESSAGE_2 = V1 >> 24, V1 >> 16 & 0xFF, V1 >> 8 & 0xFF
_BLANK_0, _BLANK_1, _BLANK_2 = BLANK >> 24, BLANK >> 16 & 0xFF, BLANK >> 8 & 0xFF
"""The first bytes of the magic numbers of messages and of blank records."""
_P31_4: Final = 31**4
_P31_8: Final = 31**8 & 0xFFFFFFFF

# Columns of a record, all int64. POSITION is an index into `data`.
POSITION, SIZE, MAGIC, DIGEST, CRC_OK, BODY_AT, BODY_SIZE, TOPIC_AT, TOPIC_SIZE = range(9)
PROPERTIES_AT, PROPERTIES_SIZE, UNIQ_AT, UNIQ_SIZE, KEYS_AT, KEYS_SIZE, TAGS_AT, TAGS_SIZE = range(9, 17)
QUEUE_ID, QUEUE_OFFSET, SYS_FLAG, STORE_TIME, TAGS_CODE, TOPIC_HASH = range(17, 23)
ENTRY_INDEX, ENTRY_TERM = range(23, 25)  # only in a data file of DLedger
COLUMNS: Final = 25

# What to find out about a record beyond its header. Without it, the columns in brackets are 0.
NEED_DIGEST: Final = 1  # DIGEST
NEED_CRC: Final = 2  # CRC_OK
NEED_PROPERTIES: Final = 4  # UNIQ_AT to TAGS_SIZE, TAGS_CODE
NEED_TOPIC: Final = 8  # TOPIC_HASH
NEED_ALL: Final = 15

# Columns of a span, all int64. START and END are indexes into `data`; STOP is one of the constants below.
# The indexes and terms of the first and the last entry are -1 where there is no entry.
SPAN_START, SPAN_END, SPAN_FIRST_TIME, SPAN_LAST_TIME, SPAN_RECORDS, SPAN_STOP = range(6)
SPAN_FIRST_INDEX, SPAN_LAST_INDEX, SPAN_FIRST_TERM, SPAN_LAST_TERM = range(6, 10)
SPAN_COLUMNS: Final = 10

# Why a span ends.
RANGE_END, FILE_END, ZEROS, BAD_MAGIC, BAD_OFFSET, BAD_SIZE, BAD_ORDER = range(7)
STOP_NAMES: Final = ("range", "file", "zeros", "magic", "offset", "size", "order")

# Indexes into `state`.
NEXT, RECORDS, SPANS, OPEN, LAST_INDEX, LAST_TERM = range(6)
STATE_SIZE: Final = 6
RESYNC: Final = -1


@nb.njit(nogil=True, cache=True, inline="always")
def big_i32(data: Bytes, at: int) -> Any:
    """Four bytes, big endian, signed."""
    return np.int64(np.int32(big_u32(data, at)))


@nb.njit(nogil=True, cache=True)
def check_record(data: Bytes, at: int, base: int, end_of_file: int, parts: Any) -> Any:
    """0 if a record starts at `at`; else BAD_MAGIC, BAD_OFFSET or BAD_SIZE. Sets `parts` to size
    and magic, and to the positions and sizes of body, topic and properties."""
    left = end_of_file - at
    parts[:] = 0
    if len(data) - at < BLANK_BYTES:
        return BAD_SIZE
    size = big_u32(data, at)
    magic = big_u32(data, at + MAGIC_AT)
    parts[0] = size
    parts[1] = magic
    if magic == BLANK:
        return 0 if size == left else BAD_SIZE
    if magic != V1 and magic != V2:
        return BAD_MAGIC
    if size < SIZE_MIN or size > len(data) - at:
        return BAD_SIZE
    if big_i64(data, at + PHYSICAL_OFFSET_AT) != base + at:
        return BAD_OFFSET
    flags = big_u32(data, at + SYS_FLAG_AT)
    body_at = at + HEAD_BYTES
    if flags & BORNHOST_V6_FLAG:
        body_at += HOST_V6_EXTRA_BYTES
    if flags & STOREHOSTADDRESS_V6_FLAG:
        body_at += HOST_V6_EXTRA_BYTES
    end = at + size
    if body_at > end:
        return BAD_SIZE
    body_size = big_i32(data, body_at - BODY_SIZE_BYTES)
    topic_at = body_at + body_size + (1 if magic == V1 else 2)
    if body_size < 0 or topic_at + 2 > end:
        return BAD_SIZE
    topic_size = big_u32(data, topic_at - 4) & (0xFF if magic == V1 else 0xFFFF)
    properties_at = topic_at + topic_size + 2
    if properties_at > end:
        return BAD_SIZE
    properties_size = np.int64(data[properties_at - 2]) << 8 | np.int64(data[properties_at - 1])
    if properties_at + properties_size != end:
        return BAD_SIZE
    parts[2] = body_at
    parts[3] = body_size
    parts[4] = topic_at
    parts[5] = topic_size
    parts[6] = properties_at
    parts[7] = properties_size
    return 0


@nb.njit(nogil=True, cache=True)
def check_entry(data: Bytes, at: int, base: int, end_of_file: int, parts: Any) -> Any:
    """0 if an entry starts at `at` whose body is one record, or a filler; else as `check_record`. Sets
    `parts` to those of the record; for a filler to those of a blank record."""
    parts[:] = 0
    if len(data) - at < FILLER_SIZE_MIN:
        return BAD_SIZE
    magic = big_u32(data, at)
    size = big_u32(data, at + ENTRY_SIZE_AT)
    parts[0] = size
    parts[1] = magic
    if magic == _FILLER:
        parts[1] = BLANK
        return 0 if size == end_of_file - at else BAD_SIZE
    if magic != ENTRY_MAGIC:
        return BAD_MAGIC
    if size < ENTRY_HEADER_SIZE + SIZE_MIN or size > len(data) - at:
        return BAD_SIZE
    if big_i64(data, at + ENTRY_POSITION_AT) != base + at:
        return BAD_OFFSET
    body_size = size - ENTRY_HEADER_SIZE
    if big_u32(data, at + ENTRY_BODY_SIZE_AT) != body_size:
        return BAD_SIZE
    fault = check_record(data, at + ENTRY_HEADER_SIZE, base, end_of_file, parts)
    if fault == 0 and (parts[0] != body_size or parts[1] == BLANK):
        fault = BAD_SIZE
    if fault != 0:
        parts[1] = magic  # the entry is not zero
    return fault


@nb.njit(nogil=True, cache=True)
def next_entry(data: Bytes, at: int, stop: int, base: int, end_of_file: int, parts: Any) -> Any:
    """The first position in [at, stop) at which an entry or a filler starts; `stop` if there is none."""
    body = ENTRY_HEADER_SIZE
    while at < stop:
        if at + FILLER_SIZE_MIN > len(data):
            return stop
        has_body = at + body + 12 <= len(data)
        # No entry starts in eight bytes if zeros are where the magic numbers of their records would be.
        if has_body and little_u64(data, at + body + MAGIC_AT) == 0 and little_u64(data, at) == 0:
            at += 8
            continue
        is_head = data[at] == 0xFF and data[at + 1] == 0xFF
        magic_at = at + body + MAGIC_AT
        is_body = has_body and data[magic_at] == _MESSAGE_0 and data[magic_at + 1] == _MESSAGE_1
        if (is_head or is_body) and check_entry(data, at, base, end_of_file, parts) == 0:
            return at
        at += 1
    return stop


@nb.njit(nogil=True, cache=True)
def next_record(data: Bytes, at: int, stop: int, base: int, end_of_file: int, parts: Any) -> Any:
    """The first position in [at, stop) at which a record starts; `stop` if there is none."""
    while at < stop:
        if at + BLANK_BYTES > len(data):
            return stop
        magic_at = at + MAGIC_AT
        # Most of the skipped bytes are zeros: skip eight at once where a magic number would be.
        if magic_at + 8 <= len(data) and little_u64(data, magic_at) == 0:
            at += 8
            continue
        third = data[magic_at + 2]  # the magic numbers of messages and of blank records differ here
        if (
            (third == _MESSAGE_2 and data[magic_at] == _MESSAGE_0 and data[magic_at + 1] == _MESSAGE_1)
            or (third == _BLANK_2 and data[magic_at] == _BLANK_0 and data[magic_at + 1] == _BLANK_1)
        ) and check_record(data, at, base, end_of_file, parts) == 0:
            return at
        at += 1
    return stop


@nb.njit(nogil=True, cache=True)
def java_hash(data: Bytes, start: int, end: int, seed: Any) -> Any:
    """Java's String.hashCode of UTF-8 bytes, continued from the hash `seed`. Both are unsigned, in an int64.
    Each byte that is not valid UTF-8 counts as U+FFFD."""
    mask = np.int64(0xFFFFFFFF)
    total = np.int64(seed)
    at = start
    while at < end:
        # Eight bytes of ASCII at a time: one multiplication of the hash so far instead of eight.
        while end - at >= 8 and little_u64(data, at) & np.uint64(0x8080808080808080) == 0:
            high = ((np.int64(data[at]) * 31 + data[at + 1]) * 31 + data[at + 2]) * 31 + data[at + 3]
            low = ((np.int64(data[at + 4]) * 31 + data[at + 5]) * 31 + data[at + 6]) * 31 + data[at + 7]
            total = (total * _P31_8 + high * _P31_4 + low) & mask
            at += 8
        if at == end:
            break
        first = np.int64(data[at])
        if first < 0x80:
            total = (total * 31 + first) & mask
            at += 1
            continue
        extra = 1 if 0xC2 <= first < 0xE0 else 2 if 0xE0 <= first < 0xF0 else 3 if 0xF0 <= first < 0xF5 else 0
        code = first & (0x3F >> extra)
        is_valid = extra > 0 and at + extra < end
        if is_valid:
            for index in range(extra):
                follower = np.int64(data[at + 1 + index])
                if follower & 0xC0 != 0x80:
                    is_valid = False
                code = code << 6 | (follower & 0x3F)
        if not is_valid:
            total = (total * 31 + 0xFFFD) & mask
            at += 1
            continue
        at += 1 + extra
        if code >= 0x10000:
            code -= 0x10000
            total = (total * 31 + (0xD800 | code >> 10)) & mask
            code = 0xDC00 | (code & 0x3FF)
        total = (total * 31 + code) & mask
    return total


@nb.njit(nogil=True, cache=True)
def _properties(data: Bytes, start: int, end: int, row: Any) -> None:
    """Finds UNIQ_KEY, KEYS and TAGS. Of repeated names, the last one with a value counts."""
    at = start
    while at < end:
        stop = at
        split = at - 1  # none yet
        while stop < end and data[stop] != 2:
            if data[stop] == 1 and split < at:
                split = stop
            stop += 1
        if split > at and stop > split + 1:
            size = split - at
            if size == 8:
                if little_u64(data, at) == _UNIQ_KEY:
                    row[UNIQ_AT] = split + 1
                    row[UNIQ_SIZE] = stop - split - 1
            elif size == 4:
                name = little_u32(data, at)
                if name == _KEYS:
                    row[KEYS_AT] = split + 1
                    row[KEYS_SIZE] = stop - split - 1
                elif name == _TAGS:
                    row[TAGS_AT] = split + 1
                    row[TAGS_SIZE] = stop - split - 1
        at = stop + 1


@nb.njit(nogil=True, cache=True)
def _record(data: Bytes, at: int, header: int, base: int, needed: int, parts: Any, row: Any) -> None:
    """Fills the columns of the record at `at`, by the `parts` of `check_record`. It is preceded by the header
    of its entry, of `header` bytes."""
    row[:] = 0
    size, magic = parts[0], parts[1]
    row[POSITION] = at
    row[SIZE] = size
    row[MAGIC] = magic
    if needed & NEED_DIGEST:
        row[DIGEST] = np.int64(xxh64(data, at - header, min(at + size, len(data)), np.uint64(base + at)))
    row[CRC_OK] = 1 if needed & NEED_CRC else 0
    if header:
        row[ENTRY_INDEX] = big_i64(data, at - header + ENTRY_INDEX_AT)
        row[ENTRY_TERM] = big_i64(data, at - header + ENTRY_TERM_AT)
    if magic == BLANK:
        return
    row[BODY_AT], row[BODY_SIZE], row[TOPIC_AT], row[TOPIC_SIZE] = parts[2], parts[3], parts[4], parts[5]
    row[PROPERTIES_AT], row[PROPERTIES_SIZE] = parts[6], parts[7]
    if needed & NEED_CRC:
        crc = np.int64(crc32(data, parts[2], parts[2] + parts[3])) & 0x7FFFFFFF
        row[CRC_OK] = 1 if crc == big_u32(data, at + BODY_CRC_AT) else 0
    row[QUEUE_ID] = big_i32(data, at + QUEUE_ID_AT)
    row[QUEUE_OFFSET] = big_i64(data, at + QUEUE_OFFSET_AT)
    flags = big_u32(data, at + SYS_FLAG_AT)
    row[SYS_FLAG] = np.int64(np.int32(flags))
    shift = HOST_V6_EXTRA_BYTES if flags & BORNHOST_V6_FLAG else 0
    row[STORE_TIME] = big_i64(data, at + STORE_TIMESTAMP_AT + shift)
    if needed & NEED_PROPERTIES:
        _properties(data, parts[6], parts[6] + parts[7], row)
        if row[TAGS_SIZE]:
            row[TAGS_CODE] = np.int64(
                np.int32(java_hash(data, row[TAGS_AT], row[TAGS_AT] + row[TAGS_SIZE], np.int64(0)))
            )
    if needed & NEED_TOPIC:
        row[TOPIC_HASH] = np.int64(xxh64(data, parts[4], parts[4] + parts[5], np.uint64(0)))


@nb.njit(nogil=True, cache=True)
def _open_span(spans: Any, span: int, at: int) -> None:
    spans[span, :] = 0
    spans[span, SPAN_START] = at
    spans[span, SPAN_END] = at
    spans[span, SPAN_FIRST_INDEX] = -1
    spans[span, SPAN_LAST_INDEX] = -1
    spans[span, SPAN_FIRST_TERM] = -1
    spans[span, SPAN_LAST_TERM] = -1


@nb.njit(nogil=True, cache=True)
def walk(
    data: Bytes,
    begin: int,
    stop: int,
    base: int,
    end_of_file: int,
    header: int,
    needed: int,
    rows: Any,
    spans: Any,
    state: Any,
) -> None:
    """Reads the records that start in [max(begin, state[NEXT]), stop) into `rows`, until `rows` or `spans` is
    full. Call it again with emptied tables while state[NEXT] < stop.

    `data` is a segment, or a window of it that extends far enough beyond `stop` to hold the last record.
    `base` is the physical offset of its first byte, `end_of_file` the end of the segment's file; all
    positions count from the window's start. `header` is ENTRY_HEADER_SIZE in a data file of DLedger, where
    the entries start in the range, and 0 otherwise. `needed`: a sum of NEED_…. `state`: NEXT (before the
    first call 0, or RESYNC if the range begins inside the segment), RECORDS and SPANS (rows filled), OPEN (1:
    the last span continues in the next call), LAST_INDEX and LAST_TERM of an open span's last entry (-1: none
    yet)."""
    parts = np.zeros(8, np.int64)
    at = max(begin, state[NEXT])
    count = np.int64(0)
    span = np.int64(-1)
    if state[OPEN]:
        span = np.int64(0)
        _open_span(spans, 0, at)
    elif state[NEXT] == RESYNC:
        if header:
            at = next_entry(data, at, stop, base, end_of_file, parts)
        else:
            at = next_record(data, at, stop, base, end_of_file, parts)
    while at < stop and count < len(rows):
        if header:
            fault = check_entry(data, at, base, end_of_file, parts)
        else:
            fault = check_record(data, at, base, end_of_file, parts)
        if fault != 0:
            if fault == BAD_MAGIC and parts[0] == 0 and parts[1] == 0:
                fault = ZEROS
            if span < 0 or state[OPEN] == 0:
                if span + 1 == len(spans):
                    break
                span += 1
                _open_span(spans, span, at)
            spans[span, SPAN_STOP] = fault
            state[OPEN] = 0
            if header:
                at = next_entry(data, at + 1, stop, base, end_of_file, parts)
            else:
                at = next_record(data, at + 1, stop, base, end_of_file, parts)
            continue
        is_entry = header > 0 and parts[1] != BLANK
        if is_entry and state[OPEN] and state[LAST_INDEX] >= 0:
            follows = big_i64(data, at + ENTRY_INDEX_AT) == state[LAST_INDEX] + 1
            if not follows or big_i64(data, at + ENTRY_TERM_AT) < state[LAST_TERM]:
                spans[span, SPAN_STOP] = BAD_ORDER
                state[OPEN] = 0
        if state[OPEN] == 0:
            if span + 1 == len(spans):
                break
            span += 1
            _open_span(spans, span, at)
            state[OPEN] = 1
            state[LAST_INDEX] = -1
        row = rows[count]
        if is_entry:
            at += header
            _record(data, at, header, base, needed, parts, row)
            state[LAST_INDEX] = row[ENTRY_INDEX]
            state[LAST_TERM] = row[ENTRY_TERM]
            if spans[span, SPAN_FIRST_INDEX] < 0:
                spans[span, SPAN_FIRST_INDEX] = row[ENTRY_INDEX]
                spans[span, SPAN_FIRST_TERM] = row[ENTRY_TERM]
            spans[span, SPAN_LAST_INDEX] = row[ENTRY_INDEX]
            spans[span, SPAN_LAST_TERM] = row[ENTRY_TERM]
        else:
            _record(data, at, 0, base, needed, parts, row)
            if header:  # nothing but the head of a filler is written, so old bytes may follow
                row[DIGEST] = 0
        count += 1
        at += parts[0]
        spans[span, SPAN_END] = at
        if parts[1] != BLANK:
            spans[span, SPAN_RECORDS] += 1
            spans[span, SPAN_LAST_TIME] = row[STORE_TIME]
            if spans[span, SPAN_FIRST_TIME] == 0:
                spans[span, SPAN_FIRST_TIME] = row[STORE_TIME]
    if at >= stop and state[OPEN]:
        spans[span, SPAN_STOP] = FILE_END if at >= end_of_file else RANGE_END
    state[NEXT] = at
    state[RECORDS] = count
    state[SPANS] = span + 1


@nb.njit(nogil=True, cache=True)
def read_records(
    data: Bytes, starts: Any, base: int, end_of_file: int, header: int, needed: int, rows: Any
) -> Any:
    """Reads the messages that start at these positions into `rows`, one row for each. Returns how many there
    are before the first position at which no message starts."""
    parts = np.zeros(8, np.int64)
    for number in range(len(starts)):
        at = starts[number]
        if at < header or at >= len(data):
            return number
        if header:
            fault = check_entry(data, at - header, base, end_of_file, parts)
        else:
            fault = check_record(data, at, base, end_of_file, parts)
        if fault != 0 or parts[1] == BLANK:
            return number
        _record(data, at, header, base, needed, parts, rows[number])
    return len(starts)


@nb.njit(nogil=True, cache=True)
def key_hashes(data: Bytes, rows: Any, count: int, base: int, hashes: Any, positions: Any) -> Any:
    """Computes the index entries of records (`IndexFile`: the hash of `topic#key`, and the physical offset),
    at most len(hashes). Returns how many there are."""
    found = 0
    topic_size, topic_hash, seed = np.int64(-1), np.int64(0), np.int64(0)
    for at in range(count):
        row = rows[at]
        if row[MAGIC] == BLANK or row[SYS_FLAG] & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_ROLLBACK_TYPE:
            continue
        if row[UNIQ_SIZE] == 0 and row[KEYS_SIZE] == 0:
            continue
        if row[TOPIC_SIZE] != topic_size or row[TOPIC_HASH] != topic_hash:
            topic_size, topic_hash = row[TOPIC_SIZE], row[TOPIC_HASH]
            seed = java_hash(data, row[TOPIC_AT], row[TOPIC_AT] + topic_size, np.int64(0))
            seed = (seed * 31 + 35) & np.int64(0xFFFFFFFF)
        starts = row[UNIQ_AT]
        for part in range(2):
            start = row[UNIQ_AT] if part == 0 else row[KEYS_AT]
            end = start + (row[UNIQ_SIZE] if part == 0 else row[KEYS_SIZE])
            starts = start
            while starts < end:
                stop = starts
                while stop < end and not (part == 1 and data[stop] == 32):
                    stop += 1
                if stop > starts:
                    if found < len(hashes):
                        value = np.int64(np.int32(java_hash(data, starts, stop, seed)))
                        hashes[found] = 0 if value == -0x80000000 else abs(value)
                        positions[found] = base + row[POSITION]
                    found += 1
                starts = stop + 1
    return found


@nb.njit(nogil=True, cache=True)
def unit_digests(offsets: Any, physical: Any, sizes: Any, tags: Any, out: Any) -> None:
    """Computes a number for each (queue offset, physical offset, size, tag code), to be combined into a
    digest."""
    for at in range(len(offsets)):
        value = mix(np.uint64(offsets[at]) + np.uint64(0x9E3779B97F4A7C15))
        value = mix(value + np.uint64(physical[at]))
        value = mix(value + np.uint64(sizes[at]))
        out[at] = np.int64(mix(value + np.uint64(tags[at])))


@nb.njit(nogil=True, cache=True)
def pair_digests(left: Any, right: Any, out: Any) -> None:
    """Computes a number for each pair, to be combined into a digest."""
    for at in range(len(left)):
        value = mix(np.uint64(left[at]) + np.uint64(0x9E3779B97F4A7C15))
        out[at] = np.int64(mix(value + np.uint64(right[at])))


@nb.njit(nogil=True, cache=True)
def gather(data: Bytes, starts: Any, sizes: Any, offsets: Any, out: Bytes) -> None:
    """Copies slices of `data` one after the other into `out`, and sets `offsets` to their ends (len + 1
    numbers)."""
    at = 0
    offsets[0] = 0
    for number in range(len(starts)):
        start, size = starts[number], sizes[number]
        out[at : at + size] = data[start : start + size]
        at += size
        offsets[number + 1] = at
