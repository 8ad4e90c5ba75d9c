"""Renders resources to pods as plain data (`pods`). Every runtime uses these pods: the local runtime starts
processes from them, the Kubernetes operator makes manifests of them. This module alone decides which pods a
group has, how they are started and what their configuration files say.

Rendering has two steps, because a runtime must know a group's pods before it can assign addresses and
directories to them:

    identities = pods_of(group)                               # the pods' names, volumes and ports
    pods = render_pods(group, {i.name: place for i in ...})   # the pods, given addresses and paths

The brokers of a group that uses the nameservers of a ControllerGroup need the placements of its pods, too:
`render_pods(group, places, controllers)`.

Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from epochmq_operator.pods import (
    BrokerProbe,
    Component,
    ConfigFile,
    ControllerProbe,
    NameserverProbe,
    Pod,
    PodIdentity,
    PodPlacement,
    PodPort,
    PodSidecar,
    PodVolume,
    Probe,
)
from epochmq_operator.quorum_steps import member_id, voters_of_configuration
from epochmq_operator.resources import (
    CONTROLLER_COUNTS,
    DLEDGER_COUNTS,
    REPLICAS_MAX,
    BrokerGroup,
    ConfigValue,
    ControllerGroup,
    GroupResource,
)
from epochmq_protocol.signatures import SessionCredentials

NAMESERVER_PORT = 9876
CONTROLLER_PORT = 9878
BROKER_PORT = 10911
BROKER_VIP_PORT = BROKER_PORT - 2
"""RocketMQ's clients send to the client port minus two when `vipChannelEnabled` is set."""
BROKER_HA_PORT = 10912
BROKER_DLEDGER_PORT = 40911
"""The port of a broker's DLedger peer, as in RocketMQ's examples."""
ADMIN_PORT = 9880

CONTROLLER_LOG_FILE_BYTES = 16 * 1024 * 1024
"""The size of a controller's log file. RocketMQ's default is 1 GiB, for a log of a few thousand entries."""

REPLICATION_DEFAULTS: Mapping[str, ConfigValue] = {
    # An acknowledged message is on every replica that may become the master.
    "allAckInSyncStateSet": True,
    # A replica that hangs delays senders until it has left the SyncStateSet.
    "haMaxTimeSlaveNotCatchup": 3000,
    "checkSyncStateSetPeriod": 500,
    "haSendHeartbeatInterval": 1000,
    "haHousekeepingInterval": 5000,
    # Consumers can read from a slave until they learn the new master's address.
    "slaveReadEnable": True,
    # A replica that returns lags far behind; it copies the log in large blocks.
    "haTransferBatchSize": 1024 * 1024,
    # Bounds how long a change stays unnoticed when the notification about it was lost.
    "syncBrokerMetadataPeriod": 1000,
    "syncControllerMetadataPeriod": 2000,
    "controllerHeartBeatTimeoutMills": 3000,
}
"""The configuration of brokers under controllers, unless `spec.config` sets the key. RocketMQ's own defaults
suit replicas that are far apart; with them, acknowledged messages are lost when a master dies
(`allAckInSyncStateSet`)."""

MASTER_SLAVE_DEFAULTS: Mapping[str, ConfigValue] = {
    "haSendHeartbeatInterval": REPLICATION_DEFAULTS["haSendHeartbeatInterval"],
    "haHousekeepingInterval": REPLICATION_DEFAULTS["haHousekeepingInterval"],
    "haTransferBatchSize": REPLICATION_DEFAULTS["haTransferBatchSize"],
    "slaveReadEnable": True,
}
"""The configuration of brokers in the mode MasterSlave, unless `spec.config` sets the key."""
ACTING_MASTER_DEFAULTS: Mapping[str, ConfigValue] = {
    # What is due at an acting master leaves for other groups instead of waiting for the master.
    "enableRemoteEscape": True,
}
"""Further defaults where a slave acts for its master."""
DLEDGER_DEFAULTS: Mapping[str, ConfigValue] = {
    "slaveReadEnable": True,
}
"""The configuration of brokers in the mode DLedger, unless `spec.config` sets the key."""
NAMESERVER_DEFAULTS: Mapping[str, ConfigValue] = {
    "supportActingMaster": True,
    "notifyMinBrokerIdChanged": True,
}
"""The configuration of nameservers, unless `spec.config` sets the key. Both keys only concern groups whose
brokers have `enableSlaveActingMaster`."""

