"""Grows the volumes of a group online, and decides whether they are deleted with the group.

The operator raises the request of each volume claim of the group that has a smaller one than the spec asks
for; the storage driver and the kubelet grow the volume under the running pod. No pod and no StatefulSet is
deleted: the API server does not allow another size in a StatefulSet's claim template, so a claim that
Kubernetes creates later has the former size, and the operator raises it like the others. Claims of replicas
that were removed grow, too, because a later replica may use them.

A replica may not be ready because its volume is full, so the requests are raised before any step that waits
for replicas (`urgent_volume_step`). The API server rejects a larger request if the StorageClass has no
`allowVolumeExpansion`; then the group has the condition Degraded. A request that was rejected lately is only
raised again after all other steps, so that it holds none of them up.

With `retention: Delete` the group owns its claims, so that Kubernetes' garbage collector deletes them after
the group. The StatefulSet does not own them: the data of a living group stays when somebody deletes it."""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from epochmq_operator.plans.effects import Apply
from epochmq_operator.plans.objects import (
    Manifest,
    Owner,
    digest,
    is_deleting,
    metadata,
    ref_of,
    spec_of,
    status_of,
)
from epochmq_operator.plans.observed_state import ObservedState, claims_of_set
from epochmq_operator.plans.plan_steps import PlanStep, StepKind
from epochmq_operator.resources import Retention
from epochmq_operator.resources.quantities import parse_quantity

LISTED_CLAIMS_MAX = 3


@dataclass(frozen=True, slots=True)
class ObservedClaim:
    """A volume claim: the size that it requests, the size that its volume has (0 while it has none), and the
    condition in which its growth is; empty if it has none."""

    manifest: Manifest
    requested: Decimal
    capacity: Decimal
    condition: str

    @property
    def name(self) -> str:
        """The name of the claim."""
        return str(metadata(self.manifest).get("name", ""))


def never_ran(observed: ObservedState, stateful_set: Manifest, pod_name: str) -> bool:
    """Whether a replica has never run, so that it cannot have a message: its pod has no node, and its claims
    have no volume."""
    pod = observed.object("Pod", pod_name)
    conditions = (
        {} if pod is None else {one.get("type"): one for one in status_of(pod).get("conditions") or ()}
    )
    if pod is not None and conditions.get("PodScheduled", {}).get("status") != "False":
        return False
    templates = spec_of(stateful_set).get("volumeClaimTemplates") or ()
    names = [f"{metadata(one).get('name')}-{pod_name}" for one in templates]
    claims = [observed.object("PersistentVolumeClaim", name) for name in names]
    return all(one is None or status_of(one).get("phase") == "Pending" for one in claims)


def ownership_step(
    observed: ObservedState, stateful_sets: Iterable[Manifest], owner: Owner, retention: Retention
) -> PlanStep:
    """The step that is done when the group owns its claims if and only if they are to be deleted with it."""
    claims = [one.manifest for manifest in stateful_sets for one in _claims(observed, manifest)]
    owned = retention is Retention.DELETE
    wrong = wrongly_owned(claims, owner, retention)
    names = ", ".join(str(metadata(one).get("name")) for one in wrong[:LISTED_CLAIMS_MAX])
    more = f" and {len(wrong) - LISTED_CLAIMS_MAX} more" if len(wrong) > LISTED_CLAIMS_MAX else ""
    what = "will be deleted with the group" if owned else "will stay when the group is deleted"
    return PlanStep(
        StepKind.CLAIMS,
        not wrong,
        "OwningVolumes" if owned else "RetainingVolumes",
        f"records that volumes {what}: {names}{more}",
        effects=tuple(with_ownership(one, owner, retention) for one in wrong),
        occurrence=digest([str(metadata(one).get("uid")) for one in wrong]),
    )


def wrongly_owned(claims: Iterable[Manifest], owner: Owner, retention: Retention) -> list[Manifest]:
    """The claims that the group does not own although they are to be deleted with it, or the reverse."""
    return [one for one in claims if _is_owned(one, owner) != (retention is Retention.DELETE)]


def with_ownership(claim: Manifest, owner: Owner, retention: Retention) -> Apply:
    """Makes the group the owner of the claim exactly if it is to be deleted with it."""
    return Apply(_applied(claim, _request(claim), owner if retention is Retention.DELETE else None))


def _is_owned(claim: Manifest, owner: Owner) -> bool:
    return any(one.get("uid") == owner.uid for one in metadata(claim).get("ownerReferences") or ())


