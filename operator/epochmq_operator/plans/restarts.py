"""Decides which pod of a group restarts next to get its StatefulSet's present template.

The operator restarts a pod by deleting it; its StatefulSet creates it again. The rules:

- A pod that is not ready and serves nothing restarts at once, also while others are not ready: so a corrected
  template reaches the pods that a wrong one broke.
- A ready pod restarts only while all other pods of the group are ready and in sync. So a wrong template stops
  at the first pod, and a group with a replica to spare always has `minInSyncReplicas` replicas in sync.
- The pod that leads restarts last, when the others have the present template. Its preStop hook hands its
  mastership or leadership over to one of these. So an update makes one switchover."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epochmq_operator.manifests.kept_templates import image_of, mounted_config_maps, template_spec
from epochmq_operator.plans.effects import Delete
from epochmq_operator.plans.objects import Manifest, Ref
from epochmq_operator.plans.observed_state import ObservedPod, ObservedState
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.plans.reloads import listed_keys

RESTARTING = "RestartingPod"
"""The reason of the Event of every restart."""

PodsByName = Mapping[str, ObservedPod | None]
"""The pods of a group in the order of their restarts; None for a missing one."""


@dataclass(frozen=True, slots=True)
class NextRestart:
    """The pod to restart next; None: no pod needs a restart. `waits_for` says what has to happen first."""

    pod: ObservedPod | None
    waits_for: str = ""


def next_broken_pod(
    pods: PodsByName, serves: Callable[[ObservedPod], bool], in_sync: frozenset[str]
) -> ObservedPod | None:
    """The first outdated pod that is not ready and may restart: it cannot run, it serves nothing, or all
    other pods are ready and `in_sync`. `serves`: whether the group may miss the pod although it is not
    ready."""
    for pod in pods.values():
        if pod is None or pod.ready or pod.deleting or not pod.outdated:
            continue
        if pod.stuck or not serves(pod) or not _unfit_others(pods, in_sync, pod):
            return pod
    return None


def next_ready_pod(pods: PodsByName, in_sync: frozenset[str], leads: str) -> NextRestart:
    """The next outdated pod, or what it waits for. `leads` is the pod that restarts last; "" if none
    leads."""
    outdated = [pod for pod in pods.values() if pod is not None and pod.outdated]
    if not outdated:
        return NextRestart(None)
    chosen = next((pod for pod in outdated if pod.name != leads), outdated[0])
    unfit = [] if chosen.ready else [f"{chosen.name} {chosen.unready_reason}"]
    return NextRestart(chosen, "; ".join(unfit + _unfit_others(pods, in_sync, chosen)))


def _unfit_others(pods: PodsByName, in_sync: frozenset[str], chosen: ObservedPod) -> list[str]:
    """One line for each other pod that is not ready or not in sync."""
    lines = []
    for name, pod in pods.items():
        if name == chosen.name:
            continue
        if pod is None:
            lines.append(f"{name} does not exist")
        elif not pod.ready:
            lines.append(f"{name} {pod.unready_reason}")
        elif name not in in_sync:
            lines.append(f"{name} is not in sync")
    return lines


def restart_step(observed: ObservedState, stateful_set: str, chosen: ObservedPod, waits_for: str) -> PlanStep:
    """The step that restarts this pod of a StatefulSet, and says why."""
    why = _reason(observed, observed.object("StatefulSet", stateful_set) or {}, chosen)
    return PlanStep(
        StepKind.RESTART,
        False,
        RESTARTING,
        f"restarts {chosen.name}: {why}",
        waits_for,
        effects=(Delete(Ref("Pod", observed.namespace, chosen.name), chosen.uid),),
        occurrence=chosen.uid,
        subject=chosen.name,
    )


def _reason(observed: ObservedState, stateful_set: Manifest, chosen: ObservedPod) -> str:
    """What the pod gets by its restart."""
    template = template_spec(stateful_set)
    image, config_maps = image_of(template), mounted_config_maps(template)
    parts = [] if chosen.ready else [f"it {chosen.unready_reason}"]
    if image and image != chosen.image:
        parts.append(f"the image changes from {chosen.image or 'another one'} to {image}")
    if config_maps != chosen.config_maps:
        before, after = (_keys(observed, names, chosen.name) for names in (chosen.config_maps, config_maps))
        parts.append(f"the configuration changes{listed_keys(before, after)}")
    return "; ".join(parts or ["the pod template changes"])


def _keys(observed: ObservedState, config_maps: frozenset[str], pod: str) -> dict[str, str]:
    """The configuration of a pod in these ConfigMaps, by key."""
    found: dict[str, str] = {}
    for name in sorted(config_maps):
        data = (observed.object("ConfigMap", name) or {}).get("data") or {}
        for file in (f"{pod}.conf", f"{pod}.admin.conf"):
            for line in str(data.get(file, "")).splitlines():
                key, separator, value = line.partition("=")
                if separator and not key.startswith("#"):
                    found[key] = value
    return found