NAMESERVER_LOOKUP_DEFAULTS: Mapping[str, ConfigValue] = {"updateNameServerAddrPeriod": 5000}
"""The configuration of a broker that looks up the nameservers behind one name (every so many milliseconds),
unless `spec.config` sets the key."""

ALLOW_KEY = "allowUnauthenticatedMembers"
"""The key with which members without a proof of membership are accepted."""

MASTER_BROKER_ID = 0
"""RocketMQ's broker id of the master, whichever replica that is."""


def pods_of(group: GroupResource) -> tuple[PodIdentity, ...]:
    """The pods of a group, in start order. A controller group has one nameserver for each controller, in the
    controller's process or in a pod of its own; broker groups that name the ControllerGroup register there. A
    broker group without a ControllerGroup has one nameserver of its own."""
    return _pods_of_replicas(group, group.spec.replicas)


def possible_pods_of(group: GroupResource) -> tuple[PodIdentity, ...]:
    """The pods that the group has when it is scaled up as far as possible."""
    if isinstance(group, ControllerGroup):
        return _controller_pods(group, max(CONTROLLER_COUNTS), REPLICAS_MAX)
    return _pods_of_replicas(group, max(DLEDGER_COUNTS) if group.is_dledger else REPLICAS_MAX)


def _pods_of_replicas(group: GroupResource, replicas: int) -> tuple[PodIdentity, ...]:
    if isinstance(group, ControllerGroup):
        return _controller_pods(
            group, group.spec.replicas, group.spec.nameserver.replicas or group.spec.replicas
        )
    brokers = tuple(
        PodIdentity(
            name=broker_pod_name(group.name, ordinal),
            group=group.name,
            component=Component.BROKER,
            ordinal=ordinal,
            volumes=("store",),
            ports=(
                PodPort("remoting", BROKER_PORT),
                PodPort("vip", BROKER_VIP_PORT),
                PodPort("dledger", BROKER_DLEDGER_PORT)
                if group.is_dledger
                else PodPort("ha", BROKER_HA_PORT),
            ),
        )
        for ordinal in range(replicas)
    )
    return brokers if group.nameservers_of is not None else (_nameserver_pod(group, 0), *brokers)


def _nameserver_pod(group: GroupResource, ordinal: int) -> PodIdentity:
    return PodIdentity(
        name=f"{component_name(group.name, Component.NAMESERVER)}-{ordinal}",
        group=group.name,
        component=Component.NAMESERVER,
        ordinal=ordinal,
        volumes=("data",),
        ports=(PodPort("remoting", NAMESERVER_PORT),),
    )


def _controller_pods(
    group: ControllerGroup, number: int, separate_nameservers: int
) -> tuple[PodIdentity, ...]:
    """This number of controllers, and of nameservers if these have pods of their own."""
    embedded = group.spec.nameserver.embedded
    ordinals = range(number)
    controllers = tuple(
        PodIdentity(
            name=controller_pod_name(group.name, ordinal),
            group=group.name,
            component=Component.CONTROLLER,
            ordinal=ordinal,
            volumes=("data",),
            ports=(
                PodPort("remoting", CONTROLLER_PORT),
                *([PodPort("nameserver", NAMESERVER_PORT)] if embedded else []),
            ),
        )
        for ordinal in ordinals
    )
    nameservers = (_nameserver_pod(group, ordinal) for ordinal in range(separate_nameservers))
    return controllers if embedded else (*nameservers, *controllers)


def component_name(group: str, component: Component) -> str:
    """The name of a component of a group. The component's pods are named after it, with a dash and an
    ordinal; on Kubernetes their StatefulSet has this name."""
    return f"{group}-{component}"


def controller_pod_name(group: str, ordinal: int | str) -> str:
    """The name of a controller's pod. With a pattern as the ordinal: a pattern that matches all of them."""
    return f"{component_name(group, Component.CONTROLLER)}-{ordinal}"


def broker_pod_name(group: str, ordinal: int | str) -> str:
    """The name of a broker's pod. With a pattern as the ordinal: a pattern that matches all of them."""
    return f"{component_name(group, Component.BROKER)}-{ordinal}"


