"""Encodes and decodes the handle by which a producer recalls a timer message (RecallMessageHandle): base64url
of `v1 topic brokerName timestamp uniqKey`."""

# pure: text in, values out
from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

VERSION: Final = "v1"
_FIELDS = 5


def handle_prefix(topic: str, broker_name: str) -> str:
    """The part of a handle's content that all messages of a topic share."""
    return f"{VERSION} {topic} {broker_name} "


def encode_handle(prefix: str, timestamp: int | str, uniq_key: str) -> bytes:
    """The handle of one message. Raises UnicodeEncodeError."""
    handle = binascii.b2a_base64(f"{prefix}{timestamp} {uniq_key}".encode(), newline=False)
    return handle.replace(b"+", b"-").replace(b"/", b"_")


class RecallHandle(NamedTuple):
    """The content of a handle. `timestamp` is text: the time in epoch ms up to which the message waits."""

    topic: str
    broker_name: str
    timestamp: str
    uniq_key: str

    def encode(self) -> str:
        """The handle as clients get it."""
        prefix = handle_prefix(self.topic, self.broker_name)
        return encode_handle(prefix, self.timestamp, self.uniq_key).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """Decodes a handle. Raises ValueError."""
        invalid = ValueError("recall handle is invalid")
        if "+" in handle or "/" in handle:
            raise invalid
        try:
            padded = handle + "=" * (-len(handle) % 4)
            data = base64.b64decode(padded, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):  # also for text that is not ASCII
            raise invalid from None
        items = data.decode("utf-8", "replace").rstrip(" ").split(" ")
        if items[0] != VERSION or len(items) < _FIELDS:
            raise invalid
        return cls(*items[1:_FIELDS])
