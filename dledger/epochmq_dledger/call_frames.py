# pure: bytes only
"""Encodes the frames of DLedger's calls, whose headers hold only a code and an opaque, without building a
`Command`: byte for byte what `frame.encode` makes."""

from __future__ import annotations

from typing import Final

from epochmq_protocol.codes import CURRENT_VERSION
from epochmq_protocol.dledger import DLedgerResponseCode
from epochmq_protocol.frame import FLAG_RESPONSE

_HEADER: Final = (
    b'{"code":%%d,"flag":%%d,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    % CURRENT_VERSION
)


def request_frame(code: int, opaque: int, body: bytes) -> bytes:
    """The frame of a request with this DLedger code."""
    return _frame(_HEADER % (code, 0, opaque), body)


def response_frame(opaque: int, body: bytes) -> bytes:
    """The frame of a response. Its remoting code is always 200; the result is in the body."""
    return _frame(_HEADER % (DLedgerResponseCode.SUCCESS, FLAG_RESPONSE, opaque), body)


def _frame(header: bytes, body: bytes) -> bytes:
    size = len(header)
    return b"".join(((4 + size + len(body)).to_bytes(4, "big"), size.to_bytes(4, "big"), header, body))