def render_pods(
    group: GroupResource,
    places: Mapping[str, PodPlacement],
    controllers: ControllerGroup | None = None,
    identities: tuple[PodIdentity, ...] | None = None,
    founders: int | None = None,
) -> tuple[Pod, ...]:
    """The group's pods, in start order; `identities` are those of `pods_of`, or of `possible_pods_of`.
    `founders` is the number of founders of a controller group, or of a DLedger group (`quorum_steps`), None
    for all. `controllers`
    is the ControllerGroup of a broker group (`nameservers_of`), if it has one. `places` has an entry for each
    of the identities, and for each name in `pods_of(controllers)`; KeyError otherwise."""
    if identities is None:
        identities = pods_of(group)
    if isinstance(group, ControllerGroup):
        quorum = [one for one in identities if one.component is Component.CONTROLLER]
        number = group.spec.replicas if founders is None else founders
        return tuple(
            _nameserver(group, identity, places[identity.name])
            if identity.component is Component.NAMESERVER
            else _controller(
                group,
                identity,
                places[identity.name],
                _quorum_config(quorum, identity, places, number),
            )
            for identity in identities
        )
    known = identities if controllers is None else pods_of(controllers)
    nameservers = _addresses(known, places, NAMESERVER_PORT)
    # Controllers whose nameservers are used do not elect the master of every group.
    elected = group.controlled_by is not None
    controller_addresses = _addresses(known, places, CONTROLLER_PORT) if elected else ()
    brokers = [one for one in identities if one.component is Component.BROKER]
    number = group.spec.replicas if founders is None else founders
    return tuple(
        _nameserver(group, identity, places[identity.name])
        if identity.component is Component.NAMESERVER
        else _broker(
            group,
            identity,
            places[identity.name],
            nameservers,
            controller_addresses,
            _peer_config(brokers, identity, places, number) if group.is_dledger else {},
        )
        for identity in identities
    )


def _peers(pods: Sequence[PodIdentity], places: Mapping[str, PodPlacement], port: int) -> str:
    """The peers of a Raft group, as RocketMQ writes them: n0-host:port;n1-host:port."""
    return ";".join(f"{member_id(pod.ordinal)}-{places[pod.name].address}:{port}" for pod in pods)


def _quorum_config(
    quorum: Sequence[PodIdentity],
    identity: PodIdentity,
    places: Mapping[str, PodPlacement],
    founders: int,
) -> dict[str, ConfigValue]:
    """The keys that name the members of the quorum to a controller whose log names none. All controllers are
    `quorum`."""
    number, joins = voters_of_configuration(identity.ordinal, len(quorum), founders)
    peers = _peers(quorum[:number], places, CONTROLLER_PORT)
    config: dict[str, ConfigValue] = {
        "controllerDLegerPeers": peers,
        "controllerDLegerSelfId": member_id(identity.ordinal),
    }
    return config | ({"joinControllerGroup": True} if joins else {})


def _peer_config(
    brokers: Sequence[PodIdentity],
    identity: PodIdentity,
    places: Mapping[str, PodPlacement],
    founders: int,
) -> dict[str, ConfigValue]:
    """The same for a broker of a DLedger group."""
    number, joins = voters_of_configuration(identity.ordinal, len(brokers), founders)
    config: dict[str, ConfigValue] = {
        "dLegerPeers": _peers(brokers[:number], places, BROKER_DLEDGER_PORT),
        "dLegerSelfId": member_id(identity.ordinal),
    }
    return config | ({"joinDLedgerGroup": True} if joins else {})


def _addresses(
    pods: tuple[PodIdentity, ...], places: Mapping[str, PodPlacement], port: int
) -> tuple[str, ...]:
    """host:port of each of these pods that listens on this port."""
    return tuple(
        f"{places[pod.name].address}:{port}" for pod in pods if any(one.number == port for one in pod.ports)
    )


def _nameserver(group: GroupResource, identity: PodIdentity, place: PodPlacement) -> Pod:
    config = _nameserver_config(place) | dict(NAMESERVER_DEFAULTS) | _process_config(place)
    if ALLOW_KEY in group.spec.config:  # the brokers and controllers of the group register here
        config[ALLOW_KEY] = group.spec.config[ALLOW_KEY]
    probe = NameserverProbe(f"{place.address}:{NAMESERVER_PORT}")
    return _pod(identity, place, ConfigFile(place.config_path("namesrv"), _properties(config)), probe)


