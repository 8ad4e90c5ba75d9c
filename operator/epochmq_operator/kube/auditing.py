"""Looks after audits, as the reconciler does after groups: the same caretakers, with plans of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from epochmq_operator.audits import plan
from epochmq_operator.audits.manifests import AuditSettings
from epochmq_operator.audits.plan import AuditWorld
from epochmq_operator.kube.reconciler import Reconciler, _Caretaker, controllers_named
from epochmq_operator.plans.effects import Pass
from epochmq_operator.plans.objects import Manifest, Ref
from epochmq_operator.plans.words import Word
from epochmq_operator.plans.world import World
from epochmq_operator.resources.audit import KIND


class Auditor(Reconciler):
    """All audits' caretakers."""

    kinds = (KIND,)

    def __init__(self, settings: AuditSettings, *shared: Any) -> None:
        """`shared` is what a reconciler of groups is given."""
        super().__init__(*shared)
        self._settings = settings

    async def _made(self, ref: Ref, resource: Manifest, caretaker: _Caretaker) -> Pass:
        objects = self._cache.namespace(ref.namespace)
        seen = AuditWorld(World(resource, objects, refusal=caretaker.refusal))
        if plan.wants_cut(seen.world):
            seen = await self._asked_of(ref, resource, caretaker)
        return plan.step(self._settings, seen, time.time())

    async def _asked_of(self, ref: Ref, resource: Manifest, caretaker: _Caretaker) -> AuditWorld:
        """The replicas are asked: first how they are, then for their epoch files, then once more."""
        objects = self._cache.namespace(ref.namespace)
        spec = resource.get("spec") or {}
        group = Ref("BrokerGroup", ref.namespace, str(spec.get("brokerGroup", "")))
        found = objects.get(group)
        if found is None:
            return AuditWorld(World(resource, objects, refusal=caretaker.refusal))
        quorum = Ref("ControllerGroup", ref.namespace, controllers_named(found))
        words: dict[str, Word] = {}
        for one in (quorum, group):
            pods, credentials = await self._reached(objects, one)
            words.update(await self._sidecars.words(ref.namespace, pods, credentials))
        copies = await self._sidecars.epoch_files(ref.namespace, pods, credentials)
        later = await self._sidecars.words(ref.namespace, pods, credentials)
        return AuditWorld(World(resource, objects, words, refusal=caretaker.refusal), copies, later)


def both_hear(groups: Reconciler, audits: Reconciler) -> Callable[[Manifest], None]:
    """A listener of the cache that tells both."""

    def heard(manifest: Manifest) -> None:
        groups.heard(manifest)
        audits.heard(manifest)

    return heard
