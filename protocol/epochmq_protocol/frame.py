"""Encodes and decodes remoting frames (RemotingCommand, NettyDecoder, RocketMQSerializable).

    length(4) | serialize type(1) header length(3) | header | body

`length` counts the bytes after it. The header is JSON (type 0) or RocketMQ's binary form (type 1), chosen per
frame. Both directions of a connection carry requests and responses; the response bit of `flag` tells them
apart. A frame without a body and a frame with an empty body are the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import orjson

from epochmq_protocol import fastjson
from epochmq_protocol.codes import CURRENT_VERSION, LanguageCode, SerializeType
from epochmq_protocol.errors import LocalProtocolError, OversizedError, RemoteProtocolError
from epochmq_protocol.integers import INT_MAX, INT_MIN

if TYPE_CHECKING:
    from epochmq_protocol.headers_base import Header

FRAME_BYTES_MAX: Final = 16_777_216  # com.rocketmq.remoting.frameMaxLength; includes the four length bytes
HEADER_BYTES_MAX: Final = 0xFF_FFFF  # 24 bits
LENIENT_HEADER_BYTES_MAX: Final = 2_048
"""A larger header must be standard JSON without references, as all of RocketMQ's clients write it. The
lenient reader takes some 3 ms for so many bytes, and other requests wait meanwhile."""
FIELDS_MAX: Final = 1_000
"""The fields of a header. RocketMQ's largest header has 30; so many take some 0.5 ms."""
MANY_FIELDS_BYTES: Final = 16_384
"""The fields of a shorter JSON header are not counted."""
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

_CODE_AT: Final = 8 + len('{"code":')  # in the frame of a JSON command of this side
CODE_SLICE: Final = slice(_CODE_AT, _CODE_AT + 2)
SUCCESS_CODE: Final = b"0,"
"""What the `CODE_SLICE` of the JSON frame of a successful response contains."""
_LANGUAGES: Final[dict[str, int]] = {code.name: int(code) for code in LanguageCode}
_LANGUAGE_NAMES: Final[dict[int, str]] = {int(code): code.name for code in LanguageCode}
_OTHER: Final = int(LanguageCode.OTHER)


