"""Whether the objects of a group stand as they should, and what to apply where they do not."""

# pure: data in, effects out.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from epochmq_operator.plans.effects import Apply, Delete
from epochmq_operator.plans.objects import (
    APPLIED,
    Manifest,
    Owner,
    Ref,
    annotation,
    is_deleting,
    metadata,
    owned,
    owner_of,
    ref_of,
)
from epochmq_operator.plans.world import World
from epochmq_operator.resources import ControllerGroup, Group

Render = Callable[[Group, ControllerGroup | None], Sequence[Manifest]]
"""A group's manifests, given the controllers of a broker group."""
Differences = Callable[[Manifest, Manifest], Sequence[str]]
"""(wanted, observed): a line for every wanted field that is otherwise; what the API server filled in is no
difference."""

Belongings = Callable[[Group], Iterable[tuple[str, str]]]
"""(kind, name) of all objects that a group can ever have: what of them is there and not wanted, goes."""

Settled = Callable[[Manifest, Manifest], tuple[Manifest, tuple[str, ...]]]
"""(wanted, observed): the object as it can be applied, and a line for each wish that cannot be fulfilled."""

LISTED_MAX = 3


@dataclass(frozen=True, slots=True)
class Floor:
    """What lies under the plans: how a group's objects look, how two of them are compared, which it can
    ever have, and what of one is settled for good."""

    render: Render
    differences: Differences
    belongings: Belongings = lambda group: ()
    settled: Settled = lambda wanted, observed: (wanted, ())


def rendered(
    floor: Floor, world: World, group: Group, quorum: ControllerGroup | None
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:
    """A group's manifests as they can be applied, and a line for each wish that cannot be fulfilled while
    the objects are there."""
    made, lines = [], []
    for wanted in floor.render(group, quorum):
        seen = world.objects.get(ref_of(wanted))
        if seen is None:
            made.append(wanted)
            continue
        able, held = floor.settled(wanted, seen)
        made.append(able)
        lines += [f"{ref_of(wanted)}: {line}" for line in held]
    return tuple(made), tuple(lines)


class Standing(StrEnum):
    """How an object stands. `CHANGED`: the operator wants something else than it last applied; `DRIFTED`:
    somebody else changed or removed it; `LEAVING`: it or its former owner is being deleted; `TAKEN`: the name
    belongs to somebody else's object."""

    RIGHT = "right"
    MISSING = "missing"
    CHANGED = "changed"
    DRIFTED = "drifted"
    LEAVING = "leaving"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One object: what is wanted, how it stands, and, in words, what is wrong."""

    manifest: Manifest
    standing: Standing
    why: str = ""

    @property
    def ref(self) -> Ref:
        """Which object."""
        return ref_of(self.manifest)


def find(world: World, differences: Differences, wanted: Manifest, owner: Owner) -> Finding:
    """Compares one object with what is wanted of it."""
    manifest = owned(wanted, owner)
    ref = ref_of(manifest)
    seen = world.objects.get(ref)
    if seen is None:
        return Finding(manifest, Standing.MISSING, f"{ref} is not there")
    if is_deleting(seen):
        return Finding(manifest, Standing.LEAVING, f"{ref} is being deleted")
    mark, master = annotation(seen, APPLIED), owner_of(seen)
    if master is not None and master.uid != owner.uid:
        if mark is not None and (master.kind, master.name) == (owner.kind, owner.name):
            return Finding(
                manifest, Standing.LEAVING, f"{ref} belongs to a group of this name that was deleted"
            )
        return Finding(manifest, Standing.TAKEN, f"{ref} belongs to {master.kind} {master.name}")
    if mark is None:
        return Finding(manifest, Standing.TAKEN, f"{ref} was not made by the operator")
    if mark != annotation(manifest, APPLIED):
        return Finding(manifest, Standing.CHANGED, f"{ref} is to change")
    lines = [] if master is None else differences(manifest, seen)
    if master is None or lines:
        what = "; ".join(list(lines)[:LISTED_MAX]) or "it has lost its owner"
        return Finding(manifest, Standing.DRIFTED, f"{ref}: {what}")
    return Finding(manifest, Standing.RIGHT)


@dataclass(frozen=True, slots=True)
class Findings:
    """Several objects; `surplus` are those that nobody wants any more."""

    all: tuple[Finding, ...]
    surplus: tuple[Delete, ...] = ()

    @classmethod
    def of(cls, world: World, differences: Differences, wanted: Iterable[Manifest], owner: Owner) -> Findings:
        """Compares each of them."""
        return cls(tuple(find(world, differences, one, owner) for one in wanted))

    def or_else(self, other: Findings) -> Findings:
        """These, but what is wrong here and right there counts as right."""
        right = {one.ref for one in other.all if one.standing is Standing.RIGHT}
        return replace(
            self,
            all=tuple(replace(one, standing=Standing.RIGHT) if one.ref in right else one for one in self.all),
            surplus=tuple(one for one in self.surplus if one in other.surplus),
        )

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """Those that do not stand as they should."""
        return tuple(one for one in self.all if one.standing is not Standing.RIGHT)

    @property
    def taken(self) -> tuple[Finding, ...]:
        """Those whose names others have."""
        return tuple(one for one in self.all if one.standing is Standing.TAKEN)

    @property
    def missing(self) -> str:
        """What must go before anything can be applied; empty: nothing."""
        taken = self.taken
        if taken:
            return f"{_listed(taken)}: rename the group, or delete what has the name"
        return _listed(one for one in self.all if one.standing is Standing.LEAVING)

    @property
    def changed(self) -> bool:
        """Whether the operator itself wants something new of one of them."""
        return any(one.standing is Standing.CHANGED for one in self.all)

    @property
    def why(self) -> str:
        """What is wrong, in words."""
        return _listed(self.wrong) or "removes " + ", ".join(str(one.ref) for one in self.surplus)

    @property
    def done(self) -> bool:
        """Whether nothing is to be done about any of them."""
        return not self.wrong and not self.surplus

    @property
    def effects(self) -> tuple[Apply | Delete, ...]:
        """What puts them right."""
        wanting = (Standing.MISSING, Standing.CHANGED, Standing.DRIFTED)
        return (*(Apply(one.manifest) for one in self.all if one.standing in wanting), *self.surplus)


def surplus(
    world: World, floor: Floor, group: Group, wanted: Iterable[Manifest], owner: Owner
) -> tuple[Delete, ...]:
    """Objects of this group (and not of a former one of its name) that it could have and is not to have."""
    kept = {ref_of(one) for one in wanted}
    found = []
    for kind, name in sorted(floor.belongings(group)):
        ref = Ref(kind, world.namespace, name)
        seen = None if ref in kept else world.objects.get(ref)
        if seen is None or is_deleting(seen) or annotation(seen, APPLIED) is None:
            continue
        master = owner_of(seen)
        if master is not None and master.uid == owner.uid:
            found.append(Delete(ref, str(metadata(seen).get("uid", ""))))
    return tuple(found)


def _listed(findings: Iterable[Finding]) -> str:
    found = list(findings)
    more = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    return "; ".join(one.why for one in found[:LISTED_MAX]) + more
