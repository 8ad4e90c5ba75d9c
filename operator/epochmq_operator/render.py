"""From a resource to pods as plain data: the floor that every runtime shares. The local runtime makes
processes of these pods; what a pod is, how it is started and what it is told is decided here and nowhere
else.

Pure, in two steps, because a runtime must know a group's pods before it can say where they will be:

    identities = pods_of(group)                          # which pods there are, with their volumes and ports
    pods = render(group, {i.name: place for i in ...})   # what they are, given an address and paths for each
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from epochmq_operator.resources import BrokerGroup, ConfigValue, ControllerGroup, Group

NAMESERVER_PORT = 9876
CONTROLLER_PORT = 9878
BROKER_PORT = 10911
BROKER_VIP_PORT = BROKER_PORT - 2
"""RocketMQ's clients send to two below the client port when `vipChannelEnabled` is set."""
BROKER_HA_PORT = 10912

CONTROLLER_LOG_FILE_BYTES = 16 * 1024 * 1024
"""What a controller's log grows by; RocketMQ's default is a GiB, for some thousand entries."""

MASTER_BROKER_ID = 0
"""RocketMQ's id of whichever replica is the master."""


class Component(StrEnum):
    """What runs in a pod. A controller may have a nameserver in its process."""

    NAMESERVER = "nameserver"
    CONTROLLER = "controller"
    BROKER = "broker"


START_ORDER: tuple[Component, ...] = (Component.NAMESERVER, Component.CONTROLLER, Component.BROKER)
"""Pods stop in the reverse order: a broker takes its leave from nameservers that are there."""
WAITS_FOR: Mapping[Component, tuple[Component, ...]] = {
    Component.NAMESERVER: (),
    Component.CONTROLLER: (),
    Component.BROKER: (Component.NAMESERVER, Component.CONTROLLER),
}
"""What of the same group a pod waits for before it starts: a broker registers with what is there."""


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port a pod listens on."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod that a group has, before it is known where it will be. `name` is unique in the namespace, and
    stays the same for as long as the group has the pod: volumes and addresses are kept under it."""

    name: str
    group: str
    component: Component
    ordinal: int
    volumes: tuple[str, ...]
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a runtime puts a pod. `address` is what others reach it at, `bind_address` what it listens on;
    `volumes` says for each of the pod's volumes under which path the pod sees it."""

    address: str
    bind_address: str
    config_directory: str
    volumes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that is there before the pod starts."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory that outlives the pod."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class NameserverProbe:
    """Ready when the nameserver at `address` (host:port) answers requests."""

    address: str


@dataclass(frozen=True, slots=True)
class BrokerProbe:
    """Ready when the broker at `address` (host:port) answers requests and each of `nameservers` lists this
    address under `cluster` and `broker_name`."""

    address: str
    cluster: str
    broker_name: str
    nameservers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ControllerProbe:
    """Ready when the controller at `address` (host:port) answers, knows who leads the group, and, if that is
    itself, has applied its log; and the nameserver in the same process, if there is one, answers."""

    address: str
    group: str
    nameserver: str | None


Probe = NameserverProbe | BrokerProbe | ControllerProbe


@dataclass(frozen=True, slots=True)
class Pod:
    """Everything a runtime needs to run one pod. `args` follow the command `epochmq`; two pods that compare
    equal need no restart to become one another."""

    name: str
    group: str
    component: Component
    ordinal: int
    address: str
    args: tuple[str, ...]
    config_files: tuple[ConfigFile, ...]
    ports: tuple[Port, ...]
    volumes: tuple[Volume, ...]
    probe: Probe

    def port(self, name: str) -> str:
        """`host:port` of the port with this name."""
        return next(f"{self.address}:{port.number}" for port in self.ports if port.name == name)


def pods_of(group: Group) -> tuple[PodIdentity, ...]:
    """The pods of a group, in start order. A broker group has a nameserver of its own; a controller group has
    one for each controller, in its process or apart."""
    if isinstance(group, ControllerGroup):
        return _controller_pods(group)
    brokers = tuple(
        PodIdentity(
            name=f"{group.name}-broker-{ordinal}",
            group=group.name,
            component=Component.BROKER,
            ordinal=ordinal,
            volumes=("store",),
            ports=(Port("remoting", BROKER_PORT), Port("vip", BROKER_VIP_PORT), Port("ha", BROKER_HA_PORT)),
        )
        for ordinal in range(group.spec.replicas)
    )
    return (_nameserver_pod(group, 0), *brokers)


def _nameserver_pod(group: Group, ordinal: int) -> PodIdentity:
    return PodIdentity(
        name=f"{group.name}-nameserver-{ordinal}",
        group=group.name,
        component=Component.NAMESERVER,
        ordinal=ordinal,
        volumes=("data",),
        ports=(Port("remoting", NAMESERVER_PORT),),
    )


def _controller_pods(group: ControllerGroup) -> tuple[PodIdentity, ...]:
    embedded = group.spec.nameserver.embedded
    ordinals = range(group.spec.replicas)
    controllers = tuple(
        PodIdentity(
            name=controller_pod_name(group.name, ordinal),
            group=group.name,
            component=Component.CONTROLLER,
            ordinal=ordinal,
            volumes=("data",),
            ports=(
                Port("remoting", CONTROLLER_PORT),
                *([Port("nameserver", NAMESERVER_PORT)] if embedded else []),
            ),
        )
        for ordinal in ordinals
    )
    return controllers if embedded else (*(_nameserver_pod(group, n) for n in ordinals), *controllers)


