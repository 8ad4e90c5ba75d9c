# pure: Arrow schemas
"""Declares the columns of every table as Arrow schemas. docs/audit.md explains the columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_REPLICA = [("group", pa.string()), ("replica", pa.string())]
_TIME: Final = pa.timestamp("us", tz="UTC")

EPOCHS: Final = pa.schema(
    [
        *_REPLICA,
        ("file", pa.string()),
        ("line", pa.int32()),
        ("epoch", pa.int64()),
        ("start_offset", pa.int64()),
        ("fault", pa.string()),
    ]
)
"""One row for each entry of an epoch file, in the file's order. `fault` describes what is wrong with the
whole file."""

RECORDS: Final = pa.schema(
    [
        *_REPLICA,
        ("segment", pa.int64()),
        ("physical_offset", pa.int64()),
        ("size", pa.int64()),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("store_timestamp", pa.int64()),
        ("sys_flag", pa.int32()),
        ("crc_ok", pa.bool_()),
        ("body_size", pa.int32()),
        ("tags_code", pa.int64()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("uniq_key", pa.string()),
        ("digest", pa.int64()),
        ("store_time", _TIME),
        ("born_time", _TIME),
        ("born_host", pa.string()),
        ("store_host", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("entry_index", pa.int64()),
        ("term", pa.int64()),
    ]
)
"""One row for each message, and for the blank record at the end of a segment, which has only sizes. Times
outside the years 1970 to 9999 are null. `body` is as stored, perhaps compressed; null without the option
`body`. `entry_index` and `term` are those of the entry of a DLedger log that holds the message; null in other
logs."""

RECORD_COLUMNS: Final = pa.schema([*RECORDS, ("properties_text", pa.string())])
"""All columns of a message that can be asked for. `properties_text` are the properties as stored: name, 0x01,
value and 0x02 for each of them."""

UNITS: Final = pa.schema(
    [
        *_REPLICA,
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("size", pa.int32()),
        ("tags_code", pa.int64()),
    ]
)

INDEX: Final = pa.schema(
    [
        *_REPLICA,
        ("file", pa.string()),
        ("number", pa.int32()),
        ("key_hash", pa.int64()),
        ("physical_offset", pa.int64()),
        ("seconds", pa.int32()),
        ("previous", pa.int32()),
    ]
)

OFFSETS: Final = pa.schema(
    [
        *_REPLICA,
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("fault", pa.string()),
    ]
)

STATE: Final = pa.schema(
    [
        *_REPLICA,
        ("file", pa.string()),
        ("topic", pa.string()),
        ("consumer_group", pa.string()),
        ("queue_id", pa.int32()),
        ("content", pa.string()),
        ("fault", pa.string()),
    ]
)
"""One row for each entry of a state file. `fault` describes what contradicts itself in it."""

TIMER_LOG: Final = pa.schema(
    [
        *_REPLICA,
        ("position", pa.int64()),
        ("previous", pa.int64()),
        ("magic", pa.int32()),
        ("due_time", pa.int64()),
        ("physical_offset", pa.int64()),
        ("size", pa.int32()),
        ("topic_hash", pa.int32()),
    ]
)

TIMER_WHEEL: Final = pa.schema(
    [
        *_REPLICA,
        ("slot", pa.int64()),
        ("time", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("num", pa.int32()),
    ]
)
"""`time` is a number of units of the wheel's precision, 1 s by default."""

EXTENSION: Final = pa.schema(
    [
        *_REPLICA,
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("address", pa.int64()),
        ("tags_code", pa.int64()),
        ("store_timestamp", pa.int64()),
        ("bit_map", pa.binary()),
        ("fault", pa.string()),
    ]
)

SUMMARY: Final = pa.schema(
    [
        *_REPLICA,
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("at", pa.int64()),
        ("end", pa.int64()),
        ("count", pa.int64()),
        ("digest", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("first", pa.int64()),
        ("detail", pa.string()),
        ("first_index", pa.int64()),
        ("last_index", pa.int64()),
        ("first_term", pa.int64()),
        ("last_term", pa.int64()),
    ]
)
"""The digests of one pass over the files. `decode.summary_rows` defines the numbers of each kind of row."""

FINDINGS: Final = pa.schema(
    [
        ("group", pa.string()),
        ("replica", pa.string()),
        ("kind", pa.string()),
        ("severity", pa.string()),
        ("epoch", pa.int64()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("file", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("key", pa.string()),
        ("message_id", pa.string()),
        ("store_timestamp", pa.int64()),
        ("detail", pa.string()),
    ]
)
