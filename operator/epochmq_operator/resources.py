"""The resources of API group `epochmq.io/v1alpha1`: the model that every runtime checks documents against,
and the loader that turns YAML text into it.

Pure: the caller reads the files and passes their text. Every fault a document has is reported, one readable
line each, with the file, the line, the document, the field's path, the value that stands there, and what was
expected:

    orders.yaml:6: document 1 (BrokerGroup orders): spec.replicas: "1", expected a whole number of at least 1
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from epochmq_protocol.errors import EpochMQError

API_VERSION = "epochmq.io/v1alpha1"

NAME_LENGTH_MAX = 40
"""A group's name becomes part of pod, volume and label names, which Kubernetes limits to 63 characters; the
rest of these names (`-nameserver`, a revision hash) needs 22."""
BROKER_NAME_LENGTH_MAX = 100
"""A broker's name is a topic's name too (RocketMQ creates one per broker), with a prefix in some places;
topic names end at 127."""
DOCUMENT_COUNT_MAX = 1000
NESTING_MAX = 32

UNSUPPORTED_KINDS = {
    "BrokerGroupAudit": "this version has no audits",
}
"""Kinds that belong to the API group, with the reason why this version refuses them."""

OPERATOR_OWNED_KEYS: Mapping[str, str] = {
    "namesrvAddr": "the addresses of the group's nameservers",
    "fetchNamesrvAddrByAddressServer": "the addresses of the group's nameservers",
    "fetchNameSrvAddrByDnsLookup": "the addresses of the group's nameservers",
    "controllerAddr": "the addresses of the group's controllers",
    "fetchControllerAddrByDnsLookup": "the addresses of the group's controllers",
    "enableControllerMode": "how the group's replicas elect a master",
    "enableDLegerCommitLog": "how the group's replicas elect a master",
    "brokerName": "spec.brokerName",
    "brokerClusterName": "spec.cluster",
    "brokerId": "the replica's identity",
    "brokerRole": "the replica's role",
    "brokerIP1": "the pod's address",
    "brokerIP2": "the pod's address",
    "bindAddress": "the pod's address",
    "haMasterAddress": "the master's address",
    "listenPort": "the pod's ports",
    "haListenPort": "the pod's ports",
    "rocketmqHome": "the pod's volumes",
    "brokerConfigPath": "the pod's configuration files",
    "isInBrokerContainer": "one broker a pod",
}
"""RocketMQ's keys that `spec.config` must not set, and what they follow from instead. Every key that begins
with `storePath` is owned too: it follows from the pod's volumes."""

CONTROLLER_OWNED_KEYS: Mapping[str, str] = {
    "controllerType": "how controllers agree",
    "controllerDLegerGroup": "the group's name",
    "controllerDLegerPeers": "the addresses of the group's pods",
    "controllerDLegerSelfId": "the pod's place in the group",
    "controllerStorePath": "the pod's volumes",
    "mappedFileSize": "the pod's volumes",
    "kvConfigPath": "the pod's volumes",
    "rocketmqHome": "the pod's volumes",
    "configStorePath": "the pod's configuration files",
    "bindAddress": "the pod's address",
    "listenPort": "the pod's ports",
    "enableControllerInNamesrv": "spec.nameserver.embedded",
}
"""The same for a ControllerGroup's `spec.config`. A controller refuses a log whose files have another size
than `mappedFileSize`."""

CONTROLLER_COUNTS = (1, 3, 5)
REPLICAS_MAX = 9
"""More replicas make a group slower, and hardly safer."""

CONFIG_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9]{0,99}\Z")
# Anchored for the engine that pydantic and the API server share, in which $ is the end of the text alone.
DNS_LABEL = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"
ROCKETMQ_NAME = r"^[%|a-zA-Z0-9_-]+$"

EXPECTED: Mapping[str, str] = {
    "apiVersion": API_VERSION,
    "metadata": "a mapping with at least name",
    "metadata.name": f"lower-case letters, digits, '-', a letter first, at most {NAME_LENGTH_MAX} characters",
    "metadata.namespace": "lower-case letters, digits, '-', a letter first, at most 63 characters",
    "metadata.labels": "a mapping of strings",
    "metadata.annotations": "a mapping of strings",
    "spec": "a mapping with at least replicas",
    "spec.replicas": "a whole number from 1 to 9",
    "spec.brokerName": f"letters, digits, '-', '_', '|' and '%', at most {BROKER_NAME_LENGTH_MAX} characters",
    "spec.cluster": f"letters, digits, '-', '_', '|' and '%', at most {BROKER_NAME_LENGTH_MAX} characters",
    "spec.controllerGroup": "the name of a ControllerGroup",
    "spec.config": "a mapping of RocketMQ's broker keys to values",
    "spec.config.*": "a string, a number, or true or false",
}
"""What each field takes, in words; `*` stands for any key of a mapping."""
EXPECTED_OF_CONTROLLERS: Mapping[str, str] = {
    "spec": "a mapping",
    "spec.replicas": "1, 3 or 5",
    "spec.nameserver": "a mapping with embedded",
    "spec.nameserver.embedded": "true or false",
    "spec.config": "a mapping of RocketMQ's controller keys to values",
}
"""The same where a ControllerGroup differs."""


