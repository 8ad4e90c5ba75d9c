"""Encodes and decodes the messages of the admin socket.

A message is its length (four bytes, big-endian) and that many bytes of JSON. A connection carries one request
and its response:

    {"operation":"fence","arguments":{"on":true},"timeoutMs":1000}
    {"result":{"fenced":true,…}}    or    {"fault":{"kind":"refused","message":"it is not the master"}}

Both sides check the length before they read a message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from epochmq_protocol.errors import EpochMQError, RemoteProtocolError

PREFIX_BYTES: Final = 4
REQUEST_MAX_BYTES: Final = 64 * 1024
RESPONSE_MAX_BYTES: Final = 16 * 1024 * 1024
TIMEOUT_MAX_MS: Final = 120_000

T = TypeVar("T")


class FaultKind(StrEnum):
    """The kinds of faults, by what the caller should do."""

    UNKNOWN = "unknown"
    """Give up: this process has no such operation."""
    INVALID = "invalid"
    """Correct the request: the message names the field, its value and what was expected."""
    REFUSED = "refused"
    """Remove the obstacle that the message names, then try again."""
    TIMEOUT = "timeout"
    """Read the state: the operation may have been done."""
    BUSY = "busy"
    """Try again: too many connections are open, or an operation that takes its time is under way."""
    FAILED = "failed"
    """Read what the process has logged: an error in the process made the operation fail."""


class AdminError(EpochMQError):
    """An operation was not done. The message is for people."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[AdminError], tuple[FaultKind, str]]:
        return type(self), (self.kind, self.message)


class AdminRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request. The operation decodes `arguments`. `timeout_ms`: the time the process may take."""

    operation: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    timeout_ms: int = 1000


class AdminFault(msgspec.Struct, frozen=True):
    """Why an operation was not done."""

    kind: FaultKind
    message: str


class AdminResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response: either a result or a fault. An empty `result` means that there is none."""

    result: msgspec.Raw = msgspec.Raw()
    fault: AdminFault | None = None


def encode(message: AdminRequest | AdminResponse) -> bytes:
    """The whole message with its length."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def body_size(prefix: bytes, size_max: int) -> int:
    """The length of a message, from its first four bytes. RemoteProtocolError: 0, or more than `size_max`."""
    size = int.from_bytes(prefix, "big")
    if not 0 < size <= size_max:
        raise RemoteProtocolError(f"message of {size} bytes: expected 1 to {size_max}")
    return size


def decode_request(body: bytes) -> AdminRequest:
    """The request in a message. AdminError INVALID: it is malformed."""
    request = _decoded(body, AdminRequest, "the request")
    if not 0 < request.timeout_ms <= TIMEOUT_MAX_MS:
        raise AdminError(FaultKind.INVALID, f"timeoutMs={request.timeout_ms}: expected 1 to {TIMEOUT_MAX_MS}")
    return request


def decode_arguments(request: AdminRequest, kind: type[T]) -> T:
    """The arguments of a request. AdminError INVALID: the operation does not have such arguments."""
    return _decoded(bytes(request.arguments), kind, f"the arguments of {request.operation}")


def decode_result(body: bytes) -> bytes:
    """The result in a response, as JSON. AdminError: the response is a fault. RemoteProtocolError: it is
    malformed."""
    try:
        response = msgspec.json.decode(body, type=AdminResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a response of an admin socket: {error}") from None
    if response.fault is not None:
        raise AdminError(response.fault.kind, response.fault.message)
    if not (result := bytes(response.result)):
        raise RemoteProtocolError("not a response of an admin socket: it has neither a result nor a fault")
    return result


def encode_result(result: Any) -> bytes:
    """The whole message of a result. AdminError FAILED: the result is too large."""
    encoded = encode(AdminResponse(result=msgspec.Raw(msgspec.json.encode(result))))
    if len(encoded) > RESPONSE_MAX_BYTES:
        raise AdminError(
            FaultKind.FAILED, f"response of {len(encoded)} bytes: expected at most {RESPONSE_MAX_BYTES}"
        )
    return encoded


def encode_fault(error: AdminError) -> bytes:
    """The whole message of a fault."""
    return encode(AdminResponse(fault=AdminFault(error.kind, error.message)))


def _decoded(body: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AdminError(FaultKind.INVALID, f"{what}: {error}") from None
