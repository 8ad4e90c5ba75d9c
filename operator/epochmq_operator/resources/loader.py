"""Loads resources from YAML text.

Pure: the caller reads the files and passes their text. The loader reports every fault of every document in
one line each: the file, the line, the document, the field's path, the value, and what was expected:

    orders.yaml:6: document 1 (BrokerGroup orders): spec.replicas: "1", expected a whole number of at least 1
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from epochmq_operator.resources.model import (
    API_VERSION,
    BROKER_NAME_LENGTH_MAX,
    COUNTS_IN_WORDS,
    KINDS,
    NAME_LENGTH_MAX,
    REPLICAS_MAX,
    BrokerGroup,
    ControllerGroup,
    GroupResource,
    fields_of,
)
from epochmq_operator.resources.restore_from import EXPECTED_OF_RESTORES
from epochmq_protocol.errors import EpochMQError

DOCUMENT_COUNT_MAX = 1000
NESTING_MAX = 32

UNSUPPORTED_KINDS = {
    "BrokerGroupAudit": "it is for Kubernetes; audit directories with: epochmq audit DIR…",
    "BrokerGroupBackup": "it is for Kubernetes; back up a group with: epochmq backup GROUP --to URL",
    "Topic": "it is for Kubernetes; create topics with: epochmq topic create",
    "User": "it is for Kubernetes; create users with: epochmq user create",
}
"""Kinds of the API group that this loader rejects, each with the reason."""

POD_EXPECTED: Mapping[str, str] = {
    "image": "the name of an image",
    "imagePullPolicy": "Always, IfNotPresent or Never",
    "resources": "a mapping with requests and limits",
    "resources.requests": "a mapping of resources to quantities",
    "resources.requests.*": "a quantity, such as 2, 500m or 1Gi",
    "resources.limits": "a mapping of resources to quantities",
    "resources.limits.*": "a quantity, such as 2, 500m or 1Gi",
    "hostSpread": "None, Preferred or Required",
    "zoneSpread": "None, Preferred or Required",
    "nodeSelector": "a mapping of labels to values",
    "tolerations": "a list of tolerations",
    "podLabels": "a mapping of labels to values",
    "podAnnotations": "a mapping of strings",
    "pod": "a mapping with fields of pods, such as priorityClassName, affinity, env or volumes",
    "pod.priorityClassName": "the name of a PriorityClass",
    "pod.affinity": "a mapping with nodeAffinity, podAffinity or podAntiAffinity",
    "pod.env": "a list of names and values",
    "pod.env[].name": "the name of an environment variable",
    "pod.sidecarResources": "a mapping with requests and limits",
    "pod.sidecarResources.requests": "a mapping of resources to quantities",
    "pod.sidecarResources.requests.*": "a quantity, such as 2, 500m or 1Gi",
    "pod.sidecarResources.limits": "a mapping of resources to quantities",
    "pod.sidecarResources.limits.*": "a quantity, such as 2, 500m or 1Gi",
    "pod.imagePullSecrets": "a list of names of Secrets",
    "pod.topologySpreadConstraints": "a list of constraints",
    "pod.topologySpreadConstraints[].topologyKey": "a label of nodes",
    "pod.topologySpreadConstraints[].maxSkew": "a whole number from 1 to 9",
    "pod.topologySpreadConstraints[].whenUnsatisfiable": "ScheduleAnyway or DoNotSchedule",
    "pod.volumes": "a list of volumes, each with a name and one source",
    "pod.volumes[].name": "lower-case letters, digits and '-', at most 63 characters",
    "pod.volumeMounts": "a list of names of volumes and their directories",
    "pod.volumeMounts[].name": "the name of a volume in volumes",
    "pod.volumeMounts[].mountPath": "a path that begins with / and has no colon",
    "pod.volumeMounts[].subPath": "a path in the volume",
    "pod.volumeMounts[].readOnly": "true or false",
    "pod.securityContext": "a mapping with runAsUser, runAsGroup, fsGroup or supplementalGroups",
    "pod.securityContext.runAsUser": "a whole number of at least 1",
    "pod.securityContext.runAsGroup": "a whole number of at least 1",
    "pod.securityContext.fsGroup": "a whole number of at least 1",
    "pod.securityContext.supplementalGroups": "a list of whole numbers of at least 1",
}
"""What each field of pods accepts, in words."""
STORAGE_EXPECTED: Mapping[str, str] = {
    "storage": "a mapping",
    "storage.size": "a quantity with a unit, such as 10Gi",
    "storage.storageClassName": "the name of a StorageClass",
    "storage.retention": "Retain or Delete",
}
EXPECTED: Mapping[str, str] = {
    "apiVersion": API_VERSION,
    "metadata": "a mapping with at least name",
    "metadata.name": f"lower-case letters, digits, '-', a letter first, at most {NAME_LENGTH_MAX} characters",
    "metadata.namespace": "lower-case letters, digits, '-', at most 63 characters",
    "metadata.labels": "a mapping of strings",
    "metadata.annotations": "a mapping of strings",
    "spec": "a mapping with at least replicas",
    "spec.replicas": "a whole number from 1 to 9",
    "spec.brokerName": f"letters, digits, '-', '_', '|' and '%', at most {BROKER_NAME_LENGTH_MAX} characters",
    "spec.cluster": f"letters, digits, '-', '_', '|' and '%', at most {BROKER_NAME_LENGTH_MAX} characters",
    "spec.mode": "Controller, MasterSlave or DLedger",
    "spec.actingMaster": "true or false",
    "spec.controllerGroup": "the name of a ControllerGroup",
    "spec.controllers": "a mapping with replicas and fields of their pods",
    "spec.controllers.replicas": COUNTS_IN_WORDS,
    **{f"spec.controllers.{field}": text for field, text in {**STORAGE_EXPECTED, **POD_EXPECTED}.items()},
    "spec.config": "a mapping of RocketMQ's broker keys to values",
    "spec.config.*": "a string, a number, or true or false",
    "spec.minInSyncReplicas": "a whole number from 1 to spec.replicas",
    "spec.externalServices": "true or false",
    **{f"spec.{field}": text for field, text in {**STORAGE_EXPECTED, **POD_EXPECTED}.items()},
    "spec.restoreFrom": "a mapping with url, and backup, offset or time",
    **{f"spec.restoreFrom.{field}": text for field, text in EXPECTED_OF_RESTORES.items()},
    "spec.authSecret": "the name of a Secret",
    "spec.admin": "a mapping with tokenSecret, tlsSecret or both",
    "spec.admin.tokenSecret": "the name of a Secret",
    "spec.admin.tlsSecret": "the name of a Secret",
    "spec.clientTlsSecret": "the name of a Secret",
    "spec.external": "a mapping with type, host, nodePort, tlsMode or annotations",
    "spec.external.type": "LoadBalancer, NodePort or HostPort",
    "spec.external.host": "a name or an IPv4 address, with {ordinal} for the broker's ordinal",
    "spec.external.nodePort": "a whole number from 1024 to 65500",
    "spec.external.tlsMode": "disabled, permissive or enforcing",
    "spec.external.annotations": "a mapping of strings",
    "spec.memberAuthentication": "Require, Accept or Disabled",
    "spec.updatePolicy": "a mapping with operatorChanges, approval and windows",
    "spec.updatePolicy.operatorChanges": "Keep or Follow",
    "spec.updatePolicy.approval": "Automatic or Supervised",
    "spec.updatePolicy.windows": "a list of windows",
    "spec.updatePolicy.windows[].schedule": "five fields of cron, such as 0 3 * * 6",
    "spec.updatePolicy.windows[].minutes": "a whole number from 5 to 10080",
    "spec.paused": "true or false",
    "spec.deletionGuard": "true or false",
}
"""What each field accepts, in words; `*` stands for any key of a mapping."""
EXPECTED_OF_CONTROLLERS: Mapping[str, str] = {
    "spec": "a mapping",
    "spec.replicas": COUNTS_IN_WORDS,
    "spec.nameserver": "a mapping with embedded, replicas and pods",
    "spec.nameserver.pods": "a mapping with fields of pods",
    **{f"spec.nameserver.pods.{field}": text for field, text in POD_EXPECTED.items()},
    "spec.nameserver.embedded": "true or false",
    "spec.nameserver.replicas": f"a whole number from 1 to {REPLICAS_MAX}",
    "spec.config": "a mapping of RocketMQ's controller keys to values",
}
"""The same for fields of a ControllerGroup that differ."""

KINDS_IN_WORDS = " or ".join(KINDS)


@dataclass(frozen=True, slots=True)
class DocumentFault:
    """One fault of a document. `line` and `document` count from 1. `document` is None for a fault of the
    whole file."""

    file: str
    line: int
    document: int | None
    subject: str
    path: str
    problem: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        if self.document is not None:
            where += f": document {self.document}" + (f" ({self.subject})" if self.subject else "")
        return ": ".join(part for part in (where, self.path, self.problem) if part)


class ResourceError(EpochMQError):
    """The documents cannot be used. `faults` holds all faults in the order of the files."""

    def __init__(self, faults: Iterable[DocumentFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of the documents, by kind, in the order of the files."""

    broker_groups: tuple[BrokerGroup, ...] = ()
    controller_groups: tuple[ControllerGroup, ...] = ()
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict, compare=False)
    """Where each key of a `spec.config` stands: (kind, namespace, name, key) → `file:line: document N`."""

    @classmethod
    def of(cls, groups: Iterable[GroupResource]) -> Resources:
        """These groups, sorted by kind."""
        found = tuple(groups)
        return cls(
            tuple(group for group in found if isinstance(group, BrokerGroup)),
            tuple(group for group in found if isinstance(group, ControllerGroup)),
        )

    @property
    def documents(self) -> tuple[GroupResource, ...]:
        """All resources that the documents contain."""
        return (*self.controller_groups, *self.broker_groups)

    @property
    def all_controller_groups(self) -> tuple[ControllerGroup, ...]:
        """All controller groups, including those that belong to one broker group."""
        own = (group.own_controllers for group in self.broker_groups)
        return (*self.controller_groups, *(group for group in own if group is not None))

    @property
    def groups(self) -> tuple[GroupResource, ...]:
        """All groups to run, dependencies first."""
        return (*self.all_controller_groups, *self.broker_groups)

    def controllers_of(self, group: BrokerGroup) -> ControllerGroup | None:
        """The controllers whose nameservers the group uses, and that elect its master unless the mode is
        MasterSlave; None if it has a nameserver of its own. KeyError if `spec.controllerGroup` is not among
        these resources."""
        name = group.nameservers_of
        return (
            None
            if name is None
            else {controllers.name: controllers for controllers in self.all_controller_groups}[name]
        )


