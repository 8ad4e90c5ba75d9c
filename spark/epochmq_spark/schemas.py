# pure: Arrow schemas
"""Declares the columns of every table as Arrow schemas. docs/audit.md explains the columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_REPLICA = [("group", pa.string()), ("replica", pa.string())]

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
    ]
)

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
