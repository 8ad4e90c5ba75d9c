"""Shrinks a failing plan: removes events and network faults while the plan still breaks a promise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from tests.simulation.clockwork import Event, Network, ViolationError, World
from tests.simulation.fault_plan import Plan


class Livable(Protocol):
    """Runs plans."""

    def live(self, plan: Plan, *, verbose: bool = False) -> World: ...


@dataclass
class Shrunk:
    """The smallest plan that still breaks a promise, and its transcript with all messages."""

    plan: Plan
    text: str
    at_ms: float
    history: list[str]
    events_before: int
    runs: int


def shrink(kind: Livable, plan: Plan, seconds: float) -> Shrunk:
    """Shrinks a plan for at most `seconds`. ValueError if the plan breaks no promise."""
    stop_at = time.monotonic() + seconds
    first = _fails(kind, plan)
    if first is None:
        raise ValueError(f"seed {plan.seed} breaks no promise")
    runs, best, broken = 1, plan, first
    before = len(plan.events)
    progress = True
    while progress and time.monotonic() < stop_at:
        progress = False
        for candidate in _smaller(best, broken.at_ms):
            if time.monotonic() >= stop_at:
                break
            runs += 1
            found = _fails(kind, candidate)
            if found is not None:
                best, broken, progress = candidate, found, True
                break
    failure = _fails(kind, best, verbose=True) or broken
    return Shrunk(best, failure.text, failure.at_ms, failure.history, before, runs)


def _fails(kind: Livable, plan: Plan, *, verbose: bool = False) -> ViolationError | None:
    try:
        kind.live(plan, verbose=verbose)
    except ViolationError as violation:
        return violation
    except Exception as error:
        return ViolationError(f"{type(error).__name__}: {error}", plan.faults_ms, [])
    return None


def _smaller(plan: Plan, failed_at_ms: float) -> Iterator[Plan]:
    """Yields smaller plans, the smallest first: without events after the failure, with a better network,
    without events of one kind, without a half, a quarter … of the events."""
    events = plan.events
    within = [event for event in events if event.at_ms <= failed_at_ms]
    if len(within) < len(events):
        yield replace(plan, events=within)
    kinder = Network(delay_max_ms=plan.network.delay_max_ms)
    if plan.network != kinder:
        yield replace(plan, network=kinder)
        yield replace(plan, network=plan.network._replace(drop=0.0))
        yield replace(plan, network=plan.network._replace(duplicate=0.0))
        yield replace(plan, network=plan.network._replace(slow=0.0))
    if plan.drift:
        yield replace(plan, drift=0.0)
    for kind in sorted({event.kind for event in events}):
        yield replace(plan, events=[event for event in events if event.kind != kind])
    size = len(events) // 2
    while size >= 1:
        for at in range(0, len(events), size):
            yield replace(plan, events=_without(events, at, size))
        size //= 2


def _without(events: list[Event], at: int, size: int) -> list[Event]:
    return events[:at] + events[at + size :]
