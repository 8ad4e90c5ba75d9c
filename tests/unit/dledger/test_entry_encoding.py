"""Which bytes count as the header of an entry."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from epochmq_dledger.store.entry_encoding import is_valid_header
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE
from epochmq_protocol.dledger import ENTRY_MAGIC

POSITION, ROOM = 400, 1000
FIELDS = ("magic", "size", "index", "term", "position", "channel", "chain", "crc", "length")


def header(**changed: Any) -> bytes:
    """The header of an entry of 10 bytes, without the chain's checksum."""
    values = dict.fromkeys(FIELDS, 0)
    values |= {"magic": ENTRY_MAGIC, "size": ENTRY_HEADER_SIZE + 10, "position": POSITION, "length": 10}
    return struct.pack(">iiqqqiiii", *(values | changed).values())


def test_a_header_at_its_position_is_valid() -> None:
    assert len(header()) == ENTRY_HEADER_SIZE
    assert is_valid_header(header(), POSITION, ROOM)
    assert is_valid_header(header(), POSITION, ENTRY_HEADER_SIZE + 10)


@pytest.mark.parametrize(
    "changed",
    [
        {"magic": 2},
        {"position": POSITION + 1},
        {"index": -1},
        {"length": -1, "size": ENTRY_HEADER_SIZE - 1},
        {"size": ENTRY_HEADER_SIZE},
        {"size": ROOM + 1, "length": ROOM + 1 - ENTRY_HEADER_SIZE},
        {"chain": 1 << 16},
    ],
    ids=str,
)
def test_any_other_bytes_are_no_header(changed: dict[str, int]) -> None:
    assert not is_valid_header(header(**changed), POSITION, ROOM)