def owner_of(key: str) -> str | None:
    """What a broker's configuration key follows from when the operator owns it, else None."""
    if key.startswith("storePath"):
        return "the pod's volumes"
    return OPERATOR_OWNED_KEYS.get(key)


def _config_key(key: str) -> str:
    """Keys are RocketMQ's and not the operator's; whether RocketMQ knows a key and takes its value, the
    broker says."""
    return _unowned(key, owner_of(key))


def _controller_key(key: str) -> str:
    return _unowned(key, CONTROLLER_OWNED_KEYS.get(key))


def _unowned(key: str, owner: str | None) -> str:
    if not CONFIG_KEY.match(key):
        raise PydanticCustomError("key", "expected a RocketMQ key: letters and digits, at most 100")
    if owner:
        raise PydanticCustomError(
            "key", "expected no such key: the operator sets it, from {owner}", {"owner": owner}
        )
    return key


def _quorum(replicas: int) -> int:
    if replicas in CONTROLLER_COUNTS:
        return replicas
    expected = EXPECTED_OF_CONTROLLERS["spec.replicas"]
    if replicas > 0 and replicas % 2 == 0:
        expected += ": an even number of controllers bears no more failures than one fewer"
    raise PydanticCustomError("refused", "expected {expected}", {"expected": expected})


class Model(BaseModel):
    """A part of a document: unknown fields are refused, values are not converted, nothing changes later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


DnsLabel = Annotated[str, Field(min_length=1, pattern=DNS_LABEL)]
RocketMQName = Annotated[str, Field(min_length=1, max_length=BROKER_NAME_LENGTH_MAX, pattern=ROCKETMQ_NAME)]
ConfigKey = Annotated[str, AfterValidator(_config_key)]
ControllerKey = Annotated[str, AfterValidator(_controller_key)]
ConfigValue = str | bool | int | float


class Metadata(Model):
    """Kubernetes' object metadata; what the API server adds to it is accepted and ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: Annotated[DnsLabel, Field(max_length=NAME_LENGTH_MAX, description="The group's name.")]
    namespace: Annotated[DnsLabel, Field(max_length=63, description="The group's namespace.")] = "default"
    labels: Annotated[dict[str, str], Field(description="Labels; kept, not used.")] = {}
    annotations: Annotated[dict[str, str], Field(description="Annotations; kept, not used.")] = {}


class BrokerGroupSpec(Model):
    """What a group should be."""

    replicas: Annotated[
        int,
        Field(
            ge=1,
            le=REPLICAS_MAX,
            description="How many replicas hold the group's log; one of them is the master at a time.",
        ),
    ]
    broker_name: Annotated[
        RocketMQName | None,
        Field(description="RocketMQ's brokerName of all replicas; the group's name if left out."),
    ] = None
    cluster: Annotated[RocketMQName, Field(description="RocketMQ's brokerClusterName.")] = "DefaultCluster"
    controller_group: Annotated[
        DnsLabel | None,
        Field(
            max_length=NAME_LENGTH_MAX,
            description="The ControllerGroup that elects the group's master. Left out, a group of several "
            "replicas has one of its own, under its own name.",
        ),
    ] = None
    config: Annotated[
        dict[ConfigKey, ConfigValue],
        Field(description="RocketMQ's broker keys, except those that the operator owns."),
    ] = {}


class BrokerGroup(Model):
    """One replica group: one RocketMQ brokerName, n replicas, one master at a time."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["BrokerGroup"]
    metadata: Metadata
    spec: BrokerGroupSpec
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def name(self) -> str:
        """The group's name, unique in its namespace."""
        return self.metadata.name

    @property
    def broker_name(self) -> str:
        """RocketMQ's brokerName of every replica."""
        return self.spec.broker_name or self.metadata.name

    @property
    def controlled_by(self) -> str | None:
        """The name of the ControllerGroup that elects its master. None: its one replica is the master, and
        there is nothing to elect."""
        return self.spec.controller_group or (self.name if self.spec.replicas > 1 else None)

    @property
    def own_controllers(self) -> ControllerGroup | None:
        """The ControllerGroup that belongs to this group alone, if it names none and needs one."""
        if self.controlled_by is None or self.spec.controller_group is not None:
            return None
        metadata = {"name": self.name, "namespace": self.metadata.namespace}
        return ControllerGroup.model_validate(
            {"apiVersion": API_VERSION, "kind": "ControllerGroup", "metadata": metadata}
        )


