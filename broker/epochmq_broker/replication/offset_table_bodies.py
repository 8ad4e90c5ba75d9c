"""Decodes the tables of consumer offsets (43) and delay offsets (45) that brokers send each other
(ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper)."""

from __future__ import annotations

import asyncio
import re

import msgspec

from epochmq_protocol.bodies import from_json
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.topics import DataVersion

SLICE = 1000
"""Entries of an offset table that are decoded before the event loop serves other work."""


class OffsetTableBody(msgspec.Struct, rename="camel"):
    """Response to GET_ALL_CONSUMER_OFFSET (43): `topic@group` → queue → offset."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[str, dict[Int, Long]] = {}
    lmq_offset_table: dict[str, Long] | None = None


class DelayOffsetTableBody(msgspec.Struct, rename="camel"):
    """Response to GET_ALL_DELAY_OFFSET (45): level → offset."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[Int, Long] = {}


def decode_delay_offsets(body: bytes) -> DelayOffsetTableBody:
    """Decodes the delay offsets. Raises BodyError."""
    return from_json(DelayOffsetTableBody, body)


async def decode_consumer_offsets(body: bytes) -> OffsetTableBody:
    """Decodes the consumer offsets; in slices, as a large table takes long. Raises BodyError."""
    quoted = await _quote_keys(body)
    try:
        return _decode(quoted)
    except ValueError:  # not in the form that brokers write
        return from_json(OffsetTableBody, body)


_decode = msgspec.json.Decoder(OffsetTableBody).decode
_NUMBER_AS_KEY = re.compile(rb"([{,])(\d+):")


async def _quote_keys(body: bytes) -> bytes:
    """Turns an offset table into strict JSON, with queue ids in quotes."""
    entries = body.split(b"},")
    quoted = []
    for start in range(0, len(entries), SLICE):
        if start:
            await asyncio.sleep(0)
        quoted.append(_NUMBER_AS_KEY.sub(rb'\1"\2":', b"},".join(entries[start : start + SLICE])))
    return b"},".join(quoted)
