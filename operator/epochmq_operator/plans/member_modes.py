"""Decides how the members of a cluster authenticate each other. They are the controllers, nameservers and
brokers of a ControllerGroup and of the broker groups that name it: all of them have one Secret, which belongs
to the ControllerGroup.

Members that require a proof talk to no member that has no secret. So a change takes two updates: to get from
`Disabled` to `Require`, or back, all members first accept both. A pod template says by an annotation what its
pods do. The decision follows from these annotations, so that nothing has to be remembered in between.

A group whose spec does not say what it wants requires a proof from its first pod on. If it has pods without a
secret, which an earlier release made, it stays without: only its owner knows whether RocketMQ's members take
part, which a proof would exclude."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Iterator

from epochmq_operator.manifests.kept_templates import annotations_of
from epochmq_operator.manifests.names import MEMBERS_ANNOTATION, member_secret_name
from epochmq_operator.plans.indexed_objects import members_of, of_kind, of_resource
from epochmq_operator.plans.objects import (
    PAUSED,
    Manifest,
    Owner,
    Ref,
    annotation,
    controller_group_of,
    is_deleting,
    metadata,
    ref_of,
    spec_of,
    status_of,
)
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.plan_steps import PlanState, was_created
from epochmq_operator.resources import MemberMode

MEMBER_AUTHENTICATION = "memberAuthentication"
"""The field of the spec with what a group wants, and of the status with what its pod templates have."""
REQUIRE, ACCEPT, DISABLED = (
    MemberMode.REQUIRE,
    MemberMode.ACCEPT,
    MemberMode.DISABLED,
)


def mode_of_controllers(observed: ObservedState, controllers: Manifest) -> MemberMode:
    """What the pod templates of a ControllerGroup are to have now."""
    wanted = mode_in(spec_of(controllers)) or _default(observed, controllers)
    if wanted is REQUIRE and not all(_annotations(observed, controllers)):
        return ACCEPT
    changes = mode_in(status_of(controllers)) in (REQUIRE, ACCEPT)
    if wanted is DISABLED and changes and REQUIRE in _annotations(observed, controllers):
        return ACCEPT
    return wanted


def mode_of_brokers(observed: ObservedState, controllers: Manifest) -> MemberMode:
    """What those of a broker group under this ControllerGroup are to have now."""
    return mode_in(status_of(controllers)) or mode_of_controllers(observed, controllers)


def rendered_mode(mode: MemberMode) -> MemberMode | None:
    """The value of `spec.memberAuthentication` to render: a group without authentication has none, so that
    its templates are those of earlier releases."""
    return None if mode is DISABLED else mode


def wanted_secret(observed: ObservedState) -> Manifest | None:
    """The Secret that the observed ControllerGroup needs, without its data; None if it needs none now."""
    resource = observed.resource
    paused = spec_of(resource).get("paused") is True or annotation(resource, PAUSED) == "true"
    if ref_of(resource).kind != "ControllerGroup" or is_deleting(resource) or paused:
        return None
    if mode_of_controllers(observed, resource) is DISABLED:
        return None
    name = str(metadata(resource).get("name"))
    owner = Owner("ControllerGroup", name, str(metadata(resource).get("uid", "")))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": member_secret_name(name),
            "namespace": observed.namespace,
            "ownerReferences": [owner.reference()],
        },
        "type": "Opaque",
    }


def mode_in(fields: Manifest) -> MemberMode | None:
    """What a spec or a status says; None if it says nothing that this release knows."""
    found = fields.get(MEMBER_AUTHENTICATION)
    return MemberMode(found) if found in tuple(MemberMode) else None


def _default(observed: ObservedState, controllers: Manifest) -> MemberMode:
    """What a ControllerGroup wants whose spec does not say so. Its own pods and templates decide; those of
    its broker groups only if it has none, so that a group that comes to it from another does not. If there
    are none at all, the status of a group that had no secret says so; that of an earlier release says
    nothing."""
    own = [*_annotations_of_group(observed, ref_of(controllers))]
    seen = own or [*_annotations(observed, controllers)]
    if seen:
        return DISABLED if "" in seen else REQUIRE
    status = status_of(controllers)
    had_none = was_created(PlanState.of(status)) and mode_in(status) in (None, DISABLED)
    return DISABLED if had_none else REQUIRE


def _annotations(observed: ObservedState, controllers: Manifest) -> Iterator[str]:
    """The annotation of every pod and of every pod template of the members; "" of those without."""
    for group in (ref_of(controllers), *_broker_groups(observed, controllers)):
        yield from _annotations_of_group(observed, group)


def _annotations_of_group(observed: ObservedState, group: Ref) -> Iterator[str]:
    """The same of the members that belong to one resource."""
    for pod in members_of(observed.objects, group):
        if ref_of(pod).namespace == observed.namespace:
            yield str(annotations_of(pod).get(MEMBERS_ANNOTATION, ""))
    for stateful_set in of_resource(observed.objects, "StatefulSet", group).values():
        if ref_of(stateful_set).namespace == observed.namespace:
            template = spec_of(stateful_set).get("template") or {}
            yield str(annotations_of(template).get(MEMBERS_ANNOTATION, ""))


def _broker_groups(observed: ObservedState, controllers: Manifest) -> Iterator[Ref]:
    name = metadata(controllers).get("name")
    for ref, group in of_kind(observed.objects, "BrokerGroup").items():
        if ref.namespace == observed.namespace and controller_group_of(group) == name:
            yield ref
