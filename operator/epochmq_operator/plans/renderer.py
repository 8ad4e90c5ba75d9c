"""Declares the interface between the operator's plans and the manifests: the functions that render, compare
and list a group's objects, which the driver passes to the plans."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochmq_operator.manifests.kept_templates import (
    UNKNOWN,
    content_digest,
    inputs_of,
    mounted_config_maps,
    rendering_of,
    same_rendering,
    template_spec,
    with_kept_template,
)
from epochmq_operator.plans.objects import Manifest, metadata, ref_of, status_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.update_gate import UpdateGate
from epochmq_operator.resources import ControllerGroup, GroupResource

ADOPTED = "adopted"
"""The field of a group's status with the digest of the inputs of templates that a former release applied."""

RenderManifests = Callable[[GroupResource, ControllerGroup | None], Sequence[Manifest]]
"""Renders a group's manifests, given the ControllerGroup of a broker group."""
Differences = Callable[[Manifest, Manifest], Sequence[str]]
"""(desired, observed) → one line for every desired field that differs. Fields that the API server filled in
do not count."""

PossibleObjects = Callable[[GroupResource], Iterable[tuple[str, str]]]
"""(kind, name) of all objects that a group can ever have. The operator deletes those that the group is not to
have any more."""

DefaultImage = Callable[[GroupResource], str]
"""The image for the pods of a new group whose spec names none."""

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
    default_image: DefaultImage = lambda group: ""


@dataclass(frozen=True, slots=True)
class ApplicableManifests:
    """A group's manifests as they can be applied: immutable fields and kept templates are as observed.
    `immutable_changes` has one line for each desired change of an immutable field, which the API server would
    reject. `adopted` is the value for the status field of this name; None if it is not needed.
    `update_waits_for` says what the change to the desired templates waits for; empty if nothing. `held`: the
    templates are still the former ones because of that."""

    manifests: tuple[Manifest, ...]
    immutable_changes: tuple[str, ...]
    adopted: str | None = None
    update_waits_for: str = ""
    held: bool = False


NO_MANIFESTS = ApplicableManifests((), ())


def applicable_manifests(
    renderer: Renderer,
    observed: ObservedState,
    group: GroupResource,
    controllers: ControllerGroup | None,
    gate: UpdateGate,
) -> ApplicableManifests:
    """Renders the group's manifests as they can be applied."""
    rendered = renderer.render(group, controllers)
    closed_because = gate.closed_because(_update_of(rendered, gate))
    manifests: list[Manifest] = []
    lines: list[str] = []
    unused: set[str] = set()
    adopted, held = None, False
    for wanted in rendered:
        present = observed.objects.get(ref_of(wanted))
        if present is None:
            manifests.append(wanted)
            continue
        applicable, immutable_changes = renderer.keep_immutable_fields(wanted, present)
        lines += [f"{ref_of(wanted)}: {line}" for line in immutable_changes]
        inputs = inputs_of(wanted)
        if inputs is not None and not same_rendering(wanted, present) and _can_stay(observed, present):
            had = inputs_of(present)
            if had is None:
                had = adopted = _adopted_inputs(observed, inputs)
            kept = had == inputs and not gate.follows_operator
            if kept or closed_because:
                held = held or not kept
                applicable = with_kept_template(applicable, present, had)
                unused |= mounted_config_maps(template_spec(wanted))
                unused -= mounted_config_maps(template_spec(present))
        manifests.append(applicable)
    used = [one for one in manifests if ref_of(one).kind != "ConfigMap" or ref_of(one).name not in unused]
    return ApplicableManifests(tuple(used), tuple(lines), adopted, closed_because, held)


def _update_of(rendered: Sequence[Manifest], gate: UpdateGate) -> str:
    """The name of the update to these manifests. If the group follows the operator, each of its renderings is
    an update by itself."""
    sets = [one for one in rendered if inputs_of(one) is not None]
    names = [[inputs_of(one), rendering_of(one) if gate.follows_operator else ""] for one in sets]
    return content_digest(names)


def _adopted_inputs(observed: ObservedState, inputs: str) -> str:
    """The digest of the inputs of a template that a former release applied, which recorded none. They are
    today's `inputs` if the resource is as that release applied it. The answer is recorded in the status
    before anything is written, because the status that it follows from is overwritten."""
    status = status_of(observed.resource)
    recorded = status.get(ADOPTED)
    if isinstance(recorded, str):
        return recorded
    plan = status.get("plan")
    updating = isinstance(plan, Mapping) and plan.get("name") == "update" and not plan.get("finished")
    unchanged = status.get("observedGeneration") == metadata(observed.resource).get("generation")
    return inputs if unchanged and not updating else UNKNOWN


def _can_stay(observed: ObservedState, stateful_set: Manifest) -> bool:
    """Whether the ConfigMaps of the StatefulSet's template exist."""
    needed = mounted_config_maps(template_spec(stateful_set))
    return all(observed.object("ConfigMap", name) is not None for name in needed)
