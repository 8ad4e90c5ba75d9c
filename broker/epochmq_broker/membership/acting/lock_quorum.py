"""Locks queues for orderly consumers on a majority of the group's brokers (lockInStrictMode; RIP-32's lock
quorum, AdminBrokerProcessor.lockBatchMQ and unlockBatchMQ).

Without it, two consumers may hold the same queue for a while after a role change: one has the lock of the
former master, the other that of the acting one. The rules are RocketMQ's:

- A majority is totalReplicas / 2 + 1. With one replica the local lock is enough.
- The broker locks the queues itself, then asks all other living members for the queues that it got. A queue
  that a majority granted is the client's. A request of another broker (`onlyThisBroker`) locks locally.
- Locks that were granted without a majority are not released: the client asks again soon, and they expire.
- An unlock is sent to all members, and the client does not wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.tables.rebalance_locks import RebalanceLocks
from epochmq_protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.transport.request_client import RequestClient

log = logging.getLogger(__name__)

MEMBER_TIMEOUT_MS: Final = 1000
"""How long a lock request waits for the other members, which are asked at the same time."""
PENDING_UNLOCKS_MAX: Final = 1000
"""Unlock requests to other members under way. With more, locks there expire instead."""


class LockQuorum:
    """The queue locks of one broker's clients. `members` returns the living members of the group, broker id →
    address; until a nameserver was asked, only this broker."""

    def __init__(self, live: LiveConfig, locks: RebalanceLocks, client: RequestClient) -> None:
        self.members: Callable[[], Mapping[int, str]] = dict
        self._live = live
        self._locks = locks
        self._client = client
        self._unlocks: set[asyncio.Task[None]] = set()

    def is_needed(self, body: LockBatchRequestBody) -> bool:
        """Whether this lock request needs other members."""
        config = self._live.current
        return config.lock_in_strict_mode and not body.only_this_broker and config.total_replicas > 1

    def lock_here(
        self, body: LockBatchRequestBody, queues: Iterable[MessageQueue] | None = None
    ) -> set[MessageQueue]:
        """Locks queues on this broker only: those of the request, or `queues` of them. Returns those that the
        client has."""
        wanted = body.mq_set if queues is None else queues
        return self._locks.lock(body.consumer_group, wanted, body.client_id, now_ms())

    async def lock(self, body: LockBatchRequestBody) -> set[MessageQueue]:
        """Locks queues on this broker and on the other members; returns those that a majority granted."""
        granted_here = self.lock_here(body)
        if not granted_here:
            return set()
        votes = Counter(granted_here)
        work = [self._lock_at(address, body, granted_here) for address in self._others()]
        for granted in await asyncio.gather(*work):
            votes.update(granted)
        quorum = self._live.current.total_replicas // 2 + 1
        return {queue for queue, count in votes.items() if count >= quorum}

    def unlock(self, body: UnlockBatchRequestBody) -> None:
        """Unlocks queues on this broker, and in strict mode soon on the other members."""
        self.unlock_here(body, body.mq_set)
        self.unlock_elsewhere(body)

    def unlock_here(self, body: UnlockBatchRequestBody, queues: Iterable[MessageQueue]) -> None:
        """Unlocks some of a request's queues on this broker."""
        self._locks.unlock(body.consumer_group, queues, body.client_id)

    def unlock_elsewhere(self, body: UnlockBatchRequestBody) -> None:
        """In strict mode, unlocks queues soon on the other members."""
        if body.only_this_broker or not self._live.current.lock_in_strict_mode:
            return
        for address in self._others():
            if len(self._unlocks) >= PENDING_UNLOCKS_MAX:
                log.warning("too many unlock requests are under way: the locks at %s expire", address)
                return
            self._start(self._unlock_at(address, body))

    async def stop(self) -> None:
        """Ends the unlock requests under way."""
        tasks = list(self._unlocks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _others(self) -> list[str]:
        own = self._live.current.broker_id
        return [address for number, address in sorted(self.members().items()) if number != own]

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._unlocks.add(task)
        task.add_done_callback(self._unlocks.discard)

    async def _lock_at(
        self, address: str, body: LockBatchRequestBody, queues: Set[MessageQueue]
    ) -> set[MessageQueue]:
        """The queues that the member at `address` granted; none if it does not respond."""
        copy = LockBatchRequestBody(
            consumer_group=body.consumer_group,
            client_id=body.client_id,
            only_this_broker=True,
            mq_set=set(queues),
        )
        try:
            response = await self._ask(address, RequestCode.LOCK_BATCH_MQ, to_json(copy))
            return from_json(LockBatchResponseBody, response.body).lock_ok_mq_set & queues
        except EpochMQError as error:
            log.warning("the queues of %s could not be locked at %s: %s", body.client_id, address, error)
            return set()

    async def _unlock_at(self, address: str, body: UnlockBatchRequestBody) -> None:
        copy = UnlockBatchRequestBody(
            consumer_group=body.consumer_group,
            client_id=body.client_id,
            only_this_broker=True,
            mq_set=body.mq_set,
        )
        try:
            await self._ask(address, RequestCode.UNLOCK_BATCH_MQ, to_json(copy))
        except EpochMQError as error:
            log.warning("the queues of %s could not be unlocked at %s: %s", body.client_id, address, error)

    async def _ask(self, address: str, code: RequestCode, body: bytes) -> Command:
        response = await self._client.call(address, request(code, body=body), MEMBER_TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            raise EpochMQError(f"code {response.code}: {response.remark or 'no remark'}")
        return response
