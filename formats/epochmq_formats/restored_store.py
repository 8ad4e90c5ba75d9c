"""The format of `restoredFrom.json`, which a restore writes and RocketMQ does not know: where a store comes
from."""

from __future__ import annotations

from typing import Final

import msgspec

FILE_NAME: Final = "restoredFrom.json"


class RestoredStore(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The id of the backup, the brokerName of its group, and the offsets between which the store has the log.
    `mode` is that of the group (`spec.mode`), which a start needs because the store has neither identity nor
    epochs. `order` names the group on Kubernetes for which the store was restored; empty without one."""

    backup: str
    broker_name: str
    mode: str
    log_start: int
    log_end: int
    order: str = ""


def encode(store: RestoredStore) -> bytes:
    """The content of the file."""
    return msgspec.json.encode(store)


def decode(data: bytes) -> RestoredStore:
    """The content of the file, decoded. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(data, type=RestoredStore)


class _Mode(msgspec.Struct):
    mode: str


def mode_of(data: bytes) -> str:
    """The mode in the content of the file, which is all that a start needs. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(data, type=_Mode).mode
