"""Keeps the pod template of a StatefulSet as it is until the spec, the image or the controllers change.

The operator renders a template from inputs: the spec, the image and the controllers. Another release of the
operator may render another template from the same inputs. Pods would restart for it, so the observed template
stays until the inputs change. The annotations of the StatefulSet hold digests of both."""

# pure: data in, data out.

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from epochmq_operator.manifests.differences import differences
from epochmq_operator.manifests.names import INPUTS_ANNOTATION, TEMPLATE_ANNOTATION
from epochmq_operator.manifests.settings import JsonObject
from epochmq_operator.quorum_steps import Founders
from epochmq_operator.resources import BrokerGroup, ControllerGroup, GroupResource, is_raft_group

NOT_IN_TEMPLATES = frozenset(
    {
        "replicas",
        "controllers",
        "minInSyncReplicas",
        "storage",
        "paused",
        "deletionGuard",
        "updatePolicy",
        "hibernate",
        "restoreFrom",
    }
)
"""Fields of the spec that are no inputs of a pod template. What a configuration takes from the numbers of
replicas and controllers is among the inputs by itself."""
DIGEST_LENGTH = 10
UNKNOWN = "unknown"
"""The digest of a template, or of its inputs, that a release rendered which wrote no digests."""


def content_digest(value: object) -> str:
    """A digest of a JSON value, short enough for names."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def template_inputs(
    group: GroupResource,
    controllers: ControllerGroup | None,
    image: str,
    founders: Founders | None = None,
) -> JsonObject:
    """Everything of a group that its pod templates follow from. Fields with their default value are left out,
    so that a release with a new field computes the same. An earlier release rendered no configuration for
    members of a quorum that join later: for these the digest changes before the first one joins."""
    spec = group.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    inputs = {key: value for key, value in spec.items() if key not in NOT_IN_TEMPLATES} | {"image": image}
    if is_raft_group(group):
        founders = founders or Founders(group.spec.replicas)
        inputs["replicas"] = founders.number
        if not founders.complete:
            inputs["joins"] = True
        if isinstance(group, BrokerGroup):
            inputs["copies"] = founders.number // 2 + 1  # as an earlier release computed it
    elif isinstance(group, BrokerGroup):
        inputs["copies"] = group.min_in_sync
        if not group.is_under_controllers:
            inputs["replicas"] = group.spec.replicas
    if controllers is not None:
        nameserver = controllers.spec.nameserver
        inputs["controllers"] = [controllers.name, controllers.spec.replicas, nameserver.embedded]
        if nameserver.replicas is not None:
            inputs["controllers"].append(nameserver.replicas)
    return inputs


def template_annotations(inputs: JsonObject, template: JsonObject) -> dict[str, str]:
    """The annotations of a StatefulSet with this template."""
    return {INPUTS_ANNOTATION: content_digest(inputs), TEMPLATE_ANNOTATION: content_digest(template)}


def annotations_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The annotations of an object."""
    return (manifest.get("metadata") or {}).get("annotations") or {}


def inputs_of(stateful_set: Mapping[str, Any]) -> str | None:
    """The digest of the inputs of a StatefulSet's template; None if it was applied without. Other objects
    have none."""
    found = annotations_of(stateful_set).get(INPUTS_ANNOTATION)
    return found if isinstance(found, str) else None


def rendering_of(stateful_set: Mapping[str, Any]) -> str | None:
    """The digest of a StatefulSet's template as it was rendered; None if it was applied without."""
    found = annotations_of(stateful_set).get(TEMPLATE_ANNOTATION)
    return found if isinstance(found, str) else None


def same_rendering(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
    """Whether the observed StatefulSet was applied with the desired template. Then a difference between the
    two templates is a change that the operator did not make."""
    if rendering_of(desired) == rendering_of(observed):
        return True
    wanted, there = ((one.get("spec") or {}).get("template") or {} for one in (desired, observed))
    return not differences(wanted, there)


def with_kept_template(
    desired: Mapping[str, Any], observed: Mapping[str, Any], inputs: str | None
) -> JsonObject:
    """The desired StatefulSet with the observed template. `inputs` is the digest to record for the kept
    template."""
    had, wanted = annotations_of(observed), annotations_of(desired)
    template = dict((observed.get("spec") or {}).get("template") or {})
    meta = template.get("metadata") or {}
    template["metadata"] = {key: value for key, value in meta.items() if value is not None}
    marks = {
        INPUTS_ANNOTATION: inputs or UNKNOWN,
        TEMPLATE_ANNOTATION: had.get(TEMPLATE_ANNOTATION, UNKNOWN),
    }
    annotations = {**wanted, **marks}
    return {
        **desired,
        "metadata": {**desired["metadata"], "annotations": annotations},
        "spec": {**desired["spec"], "template": template},
    }


def mounted_config_maps(pod_spec: Mapping[str, Any]) -> frozenset[str]:
    """The names of the ConfigMaps that a pod with this spec mounts."""
    volumes = pod_spec.get("volumes") or ()
    names = ((volume.get("configMap") or {}).get("name") for volume in volumes)
    return frozenset(name for name in names if isinstance(name, str))


def template_spec(stateful_set: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod spec in a StatefulSet's template; empty without one."""
    template = (stateful_set.get("spec") or {}).get("template") or {}
    found = template.get("spec")
    return found if isinstance(found, Mapping) else {}


def image_of(pod_spec: Mapping[str, Any]) -> str:
    """The image of a pod's main container, which is the first; "" without one."""
    main: Mapping[str, Any] = next(iter(pod_spec.get("containers") or ()), {})
    return str(main.get("image") or "")
