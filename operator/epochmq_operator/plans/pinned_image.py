"""Decides which image the pods of a group have whose spec names none.

The group keeps the image that it was created with: an upgrade of the operator, whose setting is the default
for new groups, restarts no pod. The status records the image before the first object with it is applied."""

# pure: data in, data out.

from __future__ import annotations

from epochmq_operator.manifests import ManifestSettings, default_image
from epochmq_operator.manifests.kept_templates import image_of, template_spec
from epochmq_operator.plans.objects import status_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.update_gate import UpdateGate
from epochmq_operator.resources import GroupResource

PINNED_IMAGE = "pinnedImage"
"""The field of a group's status with the image of its pods; empty while the spec names one. An earlier
release did not write it."""


def pinned_image(
    settings: ManifestSettings,
    observed: ObservedState,
    group: GroupResource,
    stateful_set: str,
    gate: UpdateGate,
) -> str | None:
    """The image of a group whose spec names none; None if the spec names one."""
    if group.spec.image is not None:
        return None
    if gate.follows_operator:
        return default_image(group, settings)
    recorded = status_of(observed.resource).get(PINNED_IMAGE)
    if isinstance(recorded, str) and recorded:
        return recorded
    present = observed.object("StatefulSet", stateful_set)
    if recorded is None and present is not None and (running := image_of(template_spec(present))):
        return running
    return default_image(group, settings)


def with_image(group: GroupResource, image: str | None) -> GroupResource:
    """The group with this image in its spec, if there is one."""
    if not image:
        return group
    return group.model_copy(update={"spec": group.spec.model_copy(update={"image": image})})
