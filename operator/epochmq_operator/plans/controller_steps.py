"""The steps of a controller group.

`guard`, `objects`: as of a broker group.
`replicas`: the StatefulSets are as rendered. Waits while a volume claim is being deleted, or there are claims
    of another number of controllers.
`ready`: all pods are ready, and one controller leads.
`members`: as many controllers run as the spec asks for. Waits for ever: not supported yet.
`held`: as of a broker group.

How many controllers a quorum has is fixed when it is created: most of another number may know nothing of what
was agreed.
"""

# pure: data in, steps out.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from epochmq_operator.plans.broker_steps import (
    count_of,
    held_step,
    objects_step,
    replacements,
    set_of_controllers,
    sets_step,
    troubles,
)
from epochmq_operator.plans.objects import Manifest, Owner, metadata
from epochmq_operator.plans.standing import Findings, Floor, rendered, surplus
from epochmq_operator.plans.steps import Step
from epochmq_operator.plans.world import PodSeen, Quorum, World, claims_of_set, pods_of_set, quorum_of
from epochmq_operator.resources import ControllerGroup


@dataclass(frozen=True, slots=True)
class Controllers:
    """A controller group with everything that its steps and its status are made of. `group` has as many
    replicas as run, `wanted` is how many the spec asks for."""

    group: ControllerGroup
    wanted: int
    owner: Owner
    created: bool
    manifests: tuple[Manifest, ...]
    held: tuple[str, ...]
    pods: tuple[PodSeen | None, ...]
    others: tuple[tuple[str, tuple[PodSeen | None, ...]], ...]
    quorum: Quorum

    @property
    def set_name(self) -> str:
        """The controllers' StatefulSet."""
        return set_of_controllers(self.group.name)

    @property
    def ready(self) -> int:
        """How many controllers are ready."""
        return sum(1 for pod in self.pods if pod is not None and pod.ready)

    @property
    def outdated(self) -> list[str]:
        """The pods that are of an older template than is wanted now."""
        pods = (*self.pods, *(pod for _, more in self.others for pod in more))
        return [pod.name for pod in pods if pod is not None and pod.outdated]

    @property
    def troubles(self) -> list[str]:
        """A line for each pod of the group that is not ready."""
        lines = troubles(self.pods, self.set_name)
        for name, pods in self.others:
            lines += troubles(pods, name)
        return lines


def controllers_of(floor: Floor, world: World, group: ControllerGroup, *, created: bool) -> Controllers:
    """Everything about the group, read off the world."""
    name = set_of_controllers(group.name)
    wanted = group.spec.replicas
    running = count_of(world.object("StatefulSet", name))
    count = wanted if running is None else running
    effective = group.model_copy(update={"spec": group.spec.model_copy(update={"replicas": count})})
    manifests, held = rendered(floor, world, effective, None)
    others = tuple(
        (other, pods_of_set(world, other, count_of(one) or 0))
        for one in manifests
        if one.get("kind") == "StatefulSet" and (other := str(metadata(one).get("name"))) != name
    )
    return Controllers(
        group=effective,
        wanted=wanted,
        owner=Owner("ControllerGroup", group.name, str(metadata(world.resource).get("uid", ""))),
        created=created,
        manifests=manifests,
        held=held,
        pods=pods_of_set(world, name, count),
        others=others,
        quorum=quorum_of(world, tuple(f"{name}-{n}" for n in range(count))),
    )


def controller_steps(floor: Floor, world: World, seen: Controllers) -> Iterator[Step]:
    """The steps, in order."""
    sets = [one for one in seen.manifests if one.get("kind") == "StatefulSet"]
    rest = [one for one in seen.manifests if one.get("kind") != "StatefulSet"]
    findings = Findings.of(world, floor.differences, rest, seen.owner)
    unwanted = surplus(world, floor, seen.group, seen.manifests, seen.owner)
    yield objects_step(replace(findings, surplus=unwanted))
    yield _fitting(
        world, seen, sets_step(world, Findings.of(world, floor.differences, sets, seen.owner), seen.created)
    )
    leaderless = seen.quorum.answered > 0 and seen.quorum.leader is None
    pods = (*seen.pods, *(pod for _, more in seen.others for pod in more))
    yield Step(
        "ready",
        not seen.troubles and not leaderless,
        "AwaitingReady",
        "waits until every controller is ready and one leads",
        effects=replacements(pods, world.namespace),
    )
    if len(seen.pods) != seen.wanted:
        yield Step(
            "members",
            False,
            "Membership",
            f"changes the quorum to {seen.wanted} controllers",
            f"the number of controllers cannot be changed yet: {len(seen.pods)} run and go on; set "
            f"spec.replicas to {len(seen.pods)}",
            blocked=True,
        )
    yield held_step(seen.held)


def _fitting(world: World, seen: Controllers, step: Step) -> Step:
    """Claims from before must be of as many controllers as are to run."""
    if step.done or step.missing or world.object("StatefulSet", seen.set_name) is not None:
        return step
    manifest = next((one for one in seen.manifests if str(metadata(one).get("name")) == seen.set_name), None)
    claims = claims_of_set(world, manifest) if manifest is not None else None
    if claims is None or not claims.ordinals or len(claims.ordinals) == seen.wanted:
        return step
    before = len(claims.ordinals)
    return Step(
        step.name,
        False,
        step.reason,
        step.message,
        f"volume claims of {before} controllers are there from before, spec.replicas is {seen.wanted}: "
        "most of another number may know nothing of what was agreed; set spec.replicas to "
        f"{before}, or delete the claims of {seen.set_name}",
        blocked=True,
    )