@dataclass(slots=True)
class _Document:
    file: str
    number: int
    line: int
    data: Any
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    faults: list[DocumentFault] = field(default_factory=list)

    @property
    def subject(self) -> str:
        if not isinstance(self.data, dict):
            return ""
        metadata = self.data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return " ".join(_plain(part) for part in (self.data.get("kind"), name) if isinstance(part, str))

    def is_key(self, path: tuple[object, ...]) -> bool:
        """Whether the fault is the last key of this path itself, which YAML read as something else than a
        string."""
        return bool(path) and not isinstance(path[-1], str)

    def fault(self, path: tuple[object, ...], problem: str) -> DocumentFault:
        known = tuple(map(str, path))
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, self.line)
        dotted = ".".join(_plain(str(part)) for part in path)
        return DocumentFault(self.file, line, self.number, self.subject, dotted, problem)


def show_value(value: object) -> str:
    """A value in a short form that its author recognises: scalars as JSON, the rest by kind."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, str | bool | int | float):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else text[:57] + "…" + ('"' if isinstance(value, str) else "")
    return str(value)[:60]  # dates and other types that YAML has for scalars


def _plain(name: str) -> str:
    """The name unchanged, or quoted if it could mislead a reader of a terminal or a log."""
    return name if name.isprintable() and len(name) <= 100 else show_value(name)


def load_resources(files: Iterable[tuple[str, str]]) -> Resources:
    """Loads the resources of files, given as (name, text). A text may hold any number of YAML documents.

    Raises ResourceError with every fault of every document."""
    faults: list[DocumentFault] = []
    groups: list[GroupResource] = []
    places: dict[tuple[str, ...], str] = {}
    seen: dict[tuple[str, str], str] = {}
    for name, text in files:
        try:
            documents = _documents(name, text)
        except ResourceError as error:
            faults += error.faults
            continue
        if not documents:
            faults.append(
                DocumentFault(name, 1, None, "", "", f"no documents, expected at least one {KINDS_IN_WORDS}")
            )
        for document in documents:
            group, found = _group(document)
            faults += found
            if group is None:
                continue
            first = seen.setdefault((group.metadata.namespace, group.name), f"{name}:{document.line}")
            if first != f"{name}:{document.line}":
                problem = f"{show_value(group.name)} is the name of another group, at {first}"
                faults.append(document.fault(("metadata", "name"), problem))
            groups.append(group)
            for key in group.spec.config:
                line = document.lines.get(("spec", "config", key), document.line)
                where = f"{document.file}:{line}: document {document.number}"
                places[group.kind, group.metadata.namespace, group.name, key] = where
    if faults:
        raise ResourceError(faults)
    return replace(Resources.of(groups), places=places)


def _documents(name: str, text: str) -> list[_Document]:
    """The documents of one file without empty ones. ResourceError for text that is not YAML."""
    documents: list[_Document] = []
    try:
        for number, node in enumerate(yaml.compose_all(text, Loader=yaml.SafeLoader), 1):
            if number > DOCUMENT_COUNT_MAX:
                raise ResourceError(
                    [
                        DocumentFault(
                            name,
                            1,
                            None,
                            "",
                            "",
                            f"more documents than the {DOCUMENT_COUNT_MAX} that are read",
                        )
                    ]
                )
            if node is None:
                continue
            document = _Document(name, number, node.start_mark.line + 1, None)
            _index_nodes(document, node)
            if not document.faults:
                document.data = yaml.constructor.SafeConstructor().construct_document(node)
            if document.data is not None or document.faults:
                documents.append(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ResourceError([DocumentFault(name, line, None, "", "", f"not YAML: {problem}")]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise ResourceError([DocumentFault(name, 1, None, "", "", f"not YAML: {reason}")]) from error
    return documents


def _index_nodes(document: _Document, root: yaml.Node) -> None:
    """Records the line of every field. Finds keys that are given twice, of which YAML silently keeps the
    last, and nesting deeper than any resource has. Visits a node only once, even if aliases point to it."""
    visited: set[int] = set()
    pending: list[tuple[yaml.Node, tuple[str, ...]]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        document.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in visited:
            continue
        visited.add(id(node))
        if len(path) > NESTING_MAX:
            document.faults.append(document.fault(path[:4], f"nested deeper than {NESTING_MAX} levels"))
            return
        if isinstance(node, yaml.SequenceNode):
            pending += [(item, (*path, str(index))) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    document.faults.append(document.fault(path, "the key is not a string"))
                    continue
                if key.value in keys:
                    document.lines[*path, key.value] = key.start_mark.line + 1
                    document.faults.append(document.fault((*path, key.value), "given twice"))
                keys.add(key.value)
                document.lines.setdefault((*path, key.value), key.start_mark.line + 1)
                pending.append((value, (*path, key.value)))


def _group(document: _Document) -> tuple[GroupResource | None, list[DocumentFault]]:
    if document.faults:
        return None, document.faults
    data = document.data
    if not isinstance(data, dict):
        return None, [
            document.fault((), f"{show_value(data)}, expected a resource: a mapping with apiVersion, kind, …")
        ]
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        if isinstance(kind, str) and kind in UNSUPPORTED_KINDS and data.get("apiVersion") == API_VERSION:
            problem = f"{kind} is not supported: {UNSUPPORTED_KINDS[kind]}; expected {KINDS_IN_WORDS}"
        elif kind is None:
            problem = f"missing, expected {KINDS_IN_WORDS}"
        else:
            problem = f"{show_value(kind)}, expected {KINDS_IN_WORDS}"
        return None, [document.fault(("kind",), problem)]
    try:
        return KINDS[kind].model_validate(data), []
    except ValidationError as error:
        return None, [_fault(document, detail) for detail in _without_union_branches(error)]


BRANCHES_BELOW: Mapping[tuple[int | str, ...], int] = {
    ("spec", "config"): 3,
    ("spec", "brokerName"): 2,
    ("spec", "resources"): 4,
    ("spec", "nodeSelector"): 3,
    ("spec", "podLabels"): 3,
    ("spec", "podAnnotations"): 3,
}
"""The length of a path at which pydantic appends the branch of a union, or a mark for a mapping's key."""


