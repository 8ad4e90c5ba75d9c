"""Applies changed keys to running brokers through their sidecars, without a restart.

If only keys change that a running broker accepts (`manifests.restart_digest`), the operator has each broker
apply the new configuration file first. When all ready brokers have accepted it, the StatefulSet's template
gets it, so that a pod that starts later has it, too. So a value that a broker rejects never reaches a
template, and no pod starts with it.

A broker reports the version of the file that it applied last, which is the name of the ConfigMap. After its
container restarts, it has the file of its pod again and reports none; then the operator applies the new file
again."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from epochmq_operator.manifests.kept_templates import mounted_config_maps, template_spec
from epochmq_operator.manifests.names import COMPONENT_LABEL
from epochmq_operator.manifests.restart_digest import restart_digest_of
from epochmq_operator.plans.effects import ReloadConfiguration
from epochmq_operator.plans.indexed_objects import with_ordinals
from epochmq_operator.plans.objects import Manifest, Ref, metadata, ref_of
from epochmq_operator.plans.observed_state import ObservedPod, ObservedState, observed_pod
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.plans.reported_states import ReportedBrokerState
from epochmq_operator.pods import Component
from epochmq_protocol import properties

RELOADING = "ReloadingConfiguration"
"""The reason of the Event about each broker that applies a configuration without a restart."""
LISTED_KEYS_MAX = 5
NO_RESPONSE = "its sidecar does not respond"


class ReloadState(StrEnum):
    """Whether a running broker has applied the present configuration. `PENDING`: it will be asked to."""

    APPLIED = "Applied"
    PENDING = "Pending"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True)
class ReloadTarget:
    """The configuration that the pods of a StatefulSet are to have: the name of its ConfigMap, its files by
    name, and the restart digest of the pods that can apply it."""

    config_map: str
    files: Mapping[str, str]
    restart_digest: str


@dataclass(frozen=True, slots=True)
class PodReload:
    """A pod that did not start with the present configuration and needs no restart for it."""

    pod: ObservedPod
    state: ReloadState
    message: str = ""

    def document(self) -> dict[str, str]:
        """The entry for the status."""
        found = {"pod": self.pod.name, "state": str(self.state)}
        return {**found, "message": self.message} if self.message else found


def is_reload(observed: ObservedState, wanted: Manifest, present: Manifest) -> bool:
    """Whether running brokers of a StatefulSet can get the desired configuration without a restart."""
    return observed.can_reload and not _is_of_controllers(wanted) and _same_digests(wanted, present)


def is_without_restart(wanted: Manifest, present: Manifest) -> bool:
    """Whether running controllers of a StatefulSet need nothing of what changes."""
    return _is_of_controllers(wanted) and _same_digests(wanted, present)


def _same_digests(wanted: Manifest, present: Manifest) -> bool:
    digests = [restart_digest_of((one.get("spec") or {}).get("template") or {}) for one in (wanted, present)]
    return digests[0] is not None and digests[0] == digests[1]


def _is_of_controllers(manifest: Manifest) -> bool:
    return (metadata(manifest).get("labels") or {}).get(COMPONENT_LABEL) == Component.CONTROLLER


def with_unneeded_restarts(
    observed: ObservedState, target: ReloadTarget | None, pods: Iterable[ObservedPod | None]
) -> tuple[ObservedPod | None, ...]:
    """The pods of controllers; those that need nothing of what has changed are not outdated."""
    return tuple(
        replace(pod, outdated=False)
        if pod is not None and target is not None and _can_stay(observed, target, pod)
        else pod
        for pod in pods
    )


def _can_stay(observed: ObservedState, target: ReloadTarget, pod: ObservedPod) -> bool:
    """Whether the pod differs from the present template in nothing that needs a restart, and could start
    again on its node: not without a former ConfigMap that somebody has deleted."""
    return pod.restart_digest == target.restart_digest and all(
        name == target.config_map or observed.object("ConfigMap", name) is not None
        for name in pod.config_maps
    )


def reload_target(
    observed: ObservedState, stateful_set: Manifest, rendered: Iterable[Manifest]
) -> ReloadTarget | None:
    """The configuration of the pods with this StatefulSet's template. Its ConfigMap is one of the `rendered`
    manifests, or an observed object. None if the pods restart for every change."""
    digest = restart_digest_of((stateful_set.get("spec") or {}).get("template") or {})
    names = mounted_config_maps(template_spec(stateful_set))
    if digest is None or len(names) != 1:
        return None
    (name,) = names
    made = [one for one in rendered if ref_of(one).kind == "ConfigMap" and ref_of(one).name == name]
    found: Manifest | None = made[0] if made else observed.object("ConfigMap", name)
    data = (found or {}).get("data")
    return ReloadTarget(name, data, digest) if isinstance(data, Mapping) else None


def ready_pods_have(observed: ObservedState, stateful_set: str, config_map: str) -> bool:
    """Whether every ready pod of a StatefulSet reports that this configuration is in force. Pods that are not
    ready do not count: perhaps they need it to become ready."""
    return all(
        _in_force(observed, observed_pod(found)) == config_map
        for ref, found in with_ordinals(observed.objects, "Pod", stateful_set).items()
        if ref.namespace == observed.namespace and observed_pod(found).ready
    )


def _in_force(observed: ObservedState, pod: ObservedPod) -> str | None:
    """The ConfigMap of the configuration that a broker reports to have; None if it reports nothing."""
    state = observed.states.get(pod.name)
    if not isinstance(state, ReportedBrokerState):
        return None
    return state.config_version or next(iter(pod.config_maps), "")


def with_reloads(
    observed: ObservedState, target: ReloadTarget | None, pods: Iterable[ObservedPod | None]
) -> tuple[ObservedPod | None, ...]:
    """The pods; those that have applied the present configuration, or can, are not outdated."""
    found: list[ObservedPod | None] = []
    for pod in pods:
        if pod is not None and target is not None and _needs_no_restart(observed, target, pod):
            found.append(replace(pod, outdated=False))
        else:
            found.append(pod)
    return tuple(found)


def _needs_no_restart(observed: ObservedState, target: ReloadTarget, pod: ObservedPod) -> bool:
    if not _can_stay(observed, target, pod):
        return False
    in_force = _in_force(observed, pod)
    if in_force == target.config_map:
        return True
    # A pod that does not run may need the present configuration to run.
    return observed.can_reload and (pod.ready or in_force is not None)


def pod_reloads(
    observed: ObservedState, target: ReloadTarget | None, pods: Iterable[ObservedPod | None]
) -> tuple[PodReload, ...]:
    """The pods that did not start with the present configuration, or do not have it in force, and need no
    restart for it; with what is known about each."""
    reloads = []
    for pod in pods:
        if target is None or pod is None or pod.deleting or pod.outdated:
            continue
        if pod.restart_digest != target.restart_digest:
            continue
        in_force, started = _in_force(observed, pod), target.config_map in pod.config_maps
        rejection = observed.rejected_reloads.get(pod.name)
        if in_force == target.config_map:
            reloads += [] if started else [PodReload(pod, ReloadState.APPLIED)]
        elif in_force is None:
            reloads += [] if started or not pod.ready else [PodReload(pod, ReloadState.PENDING, NO_RESPONSE)]
        elif not observed.can_reload:
            continue
        elif rejection is not None and rejection.version == target.config_map:
            reloads.append(PodReload(pod, ReloadState.REJECTED, rejection.message))
        else:
            reloads.append(PodReload(pod, ReloadState.PENDING))
    return tuple(reloads)


def reload_steps(
    observed: ObservedState, target: ReloadTarget | None, reloads: Iterable[PodReload]
) -> Iterator[PlanStep]:
    """The step for the next broker that is to apply the present configuration. One that rejects it stops the
    step: the others keep the former configuration."""
    missing = [one for one in reloads if one.state is not ReloadState.APPLIED]
    if target is None or not missing:
        return
    chosen = min(missing, key=lambda one: (one.state is not ReloadState.REJECTED, bool(one.message)))
    pod, file = chosen.pod, target.files.get(f"{chosen.pod.name}.conf")
    if file is None:
        return
    config = properties.parse(file)
    rejected = chosen.state is ReloadState.REJECTED
    yield PlanStep(
        StepKind.RELOAD,
        False,
        RELOADING,
        f"applies the configuration to {pod.name} without a restart{_changes(observed, pod, config)}",
        _obstacle(chosen),
        blocked=rejected,
        effects=(
            ReloadConfiguration(Ref("Pod", observed.namespace, pod.name), pod.uid, target.config_map, config),
        ),
        occurrence=f"{pod.uid}/{target.config_map}",
        subject=pod.name,
    )


def _obstacle(reload: PodReload) -> str:
    """What the application of a configuration waits for; empty if nothing."""
    if reload.state is ReloadState.REJECTED:
        return (
            f"{reload.pod.name} rejects the configuration: {reload.message}: correct spec.config; until then "
            "pods start with the former configuration"
        )
    return f"{reload.pod.name}: {reload.message}" if reload.message else ""


def _changes(observed: ObservedState, pod: ObservedPod, config: Mapping[str, str]) -> str:
    """The keys that differ from the configuration with which the pod started."""
    before: dict[str, str] = {}
    for name in pod.config_maps:
        data: Mapping[str, Any] = (observed.object("ConfigMap", name) or {}).get("data") or {}
        before |= properties.parse(str(data.get(f"{pod.name}.conf", "")))
    return listed_keys(before, config)


def listed_keys(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """`: ` and the keys that differ, as the end of a message; empty if none does."""
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    more = f" and {len(keys) - LISTED_KEYS_MAX} more" if len(keys) > LISTED_KEYS_MAX else ""
    return f": {', '.join(keys[:LISTED_KEYS_MAX])}{more}" if keys else ""