def controller_pod_name(group: str, ordinal: int | str) -> str:
    """The name of a controller's pod; with a pattern for the ordinal, of all of them."""
    return f"{group}-controller-{ordinal}"


def render(group: Group, places: Mapping[str, Place]) -> tuple[Pod, ...]:
    """The group's pods, in start order. `places` has one for each name in `pods_of(group)`; KeyError
    otherwise."""
    identities = pods_of(group)
    if isinstance(group, ControllerGroup):
        peers = ";".join(
            f"{_peer_id(identity)}-{places[identity.name].address}:{CONTROLLER_PORT}"
            for identity in identities
            if identity.component is Component.CONTROLLER
        )
        return tuple(
            _nameserver(identity, places[identity.name])
            if identity.component is Component.NAMESERVER
            else _controller(group, identity, places[identity.name], peers)
            for identity in identities
        )
    nameservers = tuple(
        f"{places[identity.name].address}:{NAMESERVER_PORT}"
        for identity in identities
        if identity.component is Component.NAMESERVER
    )
    return tuple(
        _nameserver(identity, places[identity.name])
        if identity.component is Component.NAMESERVER
        else _broker(group, identity, places[identity.name], nameservers)
        for identity in identities
    )


def _nameserver(identity: PodIdentity, place: Place) -> Pod:
    config = _nameserver_config(place)
    probe = NameserverProbe(f"{place.address}:{NAMESERVER_PORT}")
    return _pod(
        identity, place, ConfigFile(f"{place.config_directory}/namesrv.conf", _properties(config)), probe
    )


def _nameserver_config(place: Place) -> dict[str, ConfigValue]:
    data = place.volumes["data"]
    return {
        "bindAddress": place.bind_address,
        "listenPort": NAMESERVER_PORT,
        "rocketmqHome": data,
        "kvConfigPath": f"{data}/kvConfig.json",
        "configStorePath": f"{data}/namesrv.properties",
    }


def _peer_id(identity: PodIdentity) -> str:
    return f"n{identity.ordinal}"


def _controller(group: ControllerGroup, identity: PodIdentity, place: Place, peers: str) -> Pod:
    data = place.volumes["data"]
    config: dict[str, ConfigValue] = {
        "controllerType": "DLedger",
        "controllerDLegerGroup": group.name,
        "controllerDLegerPeers": peers,
        "controllerDLegerSelfId": _peer_id(identity),
        "controllerStorePath": f"{data}/controller",
        "mappedFileSize": CONTROLLER_LOG_FILE_BYTES,
    }
    address = f"{place.address}:{CONTROLLER_PORT}"
    if group.spec.nameserver.embedded:
        config = {**_nameserver_config(place), "enableControllerInNamesrv": True, **config}
        verb, name = "nameserver", "namesrv.conf"
        probe = ControllerProbe(address, group.name, f"{place.address}:{NAMESERVER_PORT}")
    else:
        config = {"bindAddress": place.bind_address, "rocketmqHome": data, **config}
        verb, name = "controller", "controller.conf"
        probe = ControllerProbe(address, group.name, None)
    text = _properties(config) + _said(group)
    return _pod(identity, place, ConfigFile(f"{place.config_directory}/{name}", text), probe, verb)


def _broker(group: BrokerGroup, identity: PodIdentity, place: Place, nameservers: tuple[str, ...]) -> Pod:
    store = place.volumes["store"]
    config: dict[str, ConfigValue] = {
        "brokerClusterName": group.spec.cluster,
        "brokerName": group.broker_name,
        # A group without controllers has one replica, which is its master.
        "brokerId": MASTER_BROKER_ID,
        "brokerRole": "ASYNC_MASTER",
        "namesrvAddr": ";".join(nameservers),
        "bindAddress": place.bind_address,
        "brokerIP1": place.address,
        "brokerIP2": place.address,
        "listenPort": BROKER_PORT,
        "haListenPort": BROKER_HA_PORT,
        "storePathRootDir": store,
        "storePathCommitLog": f"{store}/commitlog",
    }
    text = _properties(config) + _said(group)
    probe = BrokerProbe(f"{place.address}:{BROKER_PORT}", group.spec.cluster, group.broker_name, nameservers)
    return _pod(identity, place, ConfigFile(f"{place.config_directory}/broker.conf", text), probe)


def _said(group: Group) -> str:
    """What the resource itself says of the configuration."""
    if not group.spec.config:
        return ""
    return "# spec.config\n" + _properties(dict(sorted(group.spec.config.items())))


def _pod(
    identity: PodIdentity, place: Place, config: ConfigFile, probe: Probe, verb: str | None = None
) -> Pod:
    return Pod(
        name=identity.name,
        group=identity.group,
        component=identity.component,
        ordinal=identity.ordinal,
        address=place.address,
        args=(verb or str(identity.component), "--config", config.path),
        config_files=(config,),
        ports=identity.ports,
        volumes=tuple(Volume(name, place.volumes[name]) for name in identity.volumes),
        probe=probe,
    )


def _properties(config: Mapping[str, ConfigValue]) -> str:
    """Java .properties text, with what would end or change a value escaped."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in config.items())


def setting_text(value: ConfigValue) -> str:
    """A value of `spec.config` as RocketMQ's properties spell it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _escaped(value: ConfigValue) -> str:
    text = setting_text(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text[:1] in (" ", "\t", "\f") else text
