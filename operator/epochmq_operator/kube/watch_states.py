"""Knows of each watch when the API server responded to it last, and why it fails. An operator must not decide
by what it cannot see: a standby does not take the Lease while a watch fails, and a resource is not reconciled
without the kinds of objects that its plan needs.

A kind or namespace that cannot be read for long is given up, so that it stops only what needs it: the
operator works without it, says so by metrics and in its log, and uses it as soon as it can be read again.
While no watch at all gets a response, the API server is down, and none is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from epochmq_operator.kube.api import WATCH_S
from epochmq_operator.kube.liveness import WATCH_LIMIT_S, Liveness
from epochmq_operator.kube.metrics import WatchAge

STALE_AFTER_S: Final = 2.0 * WATCH_S
"""A watch ends by itself after `WATCH_S`, so the API server responds to each one more often than this."""
FORBIDDEN_FOR_S, FAILING_FOR_S = 30.0, 120.0
"""A watch is given up when the operator lacks the right to it, or when it fails otherwise, for so long while
other watches work."""
NO_RIGHT = (403, 404)

Watched = tuple[str, str | None]
"""A kind and a namespace; None: all namespaces."""

log = structlog.get_logger()


@dataclass(slots=True)
class WatchState:
    """The state of a watch. `heard_s` is when the API server responded last; before the first response, when
    the watch was expected first. `fault` says why it fails since `failing_s`; empty if it works."""

    kind: str
    namespace: str | None
    heard_s: float
    failing_s: float
    fault: str = "has not listed yet"
    status: int = 0
    listed: bool = False
    reported: bool = False

    @property
    def name(self) -> str:
        """The watch as people know it."""
        return f"the watch of {self.kind} in {self.where}"

    @property
    def where(self) -> str:
        """The namespace as people know it."""
        return self.namespace or "all namespaces"


class WatchStates:
    """The states of all watches of one operator. `liveness` learns of each sign of life."""

    def __init__(
        self, liveness: Liveness | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._liveness = liveness or Liveness(clock_s)
        self._clock_s = clock_s
        self._states: dict[Watched, WatchState] = {}
        self._works_since_s = clock_s()
        """Since when at least one watch works."""

    def expect(self, kind: str, namespace: str | None) -> WatchState:
        """Notes that there is, or will be, such a watch."""
        found = self._states.get((kind, namespace))
        if found is None:
            now_s = self._clock_s()
            found = self._states[kind, namespace] = WatchState(kind, namespace, now_s, now_s)
            self._liveness.begin(found.name, WATCH_LIMIT_S)
        return found

    def forget(self, kind: str, namespace: str | None) -> None:
        """Notes that there is no such watch any more, because the kind is not defined."""
        found = self._states.pop((kind, namespace), None)
        if found is not None:
            self._liveness.end(found.name)

    def begin(self, kind: str, namespace: str | None) -> None:
        """Notes that a request begins, which ends within `WATCH_LIMIT_S`."""
        self._liveness.begin(self.expect(kind, namespace).name, WATCH_LIMIT_S)

    def listed(self, kind: str, namespace: str | None) -> None:
        """Notes that all objects are known."""
        self.expect(kind, namespace).listed = True
        self.heard(kind, namespace)

    def heard(self, kind: str, namespace: str | None) -> None:
        """Notes a response."""
        found, now_s = self.expect(kind, namespace), self._clock_s()
        if all(one.fault for one in self._states.values()):
            self._works_since_s = now_s
        found.heard_s, found.status = now_s, 0
        if found.listed:
            if found.reported:
                log.info("a watch works again", watch=found.name)
            found.fault, found.reported = "", False
        self._liveness.begin(found.name, WATCH_LIMIT_S)

    def failed(self, kind: str, namespace: str | None, status: int, fault: str) -> None:
        """Notes that a request failed with this HTTP status, 0 if there was no response."""
        found = self.expect(kind, namespace)
        if not found.fault:
            found.failing_s = self._clock_s()
        found.status, found.fault = status, f"fails: {fault}"[:300]
        self._liveness.begin(found.name, WATCH_LIMIT_S)
        if self._is_given_up(found) and not found.reported:
            found.reported = True
            log.error("working without a watch", watch=found.name, error=fault)

    def blind(self) -> list[str]:
        """Describes each watch by which the operator sees nothing at present, unless it is given up. Call it
        from any thread."""
        now_s = self._clock_s()
        found = []
        for one in list(self._states.values()):
            if one.fault:
                if not self._is_given_up(one):
                    found.append(f"{one.name} {one.fault}")
            elif now_s - one.heard_s > STALE_AFTER_S:
                found.append(f"{one.name} has had no response for {now_s - one.heard_s:.0f} s")
        return sorted(found)

    def missing(self, kinds: Iterable[str], namespace: str) -> str:
        """Which of these kinds cannot be seen in a namespace, and why; empty if all can."""
        wanted = set(kinds)
        found = [
            f"{one.name} {one.fault}"
            for one in self._states.values()
            if one.kind in wanted
            and one.namespace in (None, namespace)
            and (not one.listed or self._is_given_up(one))
        ]
        return "; ".join(sorted(found))

    def ages(self) -> list[WatchAge]:
        """The age of each watch."""
        now_s = self._clock_s()
        return [
            WatchAge(one.kind, one.where, now_s - one.heard_s, bool(one.fault))
            for one in self._states.values()
        ]

    def _is_given_up(self, state: WatchState) -> bool:
        if not state.fault or all(one.fault for one in list(self._states.values())):
            return False
        limit_s = FORBIDDEN_FOR_S if state.status in NO_RIGHT else FAILING_FOR_S
        return self._clock_s() - max(state.failing_s, self._works_since_s) > limit_s
