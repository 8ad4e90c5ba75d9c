"""Decides whether a person may override a scale-down that waits: `epochmq.io/force-scale-down`.

A scale-down removes a replica only while all replicas are ready and in sync. A replica that never becomes
ready again would hold it up for ever. The annotation overrides that for one replica: its value names the pod
and the generation of the resource, so it has no effect on another replica, or after a later change of the
spec.

The master stays in any case, and has every acknowledged message. So the override loses none of them; it gives
up copies, and the Event says which replicas still have one."""

# pure: data in, data out.

from __future__ import annotations

from dataclasses import dataclass

from epochmq_operator.plans.objects import FORCE_SCALE_DOWN, Manifest, annotation, metadata


@dataclass(frozen=True, slots=True)
class ForcedRemoval:
    """The removal of the replica `chosen` that waits for `obstacle`. `remaining` are the pods that stay,
    `in_sync` those that have every acknowledged message. `master` is the pod of the master by the report of
    the controllers, "" if it is not known; `masters` are those whose brokers report that they are it.
    `unknown` says why the state of the group is not certain; empty if it is."""

    resource: Manifest
    chosen: str
    obstacle: str
    remaining: tuple[str, ...]
    in_sync: frozenset[str]
    master: str
    masters: frozenset[str]
    unknown: str = ""

    @property
    def approval(self) -> str:
        """The value of the annotation that approves this removal, and no other."""
        return f"{self.chosen}.{metadata(self.resource).get('generation')}"

    @property
    def approved(self) -> bool:
        """Whether a person approved it."""
        return annotation(self.resource, FORCE_SCALE_DOWN) == self.approval

    @property
    def impossible_because(self) -> str:
        """Why no annotation allows it; empty if one does."""
        if self.unknown:
            return self.unknown
        if self.master == self.chosen:
            return f"{self.chosen} is the master: promote another replica first"
        if self.master not in self.remaining or self.master not in self.masters:
            return "no replica that stays is known to be the master"
        return ""

    @property
    def waits_for(self) -> str:
        """What the removal waits for, and how a person overrides that; empty if it may start."""
        impossible = self.impossible_because
        if self.approved and not impossible:
            return ""
        if self.approved:
            return f"{self.obstacle}; {FORCE_SCALE_DOWN} does not override that: {impossible}"
        if impossible:
            return self.obstacle
        return f"{self.obstacle}; to remove {self.chosen} now, {self._command()}"

    def _command(self) -> str:
        """The command that approves this removal."""
        kind, name = str(self.resource.get("kind")).lower(), metadata(self.resource).get("name")
        return f"kubectl annotate --overwrite {kind} {name} {FORCE_SCALE_DOWN}={self.approval}"

    @property
    def consequence(self) -> str:
        """What the removal gives up."""
        copies = [name for name in self.remaining if name in self.in_sync or name == self.master]
        one = len(copies) == 1
        return (
            f"removes {self.chosen}, as {FORCE_SCALE_DOWN} says, although {self.obstacle}: of the remaining "
            f"replicas {', '.join(copies)} {'has' if one else 'have'} all acknowledged messages; if "
            f"{'it is' if one else 'they are'} lost before another replica is in sync, so are messages; the "
            f"volume of {self.chosen} stays"
        )
