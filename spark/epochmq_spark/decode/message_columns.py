# pure: bytes of records to columns
"""Decodes the parts of messages that the walk does not: times, hosts, properties and bodies.

`epochmq_protocol.record_layout` defines the layout of a record."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochmq_protocol import message
from epochmq_protocol.message_const import BORNHOST_V6_FLAG
from epochmq_protocol.record_layout import (
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    HEAD_BYTES,
    HOST_BYTES,
    HOST_V6_BYTES,
    STORE_HOST_AT,
    STORE_TIMESTAMP_AT,
)
from epochmq_spark.decode import walk as w

_BEHIND_HOSTS: Final = HEAD_BYTES - STORE_HOST_AT - HOST_BYTES
"""The bytes of the head behind the store host: reconsume times, prepared offset and body length."""
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


def host_text(host: bytes) -> str:
    """A stored host as `address:port`; an IPv6 address is in brackets."""
    port = int.from_bytes(host[-4:], "big")
    if len(host) == HOST_BYTES:
        return f"{IPv4Address(host[:4])}:{port}"
    return f"[{IPv6Address(host[:16])}]:{port}"


def hosts(data: Array, rows: Array) -> tuple[list[str | None], list[str | None]]:
    """The born host and the store host of each message; None for a blank record."""
    known: dict[bytes, str] = {}
    born: list[str | None] = []
    stored: list[str | None] = []
    columns = rows[:, [w.POSITION, w.BODY_AT, w.SYS_FLAG, w.MAGIC]].tolist()
    for position, body_at, flags, magic in columns:
        if magic == w.BLANK:
            born.append(None)
            stored.append(None)
            continue
        at = position + BORN_HOST_AT
        end = at + (HOST_V6_BYTES if flags & BORNHOST_V6_FLAG else HOST_BYTES)
        store_host_at = end + STORE_HOST_AT - STORE_TIMESTAMP_AT
        for out, start, stop in ((born, at, end), (stored, store_host_at, body_at - _BEHIND_HOSTS)):
            raw = bytes(data[start:stop])
            if raw not in known:
                known[raw] = host_text(raw)
            out.append(known[raw])
    return born, stored


def properties(data: Array, rows: Array) -> list[list[tuple[str, str]] | None]:
    """The properties of each message; None for a blank record."""
    columns = rows[:, [w.PROPERTIES_AT, w.PROPERTIES_SIZE, w.MAGIC]].tolist()
    return [
        None if magic == w.BLANK else list(message.parse_properties(bytes(data[at : at + size])).items())
        for at, size, magic in columns
    ]


def bodies(data: Array, rows: Array) -> Sequence[bytes | None]:
    """The body of each message as stored; None for a blank record."""
    columns = rows[:, [w.BODY_AT, w.BODY_SIZE, w.MAGIC]].tolist()
    return [None if magic == w.BLANK else bytes(data[at : at + size]) for at, size, magic in columns]