class NameserverSpec(Model):
    """Where a ControllerGroup's nameservers are."""

    embedded: Annotated[
        bool,
        Field(description="In the controllers' own processes; else in as many pods of their own."),
    ] = True


class ControllerGroupSpec(Model):
    """What a quorum of controllers should be."""

    replicas: Annotated[
        int, Field(description="How many controllers: 1, 3 or 5."), AfterValidator(_quorum)
    ] = 3
    nameserver: Annotated[NameserverSpec, Field(description="The nameservers that come with them.")] = (
        NameserverSpec()
    )
    config: Annotated[
        dict[ControllerKey, ConfigValue],
        Field(description="RocketMQ's controller keys, except those that the operator owns."),
    ] = {}


class ControllerGroup(Model):
    """A Raft quorum of controllers, and nameservers, that any number of broker groups share."""

    api_version: Literal["epochmq.io/v1alpha1"]
    kind: Literal["ControllerGroup"]
    metadata: Metadata
    spec: ControllerGroupSpec = ControllerGroupSpec()
    status: Annotated[
        Any, Field(exclude=True, description="Written by the operator; ignored when loaded.")
    ] = None

    @property
    def name(self) -> str:
        """The group's name, unique in its namespace."""
        return self.metadata.name


Group = BrokerGroup | ControllerGroup
KINDS: Mapping[str, type[BrokerGroup] | type[ControllerGroup]] = {
    "BrokerGroup": BrokerGroup,
    "ControllerGroup": ControllerGroup,
}
KINDS_IN_WORDS = " or ".join(KINDS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a document. `line` and `document` count from 1; `document` is None for a whole
    file."""

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
    """The documents cannot be used. `faults` holds everything that is wrong, in the order of the files."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


@dataclass(frozen=True, slots=True)
class Resources:
    """What the documents ask for: of each kind, in the order of the files."""

    broker_groups: tuple[BrokerGroup, ...] = ()
    controller_groups: tuple[ControllerGroup, ...] = ()

    @classmethod
    def of(cls, groups: Iterable[Group]) -> Resources:
        """These, by kind."""
        found = tuple(groups)
        return cls(
            tuple(group for group in found if isinstance(group, BrokerGroup)),
            tuple(group for group in found if isinstance(group, ControllerGroup)),
        )

    @property
    def documents(self) -> tuple[Group, ...]:
        """All that the documents name."""
        return (*self.controller_groups, *self.broker_groups)

    @property
    def quorums(self) -> tuple[ControllerGroup, ...]:
        """The controller groups, those that belong to a broker group included."""
        own = (group.own_controllers for group in self.broker_groups)
        return (*self.controller_groups, *(group for group in own if group is not None))

    @property
    def groups(self) -> tuple[Group, ...]:
        """All that there is to run, those that others depend on first."""
        return (*self.quorums, *self.broker_groups)

    def quorum_of(self, group: BrokerGroup) -> ControllerGroup | None:
        """The controllers that elect the group's master, None when nobody does. KeyError when they are none
        of these resources."""
        name = group.controlled_by
        return None if name is None else {quorum.name: quorum for quorum in self.quorums}[name]


@dataclass(slots=True)
class _Document:
    file: str
    number: int
    line: int
    data: Any
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def subject(self) -> str:
        if not isinstance(self.data, dict):
            return ""
        metadata = self.data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return " ".join(_plain(part) for part in (self.data.get("kind"), name) if isinstance(part, str))

    def is_key(self, path: tuple[object, ...]) -> bool:
        """Whether the fault at this path is the last key itself, which YAML made something else than a
        string."""
        return bool(path) and not isinstance(path[-1], str)

    def fault(self, path: tuple[object, ...], problem: str) -> Fault:
        known = tuple(map(str, path))
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, self.line)
        dotted = ".".join(_plain(str(part)) for part in path)
        return Fault(self.file, line, self.number, self.subject, dotted, problem)


