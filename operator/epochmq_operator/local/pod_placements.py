"""Places the pods of a state directory's resources: addresses of its network, paths below the directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epochmq_operator.local.errors import StateError
from epochmq_operator.local.network import allocate
from epochmq_operator.local.state_directory import NetworkFile, QuorumRecord, StateDirectory
from epochmq_operator.pod_rendering import (
    ALLOW_KEY,
    pods_of,
    render_pods,
    setting_text,
)
from epochmq_operator.pods import (
    Pod,
    PodIdentity,
    PodPlacement,
    SidecarPlacement,
)
from epochmq_operator.resources import (
    BrokerGroup,
    ControllerGroup,
    GroupResource,
    MemberMode,
    Resources,
    is_raft_group,
    with_member_count,
)
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.admin_socket import check_admin_socket_path


def running_resources(resources: Resources, quorums: Mapping[str, QuorumRecord]) -> Resources:
    """The resources with as many controllers, and brokers of DLedger groups, as run while their number
    changes."""
    return Resources.of(
        with_member_count(group, quorums[group.name].running)
        if is_raft_group(group) and group.name in quorums
        else group
        for group in resources.documents
    )


def addresses_for(resources: Resources, known: NetworkFile) -> NetworkFile:
    """The network with an address for every pod of the resources. NetworkError if the network is full."""
    names = [identity.name for group in resources.groups for identity in pods_of(group)]
    return NetworkFile(network=known.network, addresses=allocate(known.network, known.addresses, names))


def render_all(state: StateDirectory, resources: Resources, network: NetworkFile) -> tuple[Pod, ...]:
    """Renders all pods of the running resources (`running_resources`) with their placements in this directory
    and network."""
    pods: list[Pod] = []
    quorums = state.quorums()
    for group in resources.groups:
        controllers = resources.controllers_of(group) if isinstance(group, BrokerGroup) else None
        mode = _member_mode(state, group, controllers)
        places = {
            identity.name: _placement(state, identity, network.addresses[identity.name], mode)
            for identity in (*pods_of(group), *(pods_of(controllers) if controllers is not None else ()))
        }
        quorum = quorums.get(group.name) if is_raft_group(group) else None
        founders = None if quorum is None else quorum.founders
        pods += render_pods(group, places, controllers, founders=founders)
    return tuple(pods)


def member_modes(state: StateDirectory, resources: Resources) -> Iterator[tuple[GroupResource, MemberMode]]:
    """The groups, and how the members of each authenticate each other."""
    for group in resources.groups:
        controllers = resources.controllers_of(group) if isinstance(group, BrokerGroup) else None
        yield group, _member_mode(state, group, controllers)


def _member_mode(
    state: StateDirectory, group: GroupResource, controllers: ControllerGroup | None
) -> MemberMode:
    """How the members of a group authenticate each other: by `spec.memberAuthentication` of its controllers,
    or of the group if it has none, unless the configuration of the group itself says it. All pods of a run
    have its secret, so that a change is no more than whether they also accept members without a proof.
    `Disabled`: the supervisor is of a release that made no secret."""
    if not state.member_secret.exists():
        return MemberMode.DISABLED
    wanted = (controllers or group).spec.member_authentication or MemberMode.REQUIRE
    accepts = group.spec.config.get(ALLOW_KEY, wanted is not MemberMode.REQUIRE)
    return MemberMode.ACCEPT if setting_text(accepts) == "true" else MemberMode.REQUIRE


def _placement(state: StateDirectory, pod: PodIdentity, address: str, mode: MemberMode) -> PodPlacement:
    return PodPlacement(
        address=address,
        bind_address=address,
        config_directory=str(state.absolute / "config" / pod.name),
        volumes={volume: str(state.volume_path(pod.name, volume)) for volume in pod.volumes},
        admin=_sidecar_placement(state, pod.name, address) if state.options().admin else None,
        member_secret=None if mode is MemberMode.DISABLED else str(state.member_secret),
        unproven_members=mode is MemberMode.ACCEPT,
    )


def _sidecar_placement(state: StateDirectory, pod: str, address: str) -> SidecarPlacement:
    socket = str(state.absolute / "run" / f"{pod}.sock")
    try:
        check_admin_socket_path(socket)
    except ConfigError as error:
        raise StateError(
            f"{state.path} cannot hold the sockets of admin sidecars: {error}; choose a shorter --state"
        ) from None
    return SidecarPlacement(socket, address, {"adminTokenFile": str(state.absolute / "admin-token")})
