"""A cluster in which people change and delete what belongs to a group, and a checker that reads everything
that the operator writes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochmq_operator.manifests import ManifestSettings, differences, render_manifests
from epochmq_operator.manifests.names import MANAGED_BY, MANAGER
from epochmq_operator.plans.effects import Apply, Delete, Effect
from epochmq_operator.plans.objects import APPLIED, Manifest, Ref, annotation, metadata, owner_of, ref_of
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.quorum_steps import Founders
from epochmq_operator.resources import ControllerGroup, GroupResource
from tests.unit.operator.plans.fake_api import SETTINGS, FakeApi, RejectedWriteError

WATCHED_WITHOUT_LABEL = ("Pod", "PersistentVolumeClaim", "BrokerGroup", "ControllerGroup")
"""Kinds whose objects the operator finds here without its label: groups have none, and the API server's own
controllers label the others."""
FIXED_FIELDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "ConfigMap": (("data",), ("immutable",)),
    "Service": (("spec", "clusterIP"),),
    "StatefulSet": (
        ("spec", "selector"),
        ("spec", "serviceName"),
        ("spec", "podManagementPolicy"),
        ("spec", "volumeClaimTemplates"),
    ),
}
"""Fields that the API server does not let anybody change. An object with other values exists only if somebody
deleted and created it again, as `kubectl replace --force` does."""


def renderer_with_memory() -> Renderer:
    """The renderer of a real operator. It renders the same group only once, because the tests ask often."""
    rendered: dict[str, Any] = {}

    def render(
        group: GroupResource,
        controllers: ControllerGroup | None,
        settings: ManifestSettings,
        founders: Founders | None,
    ) -> Any:
        key = repr((type(group), group, controllers, founders))
        if key not in rendered:
            rendered[key] = render_manifests(group, controllers, settings, founders)
        return rendered[key]

    return Renderer(SETTINGS, render)


def value_at(manifest: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path; None without it."""
    for part in path:
        try:
            manifest = manifest[part]
        except (KeyError, IndexError, TypeError):
            return None
    return manifest


@dataclass
class InterferenceApi(FakeApi):
    """The cluster. It delivers objects by their label, rejects changes of fields that are fixed, and checks
    every write of the operator."""

    renderer: Renderer = field(default_factory=renderer_with_memory)
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The number of replicas of each StatefulSet, by name."""
    loaded: set[Ref] = field(default_factory=set)
    """Objects without the operator's label that it asked for by their name."""

    def visible_objects(self) -> Mapping[Ref, Mapping[str, Any]]:
        """The objects with the operator's label, and those that it asked for."""
        return {ref: found for ref, found in self.objects.items() if self._is_visible(ref, found)}

    def _is_visible(self, ref: Ref, found: Manifest) -> bool:
        labelled = (metadata(found).get("labels") or {}).get(MANAGED_BY) == MANAGER
        return ref.kind in WATCHED_WITHOUT_LABEL or labelled or ref in self.loaded

    def replace_object(self, ref: Ref, manifest: dict[str, Any]) -> None:
        """Somebody creates an object."""
        self._store(ref, manifest)

    def settle(self, rounds: int = 30) -> int:
        """Runs the operator and the cluster until the operator had nothing to do in three rounds in a row:
        a pod takes two of them to come back."""
        quiet = 0
        for count in range(rounds):
            self.tick()
            quiet = 0 if self.operate() else quiet + 1
            if quiet == 3:
                return count
        raise AssertionError(f"not at rest: {[self.status(ref) for ref in self.resources()]}")

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect as the driver does, after it has checked it."""
        if isinstance(effect, Apply):
            self._check(effect.manifest)
            self._accept(effect.manifest)
        if isinstance(effect, Delete):
            assert effect.ref.kind not in ("StatefulSet", "Pod", "PersistentVolumeClaim", "ControllerGroup")
        super().act(effect, resource)

    def _accept(self, manifest: Manifest) -> None:
        ref = ref_of(manifest)
        found = self.objects.get(ref)
        if found is None:
            return
        if not self._is_visible(ref, found):
            self.loaded.add(ref)
            raise RejectedWriteError(f"{ref} exists already")
        for path in FIXED_FIELDS.get(ref.kind, ()):
            if (there := value_at(found, path)) is not None and value_at(manifest, path) != there:
                raise RejectedWriteError(f"{ref}: {'.'.join(path)}: field is immutable")

    def _check(self, manifest: Manifest) -> None:
        """No configuration and no StatefulSet has a wrong number of members at any time."""
        ref = ref_of(manifest)
        if ref.kind == "StatefulSet":
            assert manifest["spec"]["replicas"] == self.sizes[ref.name], f"{ref} has another size"
        if ref.kind == "ControllerGroup":
            assert manifest["spec"]["replicas"] == 3
        if ref.kind == "ConfigMap":
            check_files(manifest["data"])


def check_files(files: Mapping[str, str]) -> None:
    """Each configuration names three controllers and two copies of every message. A controller that joins
    has no vote until the log names it; its configuration has the addresses of all that there may be."""
    for file, text in files.items():
        config = dict(line.partition("=")[::2] for line in text.splitlines())
        if config.get("joinControllerGroup") == "true":
            assert len(config["controllerDLegerPeers"].split(";")) > 3, file
            continue
        for key in ("controllerDLegerPeers", "controllerAddr"):
            if key in config:
                assert len(config[key].split(";")) == 3, (file, key, config[key])
        if "controllerAddr" in config:
            assert config["minInSyncReplicas"] == "2", file


def owned_objects(api: FakeApi) -> list[Ref]:
    """The objects that the operator made."""
    return sorted(ref for ref, found in api.objects.items() if annotation(found, APPLIED) is not None)


def changes(before: Manifest, now: Manifest) -> tuple[str, ...]:
    """The fields of an object that differ from before. Its owner counts by its name only."""
    owners = [owner and (owner.kind, owner.name) for owner in (owner_of(before), owner_of(now))]
    lines = () if owners[0] == owners[1] else (f"the owner is {owners[1]}",)
    return (*lines, *differences(_without_ids(before), _without_ids(now)))


def _without_ids(manifest: Manifest) -> dict[str, Any]:
    """An object without what the API server sets, and without what contains its owner's uid."""
    meta = {key: value for key, value in metadata(manifest).items() if key in ("labels", "annotations")}
    meta["annotations"] = {key: text for key, text in meta["annotations"].items() if key != APPLIED}
    return {**{key: value for key, value in manifest.items() if key != "status"}, "metadata": meta}


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields, also of those that have fields themselves."""
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from paths_of(inner, (*path, key))


@functools.singledispatch
def wrong_values(value: Any) -> list[Any]:
    """Wrong values for a field that has this one. None: the field is removed."""
    return [None, "wrong"]


@wrong_values.register
def _(value: bool) -> list[Any]:
    return [not value, None]


@wrong_values.register
def _(value: int) -> list[Any]:
    return [value + 1, 0, None, 1 if value != 1 else 9]


@wrong_values.register
def _(value: str) -> list[Any]:
    return [f"{value}-wrong", None, ""]


@wrong_values.register(dict)
@wrong_values.register(list)
def _(value: Any) -> list[Any]:
    return [None, type(value)()]


def set_field(manifest: Any, path: tuple[Any, ...], wrong: Any) -> None:
    """Sets or removes a field."""
    inner = value_at(manifest, path[:-1])
    if wrong is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = copy.deepcopy(wrong)
