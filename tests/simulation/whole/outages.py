"""What stays broken while a group is expected to serve: processes that are down, links that are cut.

An outage begins among the faults of a run, and lasts until the group has been seen to accept messages without
what is missing (`liveness`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product

from tests.simulation.whole.group import PROBE, Group

OUTAGES_MAX = 2


@dataclass(frozen=True)
class Outage:
    """`before`: the number of the fault before which it begins. `target`: as of a fault."""

    kind: str
    before: int
    target: int


def draw(seed: int, faults: int, *, controllers: bool, acting: bool = False) -> tuple[Outage, ...]:
    """The outages of a seed whose plan has so many faults, for a group with or without controllers; or, with
    `acting`, for one whose slaves act for the master."""
    dice = random.Random(seed * 53 + 11)
    kinds = [kind for kind in GENERAL_OUTAGES if controllers or "controller" not in kind]
    kinds += ACTING_OUTAGES if acting else []
    return tuple(
        Outage(dice.choice(kinds), dice.randint(0, faults), dice.randrange(60))
        for _ in range(dice.randint(1, OUTAGES_MAX))
    )


@contextlib.contextmanager
def lasting(group: Group, outage: Outage) -> Iterator[None]:
    """The outage lasts as long as the block."""
    site = group.site
    site.trace.tell(f"{site.loop.time():.3f} --- lasting: {outage.kind} ({outage.target})")
    with OUTAGES[outage.kind](group, outage.target):
        yield
    site.trace.tell(f"{site.loop.time():.3f} --- ends: {outage.kind}")


@contextlib.contextmanager
def _down(group: Group, name: str) -> Iterator[None]:
    with group.kept_down([name]):
        if name in group.site.processes:
            group.site.kill(name)
        yield


@contextlib.contextmanager
def _both_down(group: Group, one: str, other: str) -> Iterator[None]:
    with _down(group, one), _down(group, other):
        yield


@contextlib.contextmanager
def _apart(group: Group, ones: list[str], others: list[str], *, one_way: bool = False) -> Iterator[None]:
    pairs = [(one, other) for one, other in product(ones, others) if one != other]
    links = pairs if one_way else pairs + [(other, one) for one, other in pairs]
    with group.site.network.separated(links):
        yield


def _one(names: list[str], target: int) -> str:
    return names[target % len(names)]


def _two(names: list[str], target: int) -> tuple[list[str], list[str]]:
    """Two different ones."""
    first = target % len(names)
    second = (first + 1 + target // len(names) % (len(names) - 1)) % len(names)
    return [names[first]], [names[second]]


def _master(group: Group, target: int) -> str:
    return _one(group.masters() or group.brokers, target)


def _replicas(group: Group, master: str) -> list[str]:
    return [name for name in group.brokers if name != master]


Lasting = Callable[[Group, int], AbstractContextManager[None]]

GENERAL_OUTAGES: dict[str, Lasting] = {
    "a broker is down": lambda group, at: _down(group, _one(group.brokers, at)),
    "the master is down": lambda group, at: _down(group, _master(group, at)),
    "a controller is down": lambda group, at: _down(group, _one(group.controllers, at)),
    "a broker is cut off": lambda group, at: _apart(
        group, [_one(group.brokers, at)], [*group.members, *group.clients, PROBE]
    ),
    "the master is cut off": lambda group, at: _apart(
        group, [_master(group, at)], [*group.members, *group.clients, PROBE]
    ),
    "a controller is cut off": lambda group, at: _apart(
        group, [_one(group.controllers, at)], [*group.members, *group.clients]
    ),
    "a broker does not reach the controllers": lambda group, at: _apart(
        group, [_one(group.brokers, at)], group.controllers
    ),
    "the master does not reach the controllers": lambda group, at: _apart(
        group, [_master(group, at)], group.controllers
    ),
    "controllers do not reach a broker, one way": lambda group, at: _apart(
        group, group.controllers, [_one(group.brokers, at)], one_way=True
    ),
    "a broker does not reach the controllers, one way": lambda group, at: _apart(
        group, [_one(group.brokers, at)], group.controllers, one_way=True
    ),
    "a broker does not reach one controller": lambda group, at: _apart(
        group, [_one(group.brokers, at)], [_one(group.controllers, at // 3)]
    ),
    "two brokers do not reach each other": lambda group, at: _apart(group, *_two(group.brokers, at)),
    "a broker does not reach another one, one way": lambda group, at: _apart(
        group, *_two(group.brokers, at), one_way=True
    ),
    "the master does not reach its replicas": lambda group, at: _apart(
        group, [_master(group, at)], _replicas(group, _master(group, at))
    ),
    "the master does not reach its replicas, one way": lambda group, at: _apart(
        group, [_master(group, at)], _replicas(group, _master(group, at)), one_way=True
    ),
    "replicas do not reach the master, one way": lambda group, at: _apart(
        group, _replicas(group, _master(group, at)), [_master(group, at)], one_way=True
    ),
    "two controllers do not reach each other": lambda group, at: _apart(group, *_two(group.controllers, at)),
    "a controller does not reach another one, one way": lambda group, at: _apart(
        group, *_two(group.controllers, at), one_way=True
    ),
}
ACTING_OUTAGES: dict[str, Lasting] = {
    "the master of id 0 is down": lambda group, at: _down(group, group.brokers[0]),
    "the master and a slave are down": lambda group, at: _both_down(
        group, group.brokers[0], _one(group.brokers[1:], at)
    ),
    "the master does not reach the nameserver": lambda group, at: _apart(
        group, group.brokers[:1], [group.nameserver]
    ),
    "a slave does not reach the nameserver": lambda group, at: _apart(
        group, [_one(group.brokers[1:], at)], [group.nameserver]
    ),
    "the other group is down": lambda group, at: _down(group, group.others[0]),
}
OUTAGES: dict[str, Lasting] = {**GENERAL_OUTAGES, **ACTING_OUTAGES}
