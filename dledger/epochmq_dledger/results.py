"""Defines the results of a peer's operations: proposals, reads, transfers and membership changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from epochmq_protocol.dledger import DLedgerResponseCode
from epochmq_protocol.errors import EpochMQError

T = TypeVar("T")


class RaftOperationError(EpochMQError):
    """A proposal, read, transfer or membership change failed, with DLedger's code. After TERM_CHANGED and
    WAIT_QUORUM_ACK_TIMEOUT a proposal may still be committed."""

    def __init__(self, code: DLedgerResponseCode) -> None:
        super().__init__(f"{code.name} ({code.value})")
        self.code = code


@dataclass(frozen=True)
class AppendResult:
    """Index, position and term of a proposal's last entry."""

    index: int
    pos: int
    term: int


def complete_future(future: asyncio.Future[T], result: T | RaftOperationError) -> None:
    """Sets a future to a result or an error, unless its owner has cancelled it."""
    if future.done():
        return
    if isinstance(result, RaftOperationError):
        future.set_exception(result)
    else:
        future.set_result(result)