def show(value: object) -> str:
    """A value as its author would recognise it, short: scalars as JSON, the rest by kind."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, str | bool | int | float):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else text[:57] + "…" + ('"' if isinstance(value, str) else "")
    return str(value)[:60]  # dates, and what else YAML can make of a scalar


def _plain(name: str) -> str:
    """A name as it stands, unless a terminal or a log could be misled by it."""
    return name if name.isprintable() and len(name) <= 100 else show(name)


def load(files: Iterable[tuple[str, str]]) -> Resources:
    """The resources in some files, given as (name, text); a text holds any number of YAML documents.

    Raises ResourceError with every fault of every document."""
    faults: list[Fault] = []
    groups: list[Group] = []
    seen: dict[tuple[str, str], str] = {}
    for name, text in files:
        try:
            documents = _documents(name, text)
        except ResourceError as error:
            faults += error.faults
            continue
        if not documents:
            faults.append(
                Fault(name, 1, None, "", "", f"no documents, expected at least one {KINDS_IN_WORDS}")
            )
        for document in documents:
            group, found = _group(document)
            faults += found
            if group is None:
                continue
            first = seen.setdefault((group.metadata.namespace, group.name), f"{name}:{document.line}")
            if first != f"{name}:{document.line}":
                problem = f"{show(group.name)} is the name of another group, at {first}"
                faults.append(document.fault(("metadata", "name"), problem))
            groups.append(group)
    if faults:
        raise ResourceError(faults)
    return Resources.of(groups)


def _documents(name: str, text: str) -> list[_Document]:
    """The documents of one file, empty ones left out. Raises ResourceError for text that is no YAML."""
    found: list[_Document] = []
    try:
        for number, node in enumerate(yaml.compose_all(text, Loader=yaml.SafeLoader), 1):
            if number > DOCUMENT_COUNT_MAX:
                raise ResourceError(
                    [
                        Fault(
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
            _survey(document, node)
            if not document.faults:
                document.data = yaml.constructor.SafeConstructor().construct_document(node)
            if document.data is not None or document.faults:
                found.append(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ResourceError([Fault(name, line, None, "", "", f"not YAML: {problem}")]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise ResourceError([Fault(name, 1, None, "", "", f"not YAML: {reason}")]) from error
    return found


def _survey(document: _Document, root: yaml.Node) -> None:
    """Notes the line of every field, and finds keys given twice (YAML keeps the last without a word) and
    nesting that no resource has. A node that is reached again through an alias is visited once."""
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
                    document.faults.append(document.fault(path, "a key that is no string"))
                    continue
                if key.value in keys:
                    document.lines[*path, key.value] = key.start_mark.line + 1
                    document.faults.append(document.fault((*path, key.value), "given twice"))
                keys.add(key.value)
                document.lines.setdefault((*path, key.value), key.start_mark.line + 1)
                pending.append((value, (*path, key.value)))


def _group(document: _Document) -> tuple[Group | None, list[Fault]]:
    if document.faults:
        return None, document.faults
    data = document.data
    if not isinstance(data, dict):
        return None, [
            document.fault((), f"{show(data)}, expected a resource: a mapping with apiVersion, kind, …")
        ]
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        if isinstance(kind, str) and kind in UNSUPPORTED_KINDS and data.get("apiVersion") == API_VERSION:
            problem = f"{kind} is not supported: {UNSUPPORTED_KINDS[kind]}; expected {KINDS_IN_WORDS}"
        elif kind is None:
            problem = f"missing, expected {KINDS_IN_WORDS}"
        else:
            problem = f"{show(kind)}, expected {KINDS_IN_WORDS}"
        return None, [document.fault(("kind",), problem)]
    try:
        return KINDS[kind].model_validate(data), []
    except ValidationError as error:
        return None, [_fault(document, detail) for detail in _without_union_branches(error)]


def _without_union_branches(error: ValidationError) -> list[ErrorDetails]:
    """One detail per place: a value that fits no branch of a union is reported by pydantic once a branch."""
    kept: dict[tuple[int | str, ...], ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        location = detail["loc"]
        if location[:2] == ("spec", "config"):
            location = location[:3]
        elif location[:2] == ("spec", "brokerName"):
            location = location[:2]
        detail["loc"] = location
        kept.setdefault(location, detail)
    return list(kept.values())


def _fault(document: _Document, detail: ErrorDetails) -> Fault:
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
            problem = "a key that is no string, expected one (quote it)"
        case "refused":
            problem = f"{show(detail['input'])}, {detail['msg']}"
        case "key":
            problem = f"{show(document.data['spec']['config'][path[-1]])}, {detail['msg']}"
        case _:
            problem = f"{show(detail['input'])}, expected {expected}"
    return document.fault(path, problem)


def _fields_beside(kind: type[Model], path: tuple[int | str, ...]) -> str:
    model = kind
    for part in path[:-1]:
        model = next(
            found
            for name, info in model.model_fields.items()
            if (info.alias or name) == part
            and isinstance(found := info.annotation, type)
            and issubclass(found, Model)
        )
    names = [info.alias or name for name, info in model.model_fields.items() if not info.exclude]
    close = difflib.get_close_matches(str(path[-1]), names, n=1)
    return f"{close[0]} (is it a misspelling?)" if close else "one of " + ", ".join(names)
