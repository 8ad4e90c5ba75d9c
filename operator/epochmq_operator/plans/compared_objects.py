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
    owner_of,
    ref_of,
    with_owner,
)
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.resources import ControllerGroup, GroupResource

RenderManifests = Callable[[GroupResource, ControllerGroup | None], Sequence[Manifest]]
"""A group's manifests, given the controllers of a broker group."""
Differences = Callable[[Manifest, Manifest], Sequence[str]]
"""(wanted, observed): a line for every wanted field that is otherwise; what the API server filled in is no
difference."""

PossibleObjects = Callable[[GroupResource], Iterable[tuple[str, str]]]
"""(kind, name) of all objects that a group can ever have: what of them is there and not wanted, goes."""

KeepImmutableFields = Callable[[Manifest, Manifest], tuple[Manifest, tuple[str, ...]]]
"""(wanted, observed): the object as it can be applied, and a line for each wish that cannot be fulfilled."""

LISTED_MAX = 3


@dataclass(frozen=True, slots=True)
class Renderer:
    """What lies under the plans: how a group's objects look, how two of them are compared, which it can
    ever have, and what of one is settled for good."""

    render: RenderManifests
    differences: Differences
    possible_objects: PossibleObjects = lambda group: ()
    keep_immutable_fields: KeepImmutableFields = lambda wanted, observed: (wanted, ())


def applicable_manifests(
    renderer: Renderer, observed: ObservedState, group: GroupResource, controllers: ControllerGroup | None
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:
    """A group's manifests as they can be applied, and a line for each wish that cannot be fulfilled while
    the objects are there."""
    made, lines = [], []
    for wanted in renderer.render(group, controllers):
        present = observed.objects.get(ref_of(wanted))
        if present is None:
            made.append(wanted)
            continue
        able, held = renderer.keep_immutable_fields(wanted, present)
        made.append(able)
        lines += [f"{ref_of(wanted)}: {line}" for line in held]
    return tuple(made), tuple(lines)


class ObjectState(StrEnum):
    """How an object stands. `CHANGED`: the operator wants something else than it last applied; `DRIFTED`:
    somebody else changed or removed it; `LEAVING`: it or its former owner is being deleted; `TAKEN`: the name
    belongs to somebody else's object."""

    UP_TO_DATE = "right"
    MISSING = "missing"
    OUTDATED = "changed"
    DRIFTED = "drifted"
    DELETING = "leaving"
    FOREIGN = "taken"


@dataclass(frozen=True, slots=True)
class ComparedObject:
    """One object: what is wanted, how it stands, and, in words, what is wrong."""

    manifest: Manifest
    state: ObjectState
    why: str = ""

    @property
    def ref(self) -> Ref:
        """Which object."""
        return ref_of(self.manifest)


def compare_object(
    observed: ObservedState, differences: Differences, wanted: Manifest, owner: Owner
) -> ComparedObject:
    """Compares one object with what is wanted of it."""
    manifest = with_owner(wanted, owner)
    ref = ref_of(manifest)
    present = observed.objects.get(ref)
    if present is None:
        return ComparedObject(manifest, ObjectState.MISSING, f"{ref} is not there")
    if is_deleting(present):
        return ComparedObject(manifest, ObjectState.DELETING, f"{ref} is being deleted")
    mark, master = annotation(present, APPLIED), owner_of(present)
    if master is not None and master.uid != owner.uid:
        if mark is not None and (master.kind, master.name) == (owner.kind, owner.name):
            return ComparedObject(
                manifest, ObjectState.DELETING, f"{ref} belongs to a group of this name that was deleted"
            )
        return ComparedObject(manifest, ObjectState.FOREIGN, f"{ref} belongs to {master.kind} {master.name}")
    if mark is None:
        return ComparedObject(manifest, ObjectState.FOREIGN, f"{ref} was not made by the operator")
    if mark != annotation(manifest, APPLIED):
        return ComparedObject(manifest, ObjectState.OUTDATED, f"{ref} is to change")
    lines = [] if master is None else differences(manifest, present)
    if master is None or lines:
        what = "; ".join(list(lines)[:LISTED_MAX]) or "it has lost its owner"
        return ComparedObject(manifest, ObjectState.DRIFTED, f"{ref}: {what}")
    return ComparedObject(manifest, ObjectState.UP_TO_DATE)


@dataclass(frozen=True, slots=True)
class ComparedObjects:
    """Several objects; `surplus` are those that nobody wants any more."""

    all: tuple[ComparedObject, ...]
    surplus: tuple[Delete, ...] = ()

    @classmethod
    def of(
        cls, observed: ObservedState, differences: Differences, wanted: Iterable[Manifest], owner: Owner
    ) -> ComparedObjects:
        """Compares each of them."""
        return cls(tuple(compare_object(observed, differences, one, owner) for one in wanted))

    def or_else(self, other: ComparedObjects) -> ComparedObjects:
        """These, but what is wrong here and right there counts as right."""
        right = {one.ref for one in other.all if one.state is ObjectState.UP_TO_DATE}
        return replace(
            self,
            all=tuple(
                replace(one, state=ObjectState.UP_TO_DATE) if one.ref in right else one for one in self.all
            ),
            surplus=tuple(one for one in self.surplus if one in other.surplus),
        )

    @property
    def not_up_to_date(self) -> tuple[ComparedObject, ...]:
        """Those that do not stand as they should."""
        return tuple(one for one in self.all if one.state is not ObjectState.UP_TO_DATE)

    @property
    def foreign(self) -> tuple[ComparedObject, ...]:
        """Those whose names others have."""
        return tuple(one for one in self.all if one.state is ObjectState.FOREIGN)

    @property
    def waits_for(self) -> str:
        """What must go before anything can be applied; empty: nothing."""
        taken = self.foreign
        if taken:
            return f"{_listed(taken)}: rename the group, or delete what has the name"
        return _listed(one for one in self.all if one.state is ObjectState.DELETING)

    @property
    def changed(self) -> bool:
        """Whether the operator itself wants something new of one of them."""
        return any(one.state is ObjectState.OUTDATED for one in self.all)

    @property
    def why(self) -> str:
        """What is wrong, in words."""
        return _listed(self.not_up_to_date) or "removes " + ", ".join(str(one.ref) for one in self.surplus)

    @property
    def done(self) -> bool:
        """Whether nothing is to be done about any of them."""
        return not self.not_up_to_date and not self.surplus

    @property
    def effects(self) -> tuple[Apply | Delete, ...]:
        """What puts them right."""
        wanting = (ObjectState.MISSING, ObjectState.OUTDATED, ObjectState.DRIFTED)
        return (*(Apply(one.manifest) for one in self.all if one.state in wanting), *self.surplus)


def surplus(
    observed: ObservedState,
    renderer: Renderer,
    group: GroupResource,
    wanted: Iterable[Manifest],
    owner: Owner,
) -> tuple[Delete, ...]:
    """Objects of this group (and not of a former one of its name) that it could have and is not to have."""
    kept = {ref_of(one) for one in wanted}
    found = []
    for kind, name in sorted(renderer.possible_objects(group)):
        ref = Ref(kind, observed.namespace, name)
        present = None if ref in kept else observed.objects.get(ref)
        if present is None or is_deleting(present) or annotation(present, APPLIED) is None:
            continue
        master = owner_of(present)
        if master is not None and master.uid == owner.uid:
            found.append(Delete(ref, str(metadata(present).get("uid", ""))))
    return tuple(found)


def _listed(compared: Iterable[ComparedObject]) -> str:
    found = list(compared)
    more = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    return "; ".join(one.why for one in found[:LISTED_MAX]) + more
