"""Declares the interface between the operator's plans and the manifests: the functions that render, compare
and list a group's objects, which the driver passes to the plans."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from epochmq_operator.plans.objects import Manifest, ref_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.resources import ControllerGroup, GroupResource

RenderManifests = Callable[[GroupResource, ControllerGroup | None], Sequence[Manifest]]
"""Renders a group's manifests, given the ControllerGroup of a broker group."""
Differences = Callable[[Manifest, Manifest], Sequence[str]]
"""(desired, observed) → one line for every desired field that differs. Fields that the API server filled in
do not count."""

PossibleObjects = Callable[[GroupResource], Iterable[tuple[str, str]]]
"""(kind, name) of all objects that a group can ever have. The operator deletes those that the group is not to
have any more."""

KeepImmutableFields = Callable[[Manifest, Manifest], tuple[Manifest, tuple[str, ...]]]
"""(desired, observed) → the desired manifest with immutable fields as observed, and one line for each desired
change of an immutable field."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """The functions that know what the manifests contain; the plans do not."""

    render: RenderManifests
    differences: Differences
    possible_objects: PossibleObjects = lambda group: ()
    keep_immutable_fields: KeepImmutableFields = lambda wanted, observed: (wanted, ())


def applicable_manifests(
    renderer: Renderer, observed: ObservedState, group: GroupResource, controllers: ControllerGroup | None
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:
    """A group's manifests with immutable fields as observed, and one line for each desired change of an
    immutable field, which the API server would reject."""
    manifests, lines = [], []
    for wanted in renderer.render(group, controllers):
        present = observed.objects.get(ref_of(wanted))
        if present is None:
            manifests.append(wanted)
            continue
        applicable, immutable_changes = renderer.keep_immutable_fields(wanted, present)
        manifests.append(applicable)
        lines += [f"{ref_of(wanted)}: {line}" for line in immutable_changes]
    return tuple(manifests), tuple(lines)
