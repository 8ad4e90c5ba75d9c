"""Draws the faults of a run from its seed, as a list of events in the order of time. Each seed has another
mixture of kinds, so that every kind also occurs alone and often ("swarm testing")."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.clockwork import Event, Network

Make = Callable[[random.Random], tuple[Any, ...]]


@dataclass
class Plan:
    """Everything that a seed decides before the run begins. A failing run is shrunk by shrinking its plan.
    Faults occur for `faults_ms`; then the world has `quiet_ms` to recover."""

    seed: int
    network: Network
    peers: int = 3
    drift: float = 0.02
    options: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    faults_ms: float = 48_000
    quiet_ms: float = 12_000

    def lines(self) -> list[str]:
        """The plan as text."""
        shown = [event for event in self.events if event.kind not in ("propose", "read")]
        return [f"seed {self.seed}: {self.peers} peers, {self.options}, {self.network}", *map(str, shown)]


def network(rng: random.Random) -> Network:
    """Draws the faults of the network: none, loss, duplicates, delays, or several of them."""
    return Network(
        drop=rng.choice((0, 0.01, 0.05, 0.15)),
        duplicate=rng.choice((0, 0.02, 0.1)),
        delay_max_ms=rng.choice((2, 10, 30, 60)),
        slow=rng.choice((0, 0, 0.02, 0.1)),
    )


def stream(rng: random.Random, kind: str, per_minute: float, until_ms: float, make: Make) -> Iterator[Event]:
    """Draws events of one kind at random moments, `per_minute` on average."""
    at_ms = 0.0
    while per_minute > 0:
        at_ms += rng.expovariate(per_minute / 60_000)
        if at_ms >= until_ms:
            return
        yield Event(at_ms, kind, make(rng))


def mixture(rng: random.Random, rates: dict[str, float], share: float = 0.6) -> dict[str, float]:
    """Draws which kinds of events occur, and how often per minute each of them does."""
    return {
        kind: per_minute * rng.choice((0.4, 1, 2.5)) if rng.random() < share else 0.0
        for kind, per_minute in rates.items()
    }


def sequence(streams: list[Iterator[Event]]) -> list[Event]:
    """Merges events into one list in the order of time."""
    return sorted(event for one in streams for event in one)


def peer_makers(names: list[str]) -> dict[str, Make]:
    """By kind of event: draws its arguments. Events often hit the leader."""

    def who(rng: random.Random) -> str:
        return "leader" if rng.random() < 0.4 else rng.choice(names)

    def way(rng: random.Random) -> str:
        return rng.choice(("both", "both", "in", "out"))

    def down(rng: random.Random) -> float:
        return round(rng.choice((20, 300, 3000)) * (0.5 + rng.random()))

    return {
        "kill": lambda r: (who(r), down(r), r.choice((None, None, 0, 1, 2, 3))),
        "blackout": lambda r: (down(r),),
        "fail_sync": lambda r: (who(r), down(r)),
        "slow_disk": lambda r: (who(r), round(r.uniform(200, 6000))),
        "full_disk": lambda r: (who(r), round(r.uniform(200, 3000))),
        "swamp": lambda r: (round(r.uniform(500, 4000)),),
        "stuck_disks": lambda r: (round(r.choice((1500, 8000)) * (0.5 + r.random())),),
        "stale": lambda r: (round(r.uniform(600, 4000)), round(r.uniform(0, 600))),
        "pause": lambda r: (who(r), round(r.choice((300, 3000)) * (0.2 + r.random()))),
        "cut": lambda r: (who(r), r.choice(names), r.random() < 0.5, round(r.uniform(200, 8000))),
        "isolate": lambda r: (who(r), way(r), round(r.uniform(200, 6000))),
        "leap": lambda r: (who(r), round(r.choice((50, 500, 5000)) * (0.5 + r.random()))),
        "transfer": lambda r: ("leader", r.choice(names)),
    }


PEER_RATES = {
    "kill": 8.0,
    "blackout": 2.0,
    "fail_sync": 2.0,
    "slow_disk": 3.0,
    "full_disk": 1.0,
    "swamp": 1.0,
    "stuck_disks": 1.5,
    "stale": 3.0,
    "pause": 4.0,
    "cut": 8.0,
    "isolate": 5.0,
    "leap": 3.0,
    "transfer": 3.0,
}