def _without_union_branches(error: ValidationError) -> list[ErrorDetails]:
    """One detail per field: pydantic reports a value that fits no branch of a union once for each branch."""
    kept: dict[tuple[int | str, ...], ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        location = detail["loc"]
        location = location[: BRANCHES_BELOW.get(location[:2], len(location))]
        detail["loc"] = location
        kept.setdefault(location, detail)
    return list(kept.values())


def _fault(document: _Document, detail: ErrorDetails) -> DocumentFault:
    path = tuple(detail["loc"])
    dotted = ".".join(str(part) for part in path)
    kind = KINDS[document.data["kind"]]
    special = EXPECTED_OF_CONTROLLERS if kind is ControllerGroup else {}
    expected = special.get(dotted) or EXPECTED.get(dotted)
    expected = expected or EXPECTED.get(f"{dotted.rpartition('.')[0]}.*") or detail["msg"].lower()
    match detail["type"]:
        case "missing":
            problem = f"missing, expected {expected}"
        case "extra_forbidden":
            problem = f"unknown field, expected {_fields_beside(kind, path)}"
        case "string_type" if document.is_key(path):
            problem = "the key is not a string, expected a string (quote it)"
        case "refused":
            problem = f"{show_value(detail['input'])}, {detail['msg']}"
        case "spans":
            context = detail["ctx"]
            return document.fault((*path, context["at"]), detail["msg"])
        case "key":
            problem = f"{show_value(document.data['spec']['config'][path[-1]])}, {detail['msg']}"
        case _:
            problem = f"{show_value(detail['input'])}, expected {expected}"
    return document.fault(path, problem)


def _fields_beside(kind: type[BaseModel], path: tuple[int | str, ...]) -> str:
    model = kind
    for part in path[:-1]:
        model = next(
            (
                found
                for name, info in model.model_fields.items()
                if (info.alias or name) == part
                for found in (info.annotation, *get_args(info.annotation))
                if isinstance(found, type) and issubclass(found, BaseModel)
            ),
            model,
        )
    infos = model.model_fields
    names = [infos[name].alias or name for name in fields_of(model) if not infos[name].exclude]
    close = difflib.get_close_matches(str(path[-1]), names, n=1)
    return f"{close[0]} (is it a misspelling?)" if close else "one of " + ", ".join(names)
