"""Holds the operations that wait for the core: by token, which callback gets the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from epochmq_dledger.core.types import Proposal, ProposalBatch, ReadIndex
from epochmq_dledger.peer_context import PeerContext
from epochmq_dledger.results import AppendResult, RaftOperationError
from epochmq_protocol.dledger import DLedgerResponseCode, RequestOrResponse

OnAppended = Callable[[AppendResult | RaftOperationError], None]
OnConfirmed = Callable[[int | RaftOperationError], None]


class PendingOperations:
    """The pending operations of one peer. Proposals and reads of one turn of the event loop reach the core
    together."""

    def __init__(self, context: PeerContext) -> None:
        self._context = context
        self._tokens = 0
        self._appends: dict[int, OnAppended] = {}
        """Proposals, transfers and membership changes."""
        self._reads: dict[int, OnConfirmed] = {}
        self._responses: dict[int, Callable[[RequestOrResponse | None], None]] = {}
        self._proposals: list[Proposal] = []
        self._confirmations: list[OnConfirmed] = []

    # Starting -----------------------------------------------------------------------------------------------

    def submit(self, bodies: tuple[bytes, ...], done: OnAppended) -> None:
        """Adds a proposal."""
        self._proposals.append(Proposal(self.add(done), bodies))
        if len(self._proposals) == 1:
            asyncio.get_running_loop().call_soon(self._feed_proposals)

    def submit_now(self, bodies: Sequence[bytes], done: OnAppended) -> None:
        """Passes a proposal to the core at once, unless a step of the core is under way."""
        self._context.feed(Proposal(self.add(done), tuple(bodies)))

    def _feed_proposals(self) -> None:
        proposals, self._proposals = tuple(self._proposals), []
        self._context.feed(ProposalBatch(proposals))

    def confirm_leadership(self, done: OnConfirmed) -> None:
        """Adds a read."""
        self._confirmations.append(done)
        if len(self._confirmations) == 1:
            asyncio.get_running_loop().call_soon(self._feed_confirmations)

    def _feed_confirmations(self) -> None:
        """To the core, the reads of one turn of the event loop are one read."""
        confirmations, self._confirmations = self._confirmations, []

        def done(result: int | RaftOperationError) -> None:
            for one in confirmations:
                one(result)

        self._tokens += 1
        self._reads[self._tokens] = done
        self._context.feed(ReadIndex(self._tokens))

    def add(self, done: OnAppended) -> int:
        """Adds a transfer or a membership change. Returns its token."""
        self._tokens += 1
        self._appends[self._tokens] = done
        return self._tokens

    def add_request(self, respond: Callable[[RequestOrResponse | None], None]) -> int:
        """Adds a request of another peer. Returns its token."""
        self._tokens += 1
        self._responses[self._tokens] = respond
        return self._tokens

    # Completing ---------------------------------------------------------------------------------------------

    def complete(self, token: int, result: AppendResult | RaftOperationError) -> None:
        """Reports the result of a proposal, transfer or membership change."""
        done = self._appends.pop(token, None)
        if done is not None:
            done(result)

    def complete_read(self, token: int, result: int | RaftOperationError) -> None:
        """Reports the result of a read."""
        done = self._reads.pop(token, None)
        if done is not None:
            done(result)

    def fail(self, token: int, code: DLedgerResponseCode) -> None:
        """Reports that an operation of any kind failed."""
        self.complete(token, RaftOperationError(code))
        self.complete_read(token, RaftOperationError(code))

    def fail_all(self) -> None:
        """Fails all pending operations: this peer stops. Its proposals may still be committed."""
        for token in list(self._appends):
            self.complete(token, RaftOperationError(DLedgerResponseCode.TERM_CHANGED))
        for token in list(self._reads):
            self.complete_read(token, RaftOperationError(DLedgerResponseCode.NOT_LEADER))

    def respond(self, token: int, response: RequestOrResponse) -> None:
        """Sends the response to a request of another peer."""
        respond = self._responses.pop(token, None)
        if respond is not None:
            respond(response)

    def drop_request(self, token: int) -> None:
        """Ends a request that gets no response."""
        respond = self._responses.pop(token, None)
        if respond is not None:
            respond(None)
