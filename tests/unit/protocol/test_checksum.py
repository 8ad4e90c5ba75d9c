"""The CRC-32 of records is zlib's, for every size and continued from any part."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from epochmq_protocol.checksum import crc32


@given(data=st.binary(max_size=5000), start=st.integers(0, 0xFFFF_FFFF))
def test_it_is_zlibs(data: bytes, start: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data, start) == zlib.crc32(data, start)


def test_it_takes_views_and_long_buffers() -> None:
    data = bytes(range(256)) * 8192
    assert crc32(memoryview(data)[3:]) == zlib.crc32(data[3:])
    assert crc32(bytearray(data)) == zlib.crc32(data)
