# pure: bytes of records to columns
"""Decodes the parts of messages that the walk does not: texts, times, hosts, properties and bodies.

`epochmq_protocol.record_layout` defines the layout of a record."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochmq_protocol import message
from epochmq_protocol.message_const import BORNHOST_V6_FLAG, STOREHOSTADDRESS_V6_FLAG
from epochmq_protocol.record_layout import (
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    HOST_BYTES,
    HOST_V6_BYTES,
    HOST_V6_EXTRA_BYTES,
    STORE_HOST_AT,
)
from epochmq_spark.decode import property_entries
from epochmq_spark.decode import walk as w

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last one that Spark and Python can show."""

Array = Any


def timestamps(milliseconds: Array, unknown: Array) -> pa.Array:
    """Times in epoch milliseconds as timestamps; null where `unknown`, and outside the years 1970 to 9999."""
    masked = unknown | (milliseconds < 0) | (milliseconds > TIME_MS_MAX)
    return pa.array(np.where(masked, 0, milliseconds) * 1000, pa.timestamp("us", tz="UTC"), mask=masked)


def born_times(data: Array, rows: Array) -> Array:
    """The born time of each message in epoch ms; 0 for a blank record."""
    times = np.zeros(len(rows), np.int64)
    chosen = np.flatnonzero(rows[:, w.MAGIC] != w.BLANK)
    if len(chosen):
        places = rows[chosen, w.POSITION][:, None] + np.arange(BORN_TIMESTAMP_AT, BORN_HOST_AT)
        times[chosen] = np.ascontiguousarray(data[places]).view(">i8")[:, 0]
    return times


def slices(data: Array, starts: Array, sizes: Array, null: Array | None = None) -> pa.Array:
    """Slices of the log as binary values, null where `null` is true. They have less than 2 GiB together."""
    offsets, out = _gathered(data, starts, sizes)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [_validity(null), offsets, out])


def texts(data: Array, starts: Array, sizes: Array, null: Array | None = None) -> pa.Array:
    """Slices of the log as strings, null where `null` is true. Bytes that are not UTF-8 are replaced."""
    try:
        return _valid_texts(data, starts, sizes, null)
    except pa.ArrowInvalid:
        raw = slices(data, starts, sizes, null).to_pylist()
        return pa.array([None if one is None else one.decode("utf-8", "replace") for one in raw], pa.string())


def _valid_texts(data: Array, starts: Array, sizes: Array, null: Array | None = None) -> pa.Array:
    """As `texts`. Raises ArrowInvalid if not all bytes are UTF-8."""
    offsets, out = _gathered(data, starts, sizes)
    found = pa.Array.from_buffers(pa.string(), len(sizes), [_validity(null), offsets, out])
    found.validate(full=True)
    return found


def _gathered(data: Array, starts: Array, sizes: Array) -> tuple[pa.Buffer, pa.Buffer]:
    starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
    offsets, out = np.empty(len(sizes) + 1, np.int32), np.empty(int(sizes.sum()), np.uint8)
    w.gather(data, starts, sizes, offsets, out)
    return pa.py_buffer(offsets), pa.py_buffer(out)


def _validity(null: Array | None) -> pa.Buffer | None:
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))


def host_text(host: bytes) -> str:
    """A stored host as `address:port`; an IPv6 address is in brackets."""
    port = int.from_bytes(host[-4:], "big")
    if len(host) == HOST_BYTES:
        return f"{IPv4Address(host[:4])}:{port}"
    return f"[{IPv6Address(host[:16])}]:{port}"


def born_hosts(data: Array, rows: Array) -> pa.Array:
    """The born host of each message; null for a blank record."""
    return _hosts(data, rows, np.full(len(rows), BORN_HOST_AT), BORNHOST_V6_FLAG)


def store_hosts(data: Array, rows: Array) -> pa.Array:
    """The store host of each message; null for a blank record."""
    is_v6 = rows[:, w.SYS_FLAG] & BORNHOST_V6_FLAG != 0
    places = STORE_HOST_AT + np.where(is_v6, HOST_V6_EXTRA_BYTES, 0)
    return _hosts(data, rows, places, STOREHOSTADDRESS_V6_FLAG)


def _hosts(data: Array, rows: Array, places: Array, v6_flag: int) -> pa.Array:
    """The hosts at these places of the records. There are few different ones, so each is formatted once."""
    is_blank, is_v6 = rows[:, w.MAGIC] == w.BLANK, rows[:, w.SYS_FLAG] & v6_flag != 0
    numbers = np.full(len(rows), -1)
    names: list[str] = []
    for chosen, size in ((~is_blank & ~is_v6, HOST_BYTES), (~is_blank & is_v6, HOST_V6_BYTES)):
        at = np.flatnonzero(chosen)
        if len(at):
            starts = rows[at, w.POSITION] + places[at]
            raw = np.ascontiguousarray(data[starts[:, None] + np.arange(size)]).view(f"V{size}")[:, 0]
            if size == HOST_BYTES:
                raw = raw.view(np.uint64)
            found, inverse = np.unique(raw, return_inverse=True)
            numbers[at] = inverse + len(names)
            names += [host_text(one.tobytes()) for one in found]
    return pa.array(names, pa.string()).take(pa.array(numbers, mask=is_blank))


def properties(data: Array, rows: Array) -> pa.Array:
    """The properties of each message as a map; null for a blank record."""
    is_blank = rows[:, w.MAGIC] == w.BLANK
    starts, sizes = (np.ascontiguousarray(rows[:, at]) for at in (w.PROPERTIES_AT, w.PROPERTIES_SIZE))
    ends = np.empty(len(rows) + 1, np.int32)
    entries = np.empty((int(((sizes + 1) // 4).sum()), property_entries.COLUMNS), np.int64)
    found = entries[: property_entries.find_entries(data, starts, sizes, ends, entries)]
    kind = pa.map_(pa.string(), pa.string())
    try:
        names = _valid_texts(data, found[:, property_entries.NAME_AT], found[:, property_entries.NAME_SIZE])
        values = _valid_texts(
            data, found[:, property_entries.VALUE_AT], found[:, property_entries.VALUE_SIZE]
        )
    except pa.ArrowInvalid:  # two names may be equal only after their bytes were replaced
        raw = zip(starts.tolist(), sizes.tolist(), is_blank.tolist(), strict=True)
        maps = [
            None if blank else list(message.parse_properties(bytes(data[at : at + size])).items())
            for at, size, blank in raw
        ]
        return pa.array(maps, kind)
    pairs = pa.StructArray.from_arrays([names, values], fields=[*_PAIR])
    buffers = [_validity(is_blank), pa.py_buffer(ends)]
    return pa.Array.from_buffers(kind, len(rows), buffers, children=[pairs])


_PAIR: Final = (pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))