def urgent_volume_step(
    observed: ObservedState, stateful_sets: Iterable[Manifest], size: str, owner: Owner
) -> Iterator[PlanStep]:
    """The step that raises the next claim, of those for which `size` was not rejected lately."""
    rejected = observed.rejected_claims
    smaller = [one for one in _smaller(observed, stateful_sets, size) if rejected.get(one.name) != size]
    if smaller:
        yield _expand(smaller[0], size, owner)


def volume_steps(
    observed: ObservedState, stateful_sets: Iterable[Manifest], size: str, owner: Owner
) -> Iterator[PlanStep]:
    """The step that raises the next claim, or the one that waits until all volumes have grown to `size`."""
    sets = list(stateful_sets)
    smaller = _smaller(observed, sets, size)
    if smaller:
        yield _expand(smaller[0], size, owner)
    wanted = parse_quantity(size)
    claims = [one for manifest in sets for one in _claims(observed, manifest)]
    growing = [one for one in claims if 0 < one.capacity < wanted]
    if growing:
        names = "; ".join(
            f"{one.name}{f' ({one.condition})' if one.condition else ''}"
            for one in growing[:LISTED_CLAIMS_MAX]
        )
        more = f" and {len(growing) - LISTED_CLAIMS_MAX} more" if len(growing) > LISTED_CLAIMS_MAX else ""
        yield PlanStep(
            StepKind.VOLUMES, False, "AwaitingVolumes", f"waits until the volumes have {size}: {names}{more}"
        )


def _smaller(observed: ObservedState, stateful_sets: Iterable[Manifest], size: str) -> list[ObservedClaim]:
    """The claims that request less than `size`."""
    wanted = parse_quantity(size)
    claims = (one for manifest in stateful_sets for one in _claims(observed, manifest))
    return [one for one in claims if one.requested < wanted]


def _expand(claim: ObservedClaim, size: str, owner: Owner) -> PlanStep:
    kept = owner if _is_owned(claim.manifest, owner) else None
    return PlanStep(
        StepKind.EXPAND,
        False,
        "ExpandingVolume",
        f"raises the size of {claim.name} from {_request(claim.manifest)} to {size}",
        effects=(Apply(_applied(claim.manifest, size, kept)),),
        occurrence=f"{metadata(claim.manifest).get('uid')}/{size}",
        subject=claim.name,
    )


def _claims(observed: ObservedState, stateful_set: Manifest) -> list[ObservedClaim]:
    """The claims of a StatefulSet that are not being deleted, by ordinal."""
    templates = spec_of(stateful_set).get("volumeClaimTemplates") or ()
    found = []
    for ordinal in sorted(claims_of_set(observed, stateful_set).ordinals):
        for template in templates:
            name = f"{metadata(template).get('name')}-{metadata(stateful_set).get('name')}-{ordinal}"
            claim = observed.object("PersistentVolumeClaim", name)
            if claim is not None and not is_deleting(claim) and _request(claim) is not None:
                found.append(_observed(claim))
    return found


def _request(claim: Manifest) -> Any:
    """The size that a claim requests, as its manifest has it; None without one."""
    resources = spec_of(claim).get("resources") or {}
    return (resources.get("requests") or {}).get("storage")


def _observed(claim: Manifest) -> ObservedClaim:
    status = status_of(claim)
    capacity = (status.get("capacity") or {}).get("storage")
    conditions = [one for one in status.get("conditions") or () if one.get("status") == "True"]
    return ObservedClaim(
        claim,
        parse_quantity(_request(claim)),
        parse_quantity(capacity) if capacity is not None else Decimal(0),
        "; ".join(_condition(one) for one in conditions),
    )


def _condition(condition: Mapping[str, Any]) -> str:
    message = condition.get("message")
    return f"{condition.get('type')}: {message}" if message else str(condition.get("type"))


def _applied(claim: Manifest, size: str, owner: Owner | None) -> Manifest:
    """What the operator applies of a claim: its size, its owner if it has one, and its uid, so that another
    claim of the name stays as it is. A field that it left out would be taken back."""
    meta, ref = metadata(claim), ref_of(claim)
    found = {"name": ref.name, "namespace": ref.namespace, "uid": meta.get("uid")}
    # No controller: that would be the StatefulSet, which Kubernetes expects to decide.
    reference = (
        None if owner is None else {**owner.reference(), "controller": False, "blockOwnerDeletion": False}
    )
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**found, **({"ownerReferences": [reference]} if reference else {})},
        "spec": {"resources": {"requests": {"storage": size}}},
    }
