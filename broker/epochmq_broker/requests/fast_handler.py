"""Declares a fast handler: which requests it takes, on which ports, and which gates of the pipeline it
satisfies itself.

A fast handler serves a request from its bytes, so it runs in front of every gate. It satisfies a gate if it
raises `FastPathMiss`, before it changes anything, for each request that the gate would not pass now. The gate
then decides about the same frame. While a gate that it does not satisfy may stop a request, the ports do not
use the handler (`pipeline.RequestPipeline.fast_handlers`).
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from msgspec import Struct

from epochmq_protocol.codes import CURRENT_VERSION, RequestCode
from epochmq_protocol.transport.connection import FastRequestHandler


class Port(enum.Enum):
    """The ports of a broker by what they serve. The external port serves what the main port serves."""

    MAIN = "main"
    VIP = "vip"


class GateName(enum.Enum):
    """The gates of the pipeline (`pipeline`), the outermost first."""

    FAST_FAILURE = "fast failure"
    MEMBERS = "members"
    ISOLATION = "isolation"
    ACCESS = "access"
    BROKER_NAME = "broker name"
    MASTER_ONLY = "master only"
    RELAY = "relay"
    STATIC_TOPICS = "static topics"
    COLD_READS = "cold reads"
    RECORD_ACCESS = "record access"
    HOLD = "hold"


class FastHandler(Struct, frozen=True, kw_only=True):
    """A fast handler of one broker. `starts`: the first bytes of the JSON headers that it takes."""

    codes: tuple[RequestCode, ...]
    starts: tuple[bytes, ...]
    serve: FastRequestHandler
    satisfies: frozenset[GateName]
    ports: tuple[Port, ...] = (Port.MAIN, Port.VIP)


SUCCESS_HEADERS: Final = 160
"""Sizes of the header of a response SUCCESS, with any opaque: less than this number of bytes."""
_LENGTHS: Final = tuple(struct.pack(">II", 4 + size, size) for size in range(SUCCESS_HEADERS))
"""The lengths of a frame without a body, by the size of its header."""
_SUCCESS: Final = (
    b'{"code":0,"flag":1,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    % CURRENT_VERSION
)


def encode_success(opaque: int) -> bytes:
    """The frame of a response SUCCESS without remark, fields and body."""
    header = _SUCCESS % opaque
    return _LENGTHS[len(header)] + header