def _nameserver_config(place: PodPlacement) -> dict[str, ConfigValue]:
    data = place.volumes["data"]
    return {
        "bindAddress": place.bind_address,
        "listenPort": NAMESERVER_PORT,
        "rocketmqHome": data,
        "kvConfigPath": f"{data}/kvConfig.json",
        "configStorePath": f"{data}/namesrv.properties",
    }


def _controller(
    group: ControllerGroup,
    identity: PodIdentity,
    place: PodPlacement,
    quorum_config: Mapping[str, ConfigValue],
) -> Pod:
    data = place.volumes["data"]
    config: dict[str, ConfigValue] = {
        "controllerType": "DLedger",
        "controllerDLegerGroup": group.name,
        **quorum_config,
        "controllerStorePath": f"{data}/controller",
        "mappedFileSize": CONTROLLER_LOG_FILE_BYTES,
    }
    address = f"{place.address}:{CONTROLLER_PORT}"
    if group.spec.nameserver.embedded:
        unset = {key: value for key, value in NAMESERVER_DEFAULTS.items() if key not in group.spec.config}
        config = {**_nameserver_config(place), **unset, "enableControllerInNamesrv": True, **config}
        if place.bind_address != place.address:
            config["controllerBindAddress"] = place.bind_address
        verb, name = "nameserver", "namesrv"
        probe = ControllerProbe(address, group.name, f"{place.address}:{NAMESERVER_PORT}")
    else:
        config = {"bindAddress": place.bind_address, "rocketmqHome": data, **config}
        verb, name = "controller", "controller"
        probe = ControllerProbe(address, group.name, None)
    text = _properties(config | _process_config(place)) + _user_config(group)
    return _pod(identity, place, ConfigFile(place.config_path(name), text), probe, verb)


def _broker(
    group: BrokerGroup,
    identity: PodIdentity,
    place: PodPlacement,
    nameservers: tuple[str, ...],
    controllers: tuple[str, ...],
    peer_config: Mapping[str, ConfigValue],
) -> Pod:
    store = place.volumes["store"]
    config: dict[str, ConfigValue] = {
        "brokerClusterName": group.spec.cluster,
        "brokerName": group.broker_name,
        **_role_config(group, identity, controllers, peer_config),
        **_nameserver_keys(group, place, nameservers),
        "bindAddress": place.bind_address,
        "brokerIP1": place.address,
        "brokerIP2": place.address,
        "listenPort": BROKER_PORT,
        "haListenPort": BROKER_HA_PORT,
        "storePathRootDir": store,
        "storePathCommitLog": f"{store}/commitlog",
    }
    if place.auth_secrets is not None:
        config["authSecretsPath"] = place.auth_secrets
    text = _properties(config | _process_config(place)) + _user_config(group)
    address, name = f"{place.address}:{BROKER_PORT}", group.broker_name
    credentials = inner_client_credentials(group)
    probe = BrokerProbe(address, group.spec.cluster, name, nameservers, controllers, credentials)
    file = ConfigFile(place.config_path("broker"), text)
    return _pod(
        identity,
        place,
        file,
        probe,
        depends_on=group.nameservers_of,
        restarts_in_turn=not group.is_under_controllers,
    )


def _nameserver_keys(
    group: BrokerGroup, place: PodPlacement, nameservers: tuple[str, ...]
) -> dict[str, ConfigValue]:
    """The keys with which a broker finds its nameservers. Behind one name, their number can change while the
    broker runs."""
    if place.nameservers is None:
        return {"namesrvAddr": ";".join(nameservers)}
    unset = {key: value for key, value in NAMESERVER_LOOKUP_DEFAULTS.items() if key not in group.spec.config}
    return {"namesrvAddr": place.nameservers, "fetchNameSrvAddrByDnsLookup": True, **unset}


