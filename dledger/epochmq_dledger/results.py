"""What became of what a peer was asked, and what it asks of the state machine that it drives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, TypeVar

from epochmq_protocol.dledger import DLedgerResponseCode
from epochmq_protocol.errors import EpochMQError

T = TypeVar("T")


class RaftOperationError(EpochMQError):
    """A proposal, read or transfer that failed, with DLedger's code. TERM_CHANGED and WAIT_QUORUM_ACK_TIMEOUT
    leave open whether a proposal will be committed."""

    def __init__(self, code: DLedgerResponseCode) -> None:
        super().__init__(f"{code.name} ({code.value})")
        self.code = code


@dataclass(frozen=True)
class AppendResult:
    """Where a proposal's last entry stands."""

    index: int
    pos: int
    term: int


class StateMachine(Protocol):
    """What a peer that takes snapshots drives, beside `apply`."""

    def save(self) -> bytes:
        """All that the entries applied so far have made."""

    def restore(self, data: bytes) -> None:
        """Becomes what `save` gave, here or at another peer. ValueError when it was not `save`."""


def complete_future(future: asyncio.Future[T], outcome: T | RaftOperationError) -> None:
    """Hands an outcome to whoever waits for it, if somebody still does."""
    if future.done():
        return
    if isinstance(outcome, RaftOperationError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