class Command(msgspec.Struct, gc=False):
    """One frame. `body` is b"" without a body; `ext` (extFields) is None if the header has none."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: int = int(LanguageCode.PYTHON)
    version: int = CURRENT_VERSION
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    serialize: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """True for a response, False for a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True for a request that gets no response, not even an error."""
        return bool(self.flag & FLAG_ONEWAY)


def request(
    code: int, header: Header | None = None, body: bytes = b"", ext: dict[str, str] | None = None
) -> Command:
    """A request. The connection that sends it assigns the opaque. `ext` adds fields to those of the
    header."""
    return Command(int(code), ext=_merge(header, ext), body=body)


def response(
    request: Command,
    code: int,
    remark: str | None = None,
    header: Header | None = None,
    body: bytes = b"",
    ext: dict[str, str] | None = None,
) -> Command:
    """The response to `request`: same opaque, response flag, JSON header (which every peer reads)."""
    return Command(
        int(code),
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        ext=_merge(header, ext),
        body=body,
    )


def _merge(header: Header | None, ext: dict[str, str] | None) -> dict[str, str] | None:
    if header is None:
        return ext
    fields = header.encode()
    if ext:
        fields.update(ext)
    return fields


# ----------------------------------------------------------------------------------------------------- encode


def encode(command: Command) -> bytes:
    """The whole frame with its length prefix. LocalProtocolError: the command does not fit the format."""
    if command.serialize is SerializeType.JSON:
        header = encode_json_header(command)
    else:
        header = encode_binary_header(command)
    header_size, body = len(header), command.body
    if header_size > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"header of {header_size} bytes: expected at most {HEADER_BYTES_MAX}")
    length = 4 + header_size + len(body)
    if length > INT_MAX:
        raise LocalProtocolError(f"frame of {length} bytes: expected at most {INT_MAX}")
    return b"".join((length.to_bytes(4, "big"), _mark(header_size, command.serialize), header, body))


def _mark(header_size: int, serialize: int) -> bytes:
    return (serialize << 24 | header_size).to_bytes(4, "big")


def response_code(frame: bytes) -> int:
    """The code of a whole response frame that this side has encoded."""
    if frame[4]:  # a binary header begins with the code
        return int.from_bytes(frame[8:10], "big", signed=True)
    if frame[CODE_SLICE] == SUCCESS_CODE:
        return 0
    return int(frame[_CODE_AT : frame.index(b",", _CODE_AT)])


def encode_json_header(command: Command) -> bytes:
    """The header as Java writes it: keys in order, without a null remark and null extFields."""
    _check_ints(command)
    fields: dict[str, Any] = {"code": int(command.code)}
    if command.ext is not None:
        fields["extFields"] = command.ext
    fields["flag"] = command.flag
    fields["language"] = _language_name(command.language)
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    try:
        return orjson.dumps(fields)
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(
            f"header of command {command.code} cannot be encoded as JSON: {error}"
        ) from None


def encode_binary_header(command: Command) -> bytes:
    """The header in the ROCKETMQ form. Its code is a signed short: codes above 32767 do not fit."""
    _check_ints(command)
    if not -32768 <= command.code <= 32767:
        raise LocalProtocolError(f"code {command.code}: a ROCKETMQ header holds -32768 to 32767; use JSON")
    if not -32768 <= command.version <= 32767:
        raise LocalProtocolError(f"version {command.version}: a ROCKETMQ header holds -32768 to 32767")
    _language_name(command.language)
    try:
        remark = (command.remark or "").encode()
        pieces: list[bytes] = []
        for key, value in (command.ext or {}).items():
            name, text = key.encode(), value.encode()
            if len(name) > 32767:
                raise LocalProtocolError(f"extFields key of {len(name)} bytes: expected at most 32767")
            pieces += (len(name).to_bytes(2, "big"), name, len(text).to_bytes(4, "big"), text)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(
            f"header of command {command.code} cannot be encoded as UTF-8: {error.reason}"
        ) from None
    ext = b"".join(pieces)
    return b"".join(
        (
            command.code.to_bytes(2, "big", signed=True),
            command.language.to_bytes(1, "big"),
            command.version.to_bytes(2, "big", signed=True),
            command.opaque.to_bytes(4, "big", signed=True),
            command.flag.to_bytes(4, "big", signed=True),
            len(remark).to_bytes(4, "big"),
            remark,
            len(ext).to_bytes(4, "big"),
            ext,
        )
    )


def _check_ints(command: Command) -> None:
    for name, value in (
        ("code", command.code),
        ("flag", command.flag),
        ("opaque", command.opaque),
        ("version", command.version),
    ):
        if not INT_MIN <= value <= INT_MAX:
            raise LocalProtocolError(f"{name}={value}: expected a 32-bit signed integer")


def _language_name(language: int) -> str:
    name = _LANGUAGE_NAMES.get(language)
    if name is None:
        raise LocalProtocolError(f"language={language}: expected 0 to {max(_LANGUAGE_NAMES)}")
    return name


# ----------------------------------------------------------------------------------------------------- decode


class _JsonHeader(msgspec.Struct, gc=False):
    code: int = 0
    flag: int = 0
    language: str | None = None
    opaque: int = 0
    remark: str | None = None
    version: int = 0
    extFields: dict[str, str] | None = None  # noqa: N815 (the wire's name)


_decode_header = msgspec.json.Decoder(_JsonHeader).decode


def split(frame: bytes) -> tuple[int, bytes, bytes]:
    """(serialize type byte, header bytes, body bytes) of a frame given without its length prefix."""
    size = len(frame)
    if size < 4:
        raise RemoteProtocolError(f"frame of {size} bytes: expected at least the 4 of the header length")
    header_end = 4 + int.from_bytes(frame[1:4], "big")
    if header_end > size:
        raise RemoteProtocolError(f"header length {header_end - 4} in a frame with {size - 4} bytes left")
    return frame[0], frame[4:header_end], frame[header_end:]


def decode(frame: bytes, header_bytes_max: int = HEADER_BYTES_MAX) -> Command:
    """The command in a frame, given without its length prefix. RemoteProtocolError: malformed.
    OversizedError: the header has more than `header_bytes_max` bytes."""
    serialize, header, body = split(frame)
    if len(header) > header_bytes_max:
        raise OversizedError(f"header of {len(header)} bytes: expected at most {header_bytes_max}")
    if serialize == 0:
        command = decode_json_header(header)
    elif serialize == 1:
        command = decode_binary_header(header)
    else:
        raise RemoteProtocolError(f"serialize type {serialize}: expected 0 (JSON) or 1 (ROCKETMQ)")
    command.body = body
    return command


def answerable(frame: bytes) -> Command | None:
    """The code 0, opaque and flag of a frame with an oversized header, so that it can get an error; None if
    they are not found. Looks at the ends of the header only."""
    serialize, header, _ = split(frame)
    if serialize == 1:
        return decode_binary_header(header[:13] + bytes(8)) if len(header) >= 21 else None
    ends = header[:_END_BYTES] + b"\n" + header[-_END_BYTES:]
    opaque, flag = _OPAQUE.findall(ends), _FLAG.findall(ends)
    if not opaque:
        return None
    command = Command(0, int(opaque[-1]), int(flag[-1]) if flag else 0)
    is_int = INT_MIN <= command.opaque <= INT_MAX and INT_MIN <= command.flag <= INT_MAX
    return command if is_int else None


_END_BYTES: Final = 512
_OPAQUE: Final = re.compile(rb'"opaque"\s*:\s*(-?[0-9]{1,10})')
_FLAG: Final = re.compile(rb'"flag"\s*:\s*(-?[0-9]{1,10})')


def decode_json_header(header: bytes) -> Command:
    """Decodes a JSON header. If it is not strict JSON, decodes it as leniently as fastjson."""
    if len(header) > MANY_FIELDS_BYTES and _fields(header) > FIELDS_MAX:
        raise OversizedError(f"more than {FIELDS_MAX} fields in a header")
    try:
        fields = _decode_header(header)
    except (ValueError, RecursionError):
        return _decode_lenient(header)
    code, flag, opaque, version = fields.code, fields.flag, fields.opaque, fields.version
    if not (
        INT_MIN <= code <= INT_MAX
        and INT_MIN <= opaque <= INT_MAX
        and INT_MIN <= flag <= INT_MAX
        and INT_MIN <= version <= INT_MAX
    ):
        _reject_ints(code, flag, opaque, version)
    language = _LANGUAGES.get(fields.language, _OTHER) if fields.language is not None else _OTHER
    return Command(code, opaque, flag, language, version, fields.remark, fields.extFields)


def _fields(header: bytes) -> int:
    """At least as many as the fields of a JSON header that is written without blanks. Texts in it do not
    count: their quotes are escaped."""
    return header.count(b'":') - header.count(b'\\":')


def _reject_ints(code: int, flag: int, opaque: int, version: int) -> NoReturn:
    raise RemoteProtocolError(
        f"header with code={code} flag={flag} opaque={opaque} version={version}: expected 32-bit integers"
    )


def _decode_lenient(header: bytes) -> Command:
    """Decodes a header as fastjson does: unquoted keys, numbers as strings, strings as numbers."""
    fields = fastjson.loads(header, lenient_bytes_max=LENIENT_HEADER_BYTES_MAX)
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"header is a {type(fields).__name__}: expected a JSON object")
    ext = fields.get("extFields")
    if ext is not None:
        if not isinstance(ext, dict):
            raise RemoteProtocolError(f"extFields is a {type(ext).__name__}: expected a JSON object")
        ext = {
            fastjson.as_text(key): fastjson.as_text(value) for key, value in ext.items() if value is not None
        }
    remark = fields.get("remark")
    language = fields.get("language")
    return Command(
        _lenient_int(fields, "code"),
        _lenient_int(fields, "opaque"),
        _lenient_int(fields, "flag"),
        _LANGUAGES.get(language, _OTHER) if isinstance(language, str) else _OTHER,
        _lenient_int(fields, "version"),
        None if remark is None else fastjson.as_text(remark),
        ext,
    )


def _lenient_int(fields: dict[Any, Any], name: str) -> int:
    value = fields.get(name)
    if value is None or value == "":
        return 0
    if isinstance(value, str):
        value = fastjson.parse_int(value)
    if type(value) is not int or not INT_MIN <= value <= INT_MAX:
        raise RemoteProtocolError(f"header field {name}={fields.get(name)!r:.100}: expected a 32-bit integer")
    return value


def decode_binary_header(header: bytes) -> Command:
    """Decodes a ROCKETMQ header. Empty strings are null; entries without a key or a value are dropped."""
    if len(header) < 21:
        raise RemoteProtocolError(f"ROCKETMQ header of {len(header)} bytes: expected at least 21")
    number = int.from_bytes
    remark, at = _binary_string(header, 13, 4, len(header))
    ext_size = number(header[at : at + 4], "big", signed=True)
    at += 4
    if at > len(header):
        raise RemoteProtocolError("ROCKETMQ header ends before its extFields length")
    ext: dict[str, str] | None = None
    if ext_size > 0:
        end = at + ext_size
        if end > len(header):
            left = len(header) - at
            raise RemoteProtocolError(f"extFields of {ext_size} bytes in a header with {left} left")
        ext = {}
        while at < end:
            key, at = _binary_string(header, at, 2, end)
            value, at = _binary_string(header, at, 4, end)
            if key is not None and value is not None:
                ext[key] = value
                if len(ext) > FIELDS_MAX:
                    raise OversizedError(f"more than {FIELDS_MAX} extFields in a ROCKETMQ header")
    language = header[2]
    return Command(
        number(header[0:2], "big", signed=True),
        number(header[5:9], "big", signed=True),
        number(header[9:13], "big", signed=True),
        language if language in _LANGUAGE_NAMES else _OTHER,
        number(header[3:5], "big", signed=True),
        remark,
        ext,
        serialize=SerializeType.ROCKETMQ,
    )


def _binary_string(header: bytes, at: int, width: int, end: int) -> tuple[str | None, int]:
    """(text or None when empty, position after it) of a length-prefixed string that must end by `end`."""
    start = at + width
    size = int.from_bytes(header[at:start], "big", signed=True)
    stop = start + size
    if start > end or size < 0 or stop > end:
        raise RemoteProtocolError(f"ROCKETMQ header: string of {size} bytes at {at} does not fit")
    if size == 0:
        return None, start
    return header[start:stop].decode("utf-8", "replace"), stop


# ------------------------------------------------------------------------------------------------------ split


class FrameSplitter:
    """Splits a byte stream into frames. Holds at most one frame plus one read: a length above
    `max_frame_bytes` (length word included) is rejected before the bytes of that frame are collected."""

    __slots__ = ("_chunks", "_held", "_max", "_wanted")

    def __init__(self, max_frame_bytes: int = FRAME_BYTES_MAX) -> None:
        self._max = max_frame_bytes - 4
        self._chunks: list[bytes] = []
        self._held = 0  # bytes in _chunks
        self._wanted = 4  # bytes needed before the next frame is complete

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, each without its length prefix. RemoteProtocolError: an
        invalid length; the stream is not usable afterwards."""
        if self._held:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._held = 0
        frames: list[bytes] = []
        add, number, largest = frames.append, int.from_bytes, self._max
        at, size = 0, len(data)
        wanted = 4
        while size - at >= 4:
            length = number(data[at : at + 4], "big")
            if not 4 <= length <= largest:
                raise RemoteProtocolError(
                    f"frame length {length if length < 2**31 else length - 2**32}: expected 4 to {largest}"
                )
            stop = at + 4 + length
            if stop > size:
                wanted = 4 + length
                break
            add(data[at + 4 : stop])
            at = stop
        if at < size:
            self._chunks.append(data[at:] if at else data)
            self._held = size - at
            self._wanted = wanted
        return frames
