"""Observes how many controllers the brokers of a group list.

A broker gets its write lease from the controllers that it lists. So a controller becomes a member of the
quorum only when all brokers list it."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Iterable

from epochmq_operator.manifests.kept_templates import mounted_config_maps, template_spec
from epochmq_operator.plans.objects import is_deleting, spec_of, status_of
from epochmq_operator.plans.observed_state import ObservedPod, ObservedState
from epochmq_operator.plans.reported_states import ReportedBrokerState
from epochmq_operator.resources.model import GroupMode
from epochmq_protocol import properties

KNOWN_CONTROLLERS = "knownControllers"
"""The field of a broker group's status with the number of controllers that all its brokers list."""


def known_controllers(observed: ObservedState, stateful_set: str, pods: Iterable[ObservedPod | None]) -> int:
    """The number of controllers that every broker of the group lists: those that run, by the configuration
    that each reports to have, and those that start later. It does not rise while a broker does not
    respond."""
    template = template_spec(observed.object("StatefulSet", stateful_set) or {})
    numbers = [_listed(observed, mounted_config_maps(template), f"{stateful_set}-0")]
    for pod in pods:
        if pod is None:
            continue
        state = observed.states.get(pod.name)
        version = state.config_version if isinstance(state, ReportedBrokerState) else ""
        numbers.append(_listed(observed, [version] if version else pod.config_maps, pod.name))
        if state is None and pod.ready:
            recorded = status_of(observed.resource).get(KNOWN_CONTROLLERS)
            numbers.append(recorded if isinstance(recorded, int) else 0)
    return min(numbers)


def _listed(observed: ObservedState, config_maps: Iterable[str], pod: str) -> int:
    """The number of controllers in a broker's configuration in these ConfigMaps."""
    for name in config_maps:
        text = ((observed.object("ConfigMap", name) or {}).get("data") or {}).get(f"{pod}.conf")
        if isinstance(text, str):
            return len([one for one in properties.parse(text).get("controllerAddr", "").split(";") if one])
    return 0


def late_groups(observed: ObservedState, number: int) -> list[str]:
    """The broker groups under these controllers whose brokers do not list this many controllers yet."""
    late = []
    for name in observed.users:
        group = observed.object("BrokerGroup", name)
        if group is None or is_deleting(group):
            continue
        if spec_of(group).get("mode", GroupMode.CONTROLLER) != GroupMode.CONTROLLER:
            continue
        known = status_of(group).get(KNOWN_CONTROLLERS)
        if not isinstance(known, int) or known < number:
            late.append(f"BrokerGroup {name}")
    return sorted(late)
