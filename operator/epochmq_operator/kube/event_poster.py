"""Posts Events beside the reconciliations. An Event is for people and best effort: no status, no write and no
finalizer waits for it, and one that the API server does not accept is counted and dropped."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import structlog

from epochmq_operator.kube.api import Api, ApiError
from epochmq_operator.kube.lease_holder import LeadershipLostError
from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.effects import CreateEvent
from epochmq_operator.plans.objects import Manifest, Owner, Ref, metadata

QUEUED_MAX = 1024
"""So many Events wait to be posted. The oldest one is dropped for another."""
KEYS_MAX = 4096
"""The most keys of Events that are remembered."""
ATTEMPTS = 3
"""How often an Event is posted that the API server does not accept at present."""
AGAIN_S = 2.0
"""The delay between two of these attempts."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """An Event that waits to be posted, as the API server accepts it, and the key by which it is known."""

    key: str
    manifest: dict[str, Any]


class EventPoster:
    """A bounded queue of Events, and the task that posts them."""

    def __init__(self, api: Api, metrics: OperatorMetrics) -> None:
        self._api = api
        self._metrics = metrics
        self._queue: deque[QueuedEvent] = deque()
        self._filled = asyncio.Event()
        self._keys: OrderedDict[str, None] = OrderedDict()
        """The keys of Events that were queued, oldest first."""

    def put(self, effect: CreateEvent, ref: Ref, resource: Manifest) -> bool:
        """Queues an Event about the resource, unless one with its key was queued before; returns whether it
        was queued."""
        if effect.key in self._keys:
            return False
        log.info(effect.message, reason=effect.reason, resource=str(ref), namespace=ref.namespace)
        self._keys[effect.key] = None
        while len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)
        self._queue.append(QueuedEvent(effect.key, event_of(effect, ref, resource, time.time())))
        while len(self._queue) > QUEUED_MAX:
            self._lost(self._queue.popleft(), "the queue is full")
        self._filled.set()
        return True

    async def run(self) -> None:
        """Posts Events until cancelled. LeadershipLostError when the lease is lost."""
        while True:
            self._filled.clear()
            while self._queue:
                queued = self._queue.popleft()
                try:
                    await self._post(queued)
                except LeadershipLostError:
                    raise
                except Exception as error:  # Nothing that goes wrong with an Event may end the operator.
                    self._lost(queued, f"{type(error).__name__}: {error}")
            await self._filled.wait()

    async def _post(self, queued: QueuedEvent) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._api.create(queued.manifest)
                return
            except ApiError as error:
                if error.status == 409:
                    return  # It exists: an earlier operator was killed after it had created the Event.
                # 404: the namespace is gone.
                if error.is_rejection or error.status == 404 or attempt == ATTEMPTS:
                    self._lost(queued, str(error))
                    return
            await asyncio.sleep(AGAIN_S)

    def _lost(self, queued: QueuedEvent, why: str) -> None:
        self._metrics.lost_events.inc()
        log.warning("an Event was dropped", name=queued.manifest["metadata"]["name"], error=why)


def event_of(effect: CreateEvent, ref: Ref, resource: Manifest, now: float) -> dict[str, Any]:
    """The Event as the API server accepts it. Its name is derived from the effect's key."""
    suffix = hashlib.sha256(effect.key.encode()).hexdigest()[:16]
    owner = Owner(ref.kind, ref.name, str(metadata(resource).get("uid", "")))
    involved = {key: owner.reference()[key] for key in ("apiVersion", "kind", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{ref.name}.{suffix}", "namespace": ref.namespace},
        "involvedObject": {**involved, "namespace": ref.namespace},
        "type": str(effect.type),
        "reason": effect.reason,
        "message": effect.message[:1000],
        "source": {"component": "epochmq-operator"},
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }
