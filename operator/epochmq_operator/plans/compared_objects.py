"""Compares the objects of a group with their manifests, and says what to apply."""

# pure: data in, effects out.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from epochmq_operator.manifests import possible_objects
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
    spec_of,
    with_owner,
)
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.renderer import Differences
from epochmq_operator.resources import GroupResource

LISTED_MAX = 3
REMEMBERED_MAX = 20_000
"""The most objects whose comparison a `ComparisonCache` remembers."""
REWRITTEN_AFTER = 2
"""So many applies in a row that leave the same differences show that a webhook writes these fields."""
HEADLESS = "None"
"""The clusterIP of a Service that has none."""


class ObjectState(StrEnum):
    """How an object compares with its manifest. `OUTDATED`: the operator wants something else than it last
    applied. `DRIFTED`: others changed the object. `REPLACED`: others deleted it and created it again with
    other values in fields that cannot change. `DELETING`: the object or its former owner is being
    deleted. `FOREIGN`: the name belongs to an object that the operator did not make for this group."""

    UP_TO_DATE = "up to date"
    MISSING = "missing"
    OUTDATED = "outdated"
    DRIFTED = "drifted"
    REPLACED = "replaced"
    DELETING = "deleting"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class ComparedObject:
    """One object: its manifest, how it compares, what is wrong in words, and the uid of the present
    object."""

    manifest: Manifest
    state: ObjectState
    why: str = ""
    uid: str = ""

    @property
    def ref(self) -> Ref:
        """The object."""
        return ref_of(self.manifest)

    @property
    def effects(self) -> tuple[Apply | Delete, ...]:
        """What brings the object up to date, or the deletion that comes first."""
        if self.state is ObjectState.REPLACED:
            return (Delete(self.ref, self.uid),)
        wanting = (ObjectState.MISSING, ObjectState.OUTDATED, ObjectState.DRIFTED)
        return (Apply(self.manifest),) if self.state in wanting else ()


def compare_object(
    observed: ObservedState, differences: Differences, wanted: Manifest, owner: Owner
) -> ComparedObject:
    """Compares one object with its manifest."""
    manifest = with_owner(wanted, owner)
    ref = ref_of(manifest)
    present = observed.objects.get(ref)
    if present is None:
        return ComparedObject(manifest, ObjectState.MISSING, f"{ref} does not exist")
    if is_deleting(present):
        return ComparedObject(manifest, ObjectState.DELETING, f"{ref} is being deleted")
    mark, master = annotation(present, APPLIED), owner_of(present)
    ours = master is not None and master.uid == owner.uid
    if master is not None and not ours:
        if mark is not None and (master.kind, master.name) == (owner.kind, owner.name):
            return ComparedObject(
                manifest, ObjectState.DELETING, f"{ref} belongs to a deleted group of the same name"
            )
        return ComparedObject(manifest, ObjectState.FOREIGN, f"{ref} belongs to {master.kind} {master.name}")
    if mark is None and not ours:
        return ComparedObject(manifest, ObjectState.FOREIGN, f"{ref} was not made by the operator")
    fixed = _fixed_difference(manifest, present, differences)
    if fixed:
        uid = str(metadata(present).get("uid", ""))
        return ComparedObject(manifest, ObjectState.REPLACED, f"{ref}: {fixed}", uid)
    if mark is not None and mark != annotation(manifest, APPLIED):
        return ComparedObject(manifest, ObjectState.OUTDATED, f"{ref} is outdated")
    lines = differences(manifest, present) if ours else []
    if not ours or lines:
        what = "; ".join(list(lines)[:LISTED_MAX]) or "its owner reference is missing"
        return ComparedObject(manifest, ObjectState.DRIFTED, f"{ref}: {what}")
    return ComparedObject(manifest, ObjectState.UP_TO_DATE)


def _fixed_difference(manifest: Manifest, present: Manifest, differences: Differences) -> str:
    """The difference in a field that the API server does not let anybody change, so that only a new object
    can have the right value: the data of an immutable ConfigMap, and whether a Service is headless. Empty
    without one."""
    if manifest.get("kind") == "ConfigMap" and present.get("immutable") is True:
        content = {key: manifest[key] for key in ("data", "immutable") if key in manifest}
        return "; ".join(list(differences(content, present))[:LISTED_MAX])
    if manifest.get("kind") == "Service":
        wanted, there = (spec_of(one).get("clusterIP") for one in (manifest, present))
        if (wanted == HEADLESS) != (there == HEADLESS):
            return f"spec.clusterIP: {there or 'not set'}, should be {wanted or 'set by Kubernetes'}"
    return ""


@dataclass(frozen=True, slots=True)
class ComparedObjects:
    """Several objects, and the deletions of surplus ones."""

    all: tuple[ComparedObject, ...]
    surplus: tuple[Delete, ...] = ()

    @classmethod
    def of(
        cls, observed: ObservedState, differences: Differences, wanted: Iterable[Manifest], owner: Owner
    ) -> ComparedObjects:
        """Compares each object with its manifest."""
        return cls(tuple(compare_object(observed, differences, one, owner) for one in wanted))

    @property
    def not_up_to_date(self) -> tuple[ComparedObject, ...]:
        """The objects that are not up to date."""
        return tuple(one for one in self.all if one.state is not ObjectState.UP_TO_DATE)

    @property
    def foreign(self) -> tuple[ComparedObject, ...]:
        """The objects whose names belong to foreign objects."""
        return tuple(one for one in self.all if one.state is ObjectState.FOREIGN)

    @property
    def waits_for(self) -> str:
        """Which objects must go before anything can be applied; empty if none."""
        taken = self.foreign
        if taken:
            return f"{_listed(taken)}: rename the group, or delete that object"
        return _listed(one for one in self.all if one.state is ObjectState.DELETING)

    @property
    def changed(self) -> bool:
        """Whether the operator wants a new state of one of the objects."""
        return any(one.state is ObjectState.OUTDATED for one in self.all)

    @property
    def drifted(self) -> bool:
        """Whether others changed objects, and nothing else is to be applied."""
        states = {one.state for one in self.not_up_to_date}
        return bool(states) and states <= {ObjectState.DRIFTED, ObjectState.REPLACED} and not self.surplus

    @property
    def why(self) -> str:
        """What is wrong, in words."""
        return _listed(self.not_up_to_date) or "removes " + ", ".join(str(one.ref) for one in self.surplus)

    @property
    def done(self) -> bool:
        """Whether all objects are up to date and none is surplus."""
        return not self.not_up_to_date and not self.surplus

    @property
    def effects(self) -> tuple[Apply | Delete, ...]:
        """The effects that bring the objects up to date."""
        return (*(effect for one in self.all for effect in one.effects), *self.surplus)


def surplus(
    observed: ObservedState, group: GroupResource, wanted: Iterable[Manifest], owner: Owner
) -> tuple[Delete, ...]:
    """Deletions of objects of this group (not of a deleted group of its name) that it could have and is not
    to have."""
    kept = {ref_of(one) for one in wanted}
    found = []
    for kind, name in sorted(possible_objects(group)):
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


@dataclass(frozen=True, slots=True)
class RewrittenFields:
    """The differences that an object had in the response to its apply: an admission webhook writes other
    values than the operator. `digest` is that of the manifest, `applied` how often in a row the differences
    were the same."""

    digest: str
    uid: str
    lines: tuple[str, ...]
    applied: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether another apply would change nothing."""
        return self.applied >= REWRITTEN_AFTER


class ComparisonCache:
    """Compares objects, which would be nearly all the work of an idle operator, and remembers the versions of
    those without differences. The version of a manifest is the digest that is applied with it; that of an
    observed object is its resourceVersion.

    It also remembers fields that the API server stores with other values than were applied. To apply them
    again changes nothing, so they count as no difference until the manifest or the object is another one."""

    def __init__(self, differences: Differences) -> None:
        self._differences = differences
        self._same: OrderedDict[Ref, tuple[str, str, str]] = OrderedDict()
        self._rewritten: OrderedDict[Ref, RewrittenFields] = OrderedDict()

    def __call__(self, wanted: Manifest, observed: Manifest) -> Sequence[str]:
        """The differences, one line each."""
        digest, meta = annotation(wanted, APPLIED), metadata(observed)
        version, uid = meta.get("resourceVersion"), meta.get("uid")
        if not digest or not isinstance(version, str) or not isinstance(uid, str):
            return self._differences(wanted, observed)
        ref, versions = ref_of(wanted), (digest, uid, version)
        if self._same.get(ref) == versions:
            return ()
        lines = self._differences(wanted, observed)
        known = self._rewritten.get(ref)
        if (
            known is not None
            and known.applied >= REWRITTEN_AFTER
            and (known.digest, known.uid) == (digest, uid)
        ):
            lines = [line for line in lines if line not in known.lines]
        if not lines:
            self._same[ref] = versions
            self._same.move_to_end(ref)
            while len(self._same) > REMEMBERED_MAX:
                self._same.popitem(last=False)
        return lines

    def note_applied(self, manifest: Manifest, stored: Manifest) -> tuple[str, ...]:
        """Notes what the API server stored of a manifest that it applied. Returns the differences from now on
        ignored, once; empty if there are none, or if that is known."""
        ref, digest = ref_of(manifest), annotation(manifest, APPLIED)
        lines = tuple(self._differences(manifest, stored)) if digest else ()
        known = self._rewritten.pop(ref, None)
        if not lines or not digest:
            return ()
        made = RewrittenFields(digest, str(metadata(stored).get("uid", "")), lines)
        if known is not None and (known.digest, known.uid, known.lines) == (
            made.digest,
            made.uid,
            made.lines,
        ):
            made = replace(made, applied=known.applied + 1)
        self._rewritten[ref] = made
        while len(self._rewritten) > REMEMBERED_MAX:
            self._rewritten.popitem(last=False)
        return lines if made.applied == REWRITTEN_AFTER else ()
