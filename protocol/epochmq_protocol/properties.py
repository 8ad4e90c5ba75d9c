"""Parses, formats and edits Java .properties text.

broker.conf, namesrv.conf and the bodies of the config requests (25, 26, 318, 319) have this format.

- `parse` follows java.util.Properties.load: `#` and `!` comments; `=`, `:` or a blank between key and value;
  a backslash at the end of a line joins the next one; `\\uXXXX` and the usual escapes. Unlike Java it reads
  Unicode text and never fails: a malformed `\\u` escape keeps its letters.
- `format` is MixAll.properties2String: `key=value` lines without escapes.
- `rewrite` changes single keys and keeps everything else, comments and order included. RocketMQ instead
  overwrites the file with every key it knows when one is updated at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

REQUEST_BYTES_MAX = 65_536
"""The longest text that a request may carry. All settings of a broker with their values have 25 kB."""
REQUEST_LINES_MAX = 600
"""The lines of the text that a request may carry. A broker has less than 500 settings."""
_BLANK = " \t\f"
_WITHOUT_ESCAPES = re.compile("([^=: \t\f]*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
"""The key and the value of a logical line without backslashes."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """The keys and values of a properties text, in order; a later key replaces an earlier one."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        found[key] = value
    return found


def parse_request(body: bytes) -> dict[str, str]:
    """`parse` of the body of a request. RequestError SYSTEM_ERROR: it is too long, or not UTF-8."""
    check_request(body)
    try:
        return parse(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None


def check_request(body: bytes) -> None:
    """RequestError SYSTEM_ERROR: the body of a request is longer than a text may be, or has more lines."""
    if len(body) > REQUEST_BYTES_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"settings of {len(body)} bytes, expected at most {REQUEST_BYTES_MAX}: send fewer at a time",
        )
    lines = body.count(b"\n") + body.count(b"\r") - body.count(b"\r\n")
    if lines > REQUEST_LINES_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"settings of {lines} lines, expected at most {REQUEST_LINES_MAX}: send fewer at a time",
        )


def format(values: Mapping[str, str], *, is_sorted: bool = False) -> str:
    """`key=value` lines. As in Java nothing is escaped, so a value cannot contain a line break."""
    items = sorted(values.items()) if is_sorted else values.items()
    return "".join(f"{key}={value}\n" for key, value in items)


def rewrite(text: str, changes: Mapping[str, str]) -> str:
    """The text with these keys set: a present key in its place (at every occurrence, because the last one
    counts), a new key at the end. Parsing the result gives the old keys and the changes."""
    left = dict(changes)
    out: list[str] = []
    entry: list[str] = []
    for line in _natural_lines(text):
        stripped = line.lstrip(_BLANK)
        if not entry and (not stripped or stripped[0] in "#!"):
            out.append(line)
            continue
        entry.append(line)
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            continue  # the entry continues on the next line
        out += _entry(entry, changes, left)
        entry = []
    if entry:
        # The text ends with a continued entry. Its backslash must not join the lines added below.
        entry[-1] = entry[-1][:-1]
        out += _entry(entry, changes, left)
    out += [_line(key, value) for key, value in left.items()]
    return "".join(line + "\n" for line in out)


def _logical_lines(text: str) -> Iterator[str]:
    joined: list[str] = []
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = natural.lstrip(_BLANK)
        if not joined and (not line or line[0] in "#!"):
            continue
        if line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2:
            joined.append(line[:-1])
            continue
        joined.append(line)
        whole = "".join(joined)
        joined = []
        if whole:
            yield whole
    whole = "".join(joined)
    if whole:
        yield whole


def _split(line: str) -> tuple[str, str]:
    if "\\" not in line:
        found = _WITHOUT_ESCAPES.fullmatch(line)
        assert found is not None  # any text matches
        return found[1], found[2]
    size, at = len(line), 0
    while at < size and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    at = min(at, size)
    value_at = at
    while value_at < size and line[value_at] in _BLANK:
        value_at += 1
    if value_at < size and line[value_at] in "=:":
        value_at += 1
        while value_at < size and line[value_at] in _BLANK:
            value_at += 1
    return _unescape(line[:at]), _unescape(line[value_at:])


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at, size = 0, len(text)
    while at < size:
        char = text[at]
        at += 1
        if char != "\\" or at == size:
            if char != "\\":
                out.append(char)
            continue
        char = text[at]
        at += 1
        if char == "u" and at + 4 <= size:
            digits = text[at : at + 4]
            if all(digit in "0123456789abcdefABCDEF" for digit in digits):
                out.append(chr(int(digits, 16)))
                at += 4
                continue
        out.append(_ESCAPES.get(char, char))
    return "".join(out).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def _natural_lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def _entry(lines: list[str], changes: Mapping[str, str], left: dict[str, str]) -> list[str]:
    found = parse("\n".join(lines))
    for key in found:
        if key in changes:
            left.pop(key, None)
            return [_line(key, changes[key])]
    return lines


def _line(key: str, value: str) -> str:
    return f"{_escaped(key, '=: ' + _BLANK)}={_escaped(value)}"


def _escaped(text: str, also: str = "") -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    out = [special.get(char, "\\" + char if char in also else char) for char in text]
    if out and (text[0] in _BLANK or (also and text[0] in "#!")) and len(out[0]) == 1:
        out[0] = "\\" + out[0]
    return "".join(out)
