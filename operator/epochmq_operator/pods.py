"""Defines pods as plain data: what runs in them, how they are started, and where a runtime puts them.
`pod_rendering` makes them of resources.

Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from epochmq_protocol.signatures import SessionCredentials


class Component(StrEnum):
    """What runs in a pod. A controller's process may contain a nameserver."""

    NAMESERVER = "nameserver"
    CONTROLLER = "controller"
    BROKER = "broker"


START_ORDER: tuple[Component, ...] = (Component.NAMESERVER, Component.CONTROLLER, Component.BROKER)
"""Pods stop in the reverse order, so that a broker can unregister from nameservers that still run."""
WAITS_FOR: Mapping[Component, tuple[Component, ...]] = {
    Component.NAMESERVER: (),
    Component.CONTROLLER: (),
    Component.BROKER: (Component.NAMESERVER, Component.CONTROLLER),
}
"""The components, of the groups that a pod depends on, that must be ready before the pod starts. A broker
registers with them."""


@dataclass(frozen=True, slots=True)
class PodPort:
    """A TCP port that a pod listens on."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod of a group, before its placement is known. `name` is unique in the namespace and stays the same
    for as long as the group has the pod; volumes and addresses are stored under it."""

    name: str
    group: str
    component: Component
    ordinal: int
    volumes: tuple[str, ...]
    ports: tuple[PodPort, ...]


@dataclass(frozen=True, slots=True)
class SidecarPlacement:
    """Where a pod's admin sidecar listens, and the Unix socket over which it talks to the pod's main process.
    `files` maps the sidecar's configuration keys to the paths of its token and certificates."""

    socket: str
    bind_address: str
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where a runtime puts a pod. Others connect to `address`; the pod listens on `bind_address`. `volumes`
    maps each volume of the pod to the path at which the pod sees it. `config_name` is the base name of the
    configuration file (without `.conf`) where it differs from the component's usual name. `auth_secrets` is
    the path of the broker's file of passwords, if it has one. `nameservers` is a `host:port` whose name has
    the addresses of all nameservers at any time; None if a broker gets the address of each. `client_tls` maps
    the keys of TLS at the ports for clients to the paths of the certificates; empty without TLS. `external`
    are the keys of the port for clients outside; empty without one. `member_secret` is the path of the file
    of the secret by which members authenticate each other; None without one. `unproven_members`: members
    without a proof are accepted, too."""

    address: str
    bind_address: str
    config_directory: str
    volumes: Mapping[str, str]
    config_name: str | None = None
    admin: SidecarPlacement | None = None
    auth_secrets: str | None = None
    nameservers: str | None = None
    client_tls: Mapping[str, str] = field(default_factory=dict)
    external: Mapping[str, str | int] = field(default_factory=dict)
    member_secret: str | None = None
    unproven_members: bool = False

    def config_path(self, usual: str) -> str:
        """The path of the configuration file whose usual base name is `usual`."""
        return f"{self.config_directory}/{self.config_name or usual}.conf"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that the runtime writes before the pod starts."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class PodVolume:
    """A directory that outlives the pod."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class NameserverProbe:
    """Ready when the nameserver at `address` (host:port) answers requests."""

    address: str


@dataclass(frozen=True, slots=True)
class BrokerProbe:
    """Ready when all of this holds: the broker at `address` (host:port) answers requests; each of
    `nameservers` lists this address under `cluster` and `broker_name`; where there are `controllers`, their
    leader knows a master of the group and has this replica in the SyncStateSet. `credentials`, if any, sign
    the requests to the broker."""

    address: str
    cluster: str
    broker_name: str
    nameservers: tuple[str, ...]
    controllers: tuple[str, ...] = ()
    credentials: SessionCredentials | None = None


@dataclass(frozen=True, slots=True)
class ControllerProbe:
    """Ready when the controller at `address` (host:port) answers and knows the group's leader, has applied
    its log if it leads itself, and the nameserver in the same process, if there is one, answers."""

    address: str
    group: str
    nameserver: str | None


Probe = NameserverProbe | BrokerProbe | ControllerProbe


@dataclass(frozen=True, slots=True)
class PodSidecar:
    """The pod's admin sidecar: a second process beside the main one. `args` are the arguments of the command
    `epochmq`."""

    args: tuple[str, ...]
    config_file: ConfigFile
    port: PodPort


@dataclass(frozen=True, slots=True)
class Pod:
    """Everything that a runtime needs to run one pod. `args` are the arguments of the command `epochmq`. A
    running pod needs no restart if its new `Pod` equals the old one. The pod waits (`WAITS_FOR`) for pods of
    its own group and of the group `depends_on`. `restarts_in_turn`: changed pods of the group restart one
    after another (`local/restart_rules.py`). `sidecar` is None where the placement has no `admin`."""

    name: str
    group: str
    component: Component
    ordinal: int
    address: str
    args: tuple[str, ...]
    config_files: tuple[ConfigFile, ...]
    ports: tuple[PodPort, ...]
    volumes: tuple[PodVolume, ...]
    probe: Probe
    depends_on: str | None = None
    sidecar: PodSidecar | None = None
    restarts_in_turn: bool = False

    @property
    def files(self) -> tuple[ConfigFile, ...]:
        """All files that the runtime writes before the pod's processes start."""
        return (*self.config_files, *([self.sidecar.config_file] if self.sidecar else []))

    def port(self, name: str) -> str:
        """`host:port` of the port with this name."""
        return next(f"{self.address}:{port.number}" for port in self.ports if port.name == name)
