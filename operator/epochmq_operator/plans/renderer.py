"""Renders a group's manifests as they can be applied to the observed cluster: fields that cannot change, and
templates whose update may not begin yet, are as observed."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from epochmq_operator.manifests import (
    ManifestSettings,
    differences,
    keep_immutable_fields,
    render_manifests,
)
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
from epochmq_operator.plans.reloads import (
    ReloadTarget,
    is_reload,
    is_without_restart,
    ready_pods_have,
    reload_target,
)
from epochmq_operator.plans.update_gate import UpdateGate
from epochmq_operator.quorum_steps import Founders
from epochmq_operator.resources import ControllerGroup, GroupResource

ADOPTED = "adopted"
"""The field of a group's status with the digest of the inputs of templates that a former release applied."""

RenderManifests = Callable[
    [GroupResource, ControllerGroup | None, ManifestSettings, Founders | None], Sequence[Manifest]
]
"""Renders all manifests of a group, as `manifests.render_manifests` does."""
Differences = Callable[[Manifest, Manifest], Sequence[str]]
"""(desired, observed) → one line for each desired field that differs, as `manifests.differences` does."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """How the operator renders and compares manifests. `settings` are those of its configuration.
    `differences` may remember what it compared. Tests use another `render` for another release."""

    settings: ManifestSettings
    render: RenderManifests = render_manifests
    differences: Differences = differences


@dataclass(frozen=True, slots=True)
class ApplicableManifests:
    """A group's manifests as they can be applied: immutable fields and kept templates are as observed.
    `immutable_changes` has one line for each desired change of an immutable field, which the API server would
    reject. `adopted` is the value for the status field of this name; None if it is not needed.
    `update_waits_for` says what the change to the desired templates waits for; empty if nothing. `held`: the
    templates are still the former ones because of that. `reload_targets` are the configurations that running
    pods can get without a restart, by StatefulSet. `waits_for_turn`: the change only waits until fewer other
    groups are being updated. `opens_later`: it only waits for a maintenance window."""

    manifests: tuple[Manifest, ...]
    immutable_changes: tuple[str, ...]
    adopted: str | None = None
    update_waits_for: str = ""
    held: bool = False
    reload_targets: Mapping[str, ReloadTarget] = field(default_factory=dict)
    waits_for_turn: bool = False
    opens_later: bool = False


NO_MANIFESTS = ApplicableManifests((), ())


def applicable_manifests(
    renderer: Renderer,
    observed: ObservedState,
    group: GroupResource,
    controllers: ControllerGroup | None,
    gate: UpdateGate,
    founders: Founders | None = None,
) -> ApplicableManifests:
    """Renders the group's manifests as they can be applied."""
    rendered = renderer.render(group, controllers, renderer.settings, founders)
    update = _update_of(rendered, gate)
    closed_because = gate.closed_because(update)
    manifests: list[Manifest] = []
    lines: list[str] = []
    unused: set[str] = set()
    targets: dict[str, ReloadTarget] = {}
    adopted, held = None, False
    for desired in rendered:
        present = observed.objects.get(ref_of(desired))
        if present is None:
            manifests.append(desired)
            continue
        applicable, immutable_changes = keep_immutable_fields(desired, present)
        lines += [f"{ref_of(desired)}: {line}" for line in immutable_changes]
        inputs = inputs_of(desired)
        template = desired
        if inputs is not None and not same_rendering(desired, present) and _can_stay(observed, present):
            had = inputs_of(present)
            if had is None:
                had = adopted = _adopted_inputs(observed, inputs)
            kept = had == inputs and not gate.follows_operator
            reloads = not kept and is_reload(observed, desired, present)
            restarts = not (reloads or (not kept and is_without_restart(desired, present)))
            if kept or (closed_because and restarts) or (reloads and not _reloaded(observed, desired)):
                held = held or not (kept or reloads)
                applicable = with_kept_template(applicable, present, had)
                template = desired if reloads else applicable
                unused |= mounted_config_maps(template_spec(desired))
                unused -= mounted_config_maps(template_spec(present))
        target = reload_target(observed, template, rendered) if inputs is not None else None
        if target is not None:
            targets[ref_of(desired).name] = target
        manifests.append(applicable)
    used = [one for one in manifests if ref_of(one).kind != "ConfigMap" or ref_of(one).name not in unused]
    return ApplicableManifests(
        tuple(used),
        tuple(lines),
        adopted,
        closed_because,
        held,
        targets,
        gate.waits_for_turn(update),
        gate.opens_later(update),
    )


def _reloaded(observed: ObservedState, wanted: Manifest) -> bool:
    """Whether all ready pods of the StatefulSet have the configuration of the desired template."""
    names = mounted_config_maps(template_spec(wanted))
    return all(ready_pods_have(observed, ref_of(wanted).name, name) for name in names)


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