def _dledger_config(group: BrokerGroup, peer_config: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The configuration keys of a peer. The broker's role follows from its peer's."""
    return {
        "enableDLegerCommitLog": True,
        "dLegerGroup": group.broker_name,
        **peer_config,
        **{key: value for key, value in DLEDGER_DEFAULTS.items() if key not in group.spec.config},
    }


def inner_client_credentials(group: BrokerGroup) -> SessionCredentials | None:
    """The credentials with which the group's brokers sign their requests; None without them, or if they
    are no JSON object, which the broker rejects."""
    value = group.spec.config.get("innerClientAuthenticationCredentials")
    if not isinstance(value, str) or not value.strip():
        return None
    try:
        return msgspec.json.decode(value, type=SessionCredentials)
    except msgspec.DecodeError:
        return None


def _role_config(
    group: BrokerGroup,
    identity: PodIdentity,
    controllers: tuple[str, ...],
    peer_config: Mapping[str, ConfigValue],
) -> dict[str, ConfigValue]:
    """The configuration keys that decide how the broker gets its role."""
    if group.is_master_slave:
        return _master_slave_config(group, identity.ordinal)
    if group.is_dledger:
        return _dledger_config(group, peer_config)
    if group.controlled_by is None:  # the only replica is always the master
        return {"brokerId": MASTER_BROKER_ID, "brokerRole": "ASYNC_MASTER"}
    defaults = dict(REPLICATION_DEFAULTS)
    if group.min_in_sync > 1:
        defaults["minInSyncReplicas"] = group.min_in_sync
    unset = {key: value for key, value in defaults.items() if key not in group.spec.config}
    return {
        "enableControllerMode": True,
        "controllerAddr": ";".join(controllers),
        **unset,
    }


def _master_slave_config(group: BrokerGroup, ordinal: int) -> dict[str, ConfigValue]:
    """The same in the mode MasterSlave: the broker id is the replica's ordinal, so that replica 0 is the
    master. The master waits for slaves only if several replicas must have a message (SYNC_MASTER)."""
    spec = group.spec
    defaults = dict(MASTER_SLAVE_DEFAULTS)
    if group.has_acting_master:
        defaults |= ACTING_MASTER_DEFAULTS
    copies = group.min_in_sync
    if copies > 1:
        defaults["inSyncReplicas"] = copies
    waits = copies > 1 or "inSyncReplicas" in spec.config
    master = "SYNC_MASTER" if waits else "ASYNC_MASTER"
    return {
        "brokerId": ordinal,
        "brokerRole": master if ordinal == MASTER_BROKER_ID else "SLAVE",
        "totalReplicas": spec.replicas,
        "minInSyncReplicas": copies,
        "enableSlaveActingMaster": group.has_acting_master,
        "skipPreOnline": False,
        **{key: value for key, value in defaults.items() if key not in spec.config},
    }


def _socket_config(place: PodPlacement) -> dict[str, ConfigValue]:
    """The main process's key for the socket to its sidecar."""
    return {} if place.admin is None else {"adminSocketPath": place.admin.socket}


def _process_config(place: PodPlacement) -> dict[str, ConfigValue]:
    """What the main process of every pod is configured with."""
    members: dict[str, ConfigValue] = {}
    if place.member_secret is not None:
        members["memberSecretPath"] = place.member_secret
    if place.unproven_members:
        members[ALLOW_KEY] = True
    return _socket_config(place) | dict(place.client_tls) | dict(place.external) | members


def _sidecar(identity: PodIdentity, place: PodPlacement) -> PodSidecar | None:
    if place.admin is None:
        return None
    config: dict[str, ConfigValue] = {
        "bindAddress": place.admin.bind_address,
        "listenPort": ADMIN_PORT,
        **_socket_config(place),
        **place.admin.files,
    }
    name = "admin" if place.config_name is None else f"{place.config_name}.admin"
    path = f"{place.config_directory}/{name}.conf"
    args = ("admin", "--config", path)
    return PodSidecar(args, ConfigFile(path, _properties(config)), PodPort("admin", ADMIN_PORT))


def _user_config(group: GroupResource) -> str:
    """The lines of `spec.config`, sorted."""
    if not group.spec.config:
        return ""
    return "# spec.config\n" + _properties(dict(sorted(group.spec.config.items())))


def _pod(
    identity: PodIdentity,
    place: PodPlacement,
    config: ConfigFile,
    probe: Probe,
    verb: str | None = None,
    *,
    depends_on: str | None = None,
    restarts_in_turn: bool = False,
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
        volumes=tuple(PodVolume(name, place.volumes[name]) for name in identity.volumes),
        probe=probe,
        depends_on=depends_on,
        sidecar=_sidecar(identity, place),
        restarts_in_turn=restarts_in_turn,
    )


def _properties(config: Mapping[str, ConfigValue]) -> str:
    """Java .properties text, escaped where a character would end or change a value."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in config.items())


def setting_text(value: ConfigValue) -> str:
    """A value of `spec.config` in the spelling of RocketMQ's properties."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _escaped(value: ConfigValue) -> str:
    text = setting_text(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text[:1] in (" ", "\t", "\f") else text
