"""A request with settings has a bound, and settings without escapes are read as those with them."""

from __future__ import annotations

import pytest

from epochmq_protocol import properties
from epochmq_protocol.errors import RequestError
from epochmq_protocol.properties import REQUEST_LINES_MAX


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\r"])
def test_a_request_has_at_most_so_many_lines(separator: bytes) -> None:
    lines = [b"key%d=value" % number for number in range(REQUEST_LINES_MAX)]
    found = properties.parse_request(separator.join([*lines, b""]))
    assert len(found) == REQUEST_LINES_MAX
    with pytest.raises(RequestError, match=f"of {REQUEST_LINES_MAX + 1} lines, expected at most"):
        properties.parse_request(separator.join([*lines, b"more=value", b""]))


@pytest.mark.parametrize(
    "line",
    ["a=b", "a", "a b", "a = b ", "a : =b", "a==b", "=b", " = b", "a\t:\fb c", "a  b=c", "a=\x0bb\x85"],
)
def test_a_line_without_escapes_is_split_as_one_with_them(line: str) -> None:
    escaped = {
        key.removesuffix("x"): value.removesuffix("x")
        for key, value in properties.parse(f"{line}\\x").items()
    }
    assert properties.parse(line) == escaped
