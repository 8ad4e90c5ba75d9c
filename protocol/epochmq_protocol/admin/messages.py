"""Requests and answers of the local socket, as bytes.

A message is four bytes, big-endian, the number of bytes that follow; these are JSON. A connection carries one
request and its answer:

    {"operation":"fence","arguments":{"on":true},"timeoutMs":1000}
    {"result":{"fenced":true,…}}    or    {"fault":{"kind":"refused","message":"it is not the master"}}

Both sides bound what they read before they read it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from epochmq_protocol.errors import EpochMQError, RemoteProtocolError

PREFIX_BYTES: Final = 4
REQUEST_MAX_BYTES: Final = 64 * 1024
ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
TIMEOUT_MAX_MS: Final = 120_000

T = TypeVar("T")


class FaultKind(StrEnum):
    """What the caller should do about it."""

    UNKNOWN = "unknown"
    """Nothing: this process has no such operation."""
    INVALID = "invalid"
    """Ask in another way: the message names the field, its value and what was expected."""
    REFUSED = "refused"
    """Change what stands in the way; the message says what."""
    TIMEOUT = "timeout"
    """Look how it is: it may have been done."""
    BUSY = "busy"
    """Try again: too many ask at once."""
    FAILED = "failed"
    """A fault of the process; its log has more."""


class AdminError(EpochMQError):
    """An operation that was not done; the message is for people."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[AdminError], tuple[FaultKind, str]]:
        return type(self), (self.kind, self.message)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """`arguments` are decoded by the operation. `timeout_ms`: how long the process may take."""

    operation: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    timeout_ms: int = 1000


class Fault(msgspec.Struct, frozen=True):
    """Why an operation was not done."""

    kind: FaultKind
    message: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the two; a result of no bytes is none."""

    result: msgspec.Raw = msgspec.Raw()
    fault: Fault | None = None


def encode(message: Request | Answer) -> bytes:
    """The whole message, its length first."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def body_size(prefix: bytes, size_max: int) -> int:
    """How many bytes follow. RemoteProtocolError for more than `size_max`, or none."""
    size = int.from_bytes(prefix, "big")
    if not 0 < size <= size_max:
        raise RemoteProtocolError(f"a message of {size} bytes: expected 1 to {size_max}")
    return size


def decode_request(body: bytes) -> Request:
    """AdminError INVALID for what is no request."""
    request = _decoded(body, Request, "the request")
    if not 0 < request.timeout_ms <= TIMEOUT_MAX_MS:
        raise AdminError(FaultKind.INVALID, f"timeoutMs={request.timeout_ms}: expected 1 to {TIMEOUT_MAX_MS}")
    return request


def decode_arguments(request: Request, kind: type[T]) -> T:
    """AdminError INVALID for arguments that the operation does not take."""
    return _decoded(bytes(request.arguments), kind, f"the arguments of {request.operation}")


def decode_answer(body: bytes) -> bytes:
    """The result, as JSON. AdminError when there is a fault instead, RemoteProtocolError for what is no
    answer."""
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"no answer of an admin socket: {error}") from None
    if answer.fault is not None:
        raise AdminError(answer.fault.kind, answer.fault.message)
    if not (result := bytes(answer.result)):
        raise RemoteProtocolError("no answer of an admin socket: neither result nor fault")
    return result


def answer_of(result: Any) -> bytes:
    """The whole message with a result. AdminError FAILED for one that is too large."""
    encoded = encode(Answer(result=msgspec.Raw(msgspec.json.encode(result))))
    if len(encoded) > ANSWER_MAX_BYTES:
        raise AdminError(FaultKind.FAILED, f"an answer of {len(encoded)} bytes: at most {ANSWER_MAX_BYTES}")
    return encoded


def answer_of_fault(error: AdminError) -> bytes:
    """The whole message with a fault."""
    return encode(Answer(fault=Fault(error.kind, error.message)))


def _decoded(body: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AdminError(FaultKind.INVALID, f"{what}: {error}") from None
