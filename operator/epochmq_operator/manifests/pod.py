"""Renders the pod template of a component. All its pods have the same template. What differs between them,
their names and addresses, is in their configuration files, which each pod finds by its own name."""

# pure: data in, data out.

from __future__ import annotations

from typing import Any

from epochmq_operator.manifests.external import add_external_port
from epochmq_operator.manifests.names import (
    CONFIG_HASH_ANNOTATION,
    MEMBERS_ANNOTATION,
    component_selector,
    config_map_name,
    labels,
    member_secret_name,
)
from epochmq_operator.manifests.program_pod import no_rights
from epochmq_operator.manifests.settings import JsonObject, ManifestSettings
from epochmq_operator.pod_rendering import (
    ADMIN_PORT,
    component_name,
)
from epochmq_operator.pods import (
    Component,
    Pod,
    SidecarPlacement,
)
from epochmq_operator.resources import (
    BrokerGroup,
    ControllerGroup,
    GroupResource,
    MemberMode,
    PodFields,
    ResourcesSpec,
    Spread,
)

CONFIG_DIRECTORY = "/etc/epochmq"
VOLUME_DIRECTORY = "/var/lib/epochmq"
RUN_DIRECTORY = "/run/epochmq"
SECRETS_DIRECTORY = "/etc/epochmq-admin"
AUTH_DIRECTORY = "/etc/epochmq-auth"
AUTH_FILE = "auth.properties"
MEMBERS_DIRECTORY = "/etc/epochmq-members"
MEMBERS_FILE = "secret"
CLIENT_TLS_DIRECTORY = "/etc/epochmq-tls"
CLIENT_TLS_FILES = {
    "tlsServerCertPath": "tls.crt",
    "tlsServerKeyPath": "tls.key",
    "tlsServerTrustCertPath": "ca.crt",
}
"""The keys of TLS at the ports for clients, and the file of the Secret that each refers to."""
ADMIN_SOCKET = f"{RUN_DIRECTORY}/admin.sock"
COMMAND = "epochmq"
OWN_NAME, OWN_ADDRESS = "$(POD_NAME)", "$(POD_IP)"
"""In arguments Kubernetes replaces these by the pod's name and address."""

PRE_STOP_OPERATION = {
    Component.BROKER: ("--timeout", "60", "handover", "lingerMs=35000"),
    Component.CONTROLLER: ("--timeout", "10", "handover"),
}
"""The operation that a pod's preStop hook calls. RocketMQ's clients fetch routes every 30 s. Until then a
former master forwards what they send to the new one; the hook ends when no client has sent anything for 2 s.
A leading controller transfers its leadership, whose loss the others would notice only after some seconds."""
GRACE_S = {Component.BROKER: 120, Component.CONTROLLER: 30, Component.NAMESERVER: 30}
"""The time that a pod has to stop. A broker first switches the mastership over and then flushes
everything."""

START_PROBES_MAX, START_PERIOD_S = 2**31 - 1, 1
"""As long as it takes: a broker that recovers a long log after a crash listens only when it is done, and a
restart would begin the recovery again. Kubernetes has no startup probe without a limit; this is the greatest
one."""
SIDECAR_START_PROBES_MAX = 600
LIVE_PROBES_MAX, LIVE_PERIOD_S = 6, 10
"""One minute: what delays a pod, such as a slow disk, may pass, and a restart would lose what it holds in
memory."""
SIDECAR_GRACE_S = 5
READY_PROBES_MAX, READY_PERIOD_S = 2, 3
PROBE_TIMEOUT_S = 5
REGISTRATION_S = 15
"""How long clients are not sent to a nameserver that has started: until the brokers have found its address
and have registered."""

TOKEN_FILE = {"adminTokenFile": "token"}
TLS_FILES = {"adminTlsCertFile": "tls.crt", "adminTlsKeyFile": "tls.key", "adminTlsCaFile": "ca.crt"}
"""The admin sidecar's configuration keys, and the file of the Secret that each refers to."""

SIDECAR_REQUESTS = {"cpu": "10m", "memory": "64Mi"}


def sidecar_placement(group: GroupResource) -> SidecarPlacement:
    """The placement of a group's admin sidecars in their pods."""
    files = {key: f"{SECRETS_DIRECTORY}/{file}" for _, keys in _secrets(group) for key, file in keys.items()}
    return SidecarPlacement(ADMIN_SOCKET, "0.0.0.0", files)


def _secrets(group: GroupResource) -> list[tuple[str, dict[str, str]]]:
    """The Secrets of the admin sidecars, each with the configuration keys for its files."""
    admin = group.spec.admin
    named = ((admin.token_secret, TOKEN_FILE), (admin.tls_secret, TLS_FILES))
    return [(name, keys) for name, keys in named if name is not None]


def auth_secret(group: GroupResource) -> str | None:
    """The Secret with the passwords of the brokers' access control."""
    return group.spec.auth_secret if isinstance(group, BrokerGroup) else None


def member_secret(group: GroupResource) -> str | None:
    """The Secret by which the group's pods prove that they are members; None if they do not."""
    if group.spec.member_authentication in (None, MemberMode.DISABLED):
        return None
    controllers = group.spec.controller_group if isinstance(group, BrokerGroup) else None
    return member_secret_name(controllers or group.name)


def client_tls_files(group: GroupResource) -> dict[str, str]:
    """The keys of TLS at the ports for clients, with the paths of the mounted certificates."""
    if group.spec.client_tls_secret is None:
        return {}
    return {key: f"{CLIENT_TLS_DIRECTORY}/{file}" for key, file in CLIENT_TLS_FILES.items()}


def pod_fields(group: GroupResource, component: Component) -> PodFields:
    """The fields that users set for the pods of a component."""
    if component is Component.NAMESERVER and isinstance(group, ControllerGroup):
        return group.spec.nameserver.pods or group.spec
    return group.spec


def pod_template(
    group: GroupResource, first: Pod, config_digest: str, settings: ManifestSettings
) -> JsonObject:
    """The template of all pods of a component, given the first of them and the digest of the component's
    configuration."""
    component = first.component
    fields = pod_fields(group, component)
    containers = [_main_container(group, first, settings)]
    if first.sidecar is not None:
        containers.append(_sidecar_container(group, first, settings))
    spec: JsonObject = {
        "serviceAccountName": component_name(group.name, component),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S[component],
        "securityContext": {
            **settings.pod_security,
            **fields.pod.security_context.model_dump(by_alias=True, exclude_defaults=True),
        },
        "containers": containers,
        "volumes": _volumes(group, first, config_map_name(group.name, component, config_digest)),
        **_scheduling(group, component),
    }
    if fields.pod.priority_class_name is not None:
        spec["priorityClassName"] = fields.pod.priority_class_name
    pull_secrets = dict.fromkeys((*settings.image_pull_secrets, *fields.pod.image_pull_secrets))
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    return {
        "metadata": {
            "labels": {**fields.pod_labels, **labels(group, component)},
            "annotations": {
                **fields.pod_annotations,
                "kubectl.kubernetes.io/default-container": str(component),
                CONFIG_HASH_ANNOTATION: config_digest,
                **_members_annotation(group),
            },
        },
        "spec": spec,
    }


def _members_annotation(group: GroupResource) -> dict[str, str]:
    mode = group.spec.member_authentication
    return {} if member_secret(group) is None else {MEMBERS_ANNOTATION: str(mode)}


def _container(
    name: str, args: tuple[str, ...], pod: Pod, group: GroupResource, settings: ManifestSettings
) -> JsonObject:
    fields, own_name = pod_fields(group, pod.component), pod.name
    return {
        "name": name,
        "image": fields.image or group.spec.image or default_image(group, settings),
        "imagePullPolicy": str(fields.image_pull_policy),
        "command": [COMMAND],
        "args": [arg.replace(f"/{own_name}.", f"/{OWN_NAME}.") for arg in args],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "securityContext": no_rights(),
    }


def default_image(group: GroupResource, settings: ManifestSettings) -> str:
    """The image of the group's pods if its spec names none."""
    return settings.broker_image if isinstance(group, BrokerGroup) else settings.controller_image


def _main_container(group: GroupResource, pod: Pod, settings: ManifestSettings) -> JsonObject:
    fields = pod_fields(group, pod.component)
    auth = pod.component is Component.BROKER and auth_secret(group) is not None
    tls = group.spec.client_tls_secret is not None
    members = member_secret(group) is not None
    container = {
        **_container(str(pod.component), pod.args, pod, group, settings),
        "ports": [{"name": port.name, "containerPort": port.number} for port in pod.ports],
        "resources": _resources(fields.resources),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_DIRECTORY, "readOnly": True},
            *({"name": volume.name, "mountPath": volume.path} for volume in pod.volumes),
            {"name": "run", "mountPath": RUN_DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},
            *([{"name": "auth", "mountPath": AUTH_DIRECTORY, "readOnly": True}] if auth else []),
            *([{"name": "client-tls", "mountPath": CLIENT_TLS_DIRECTORY, "readOnly": True}] if tls else []),
            *([{"name": "members", "mountPath": MEMBERS_DIRECTORY, "readOnly": True}] if members else []),
            *(one.model_dump(by_alias=True, exclude_defaults=True) for one in fields.pod.volume_mounts),
        ],
        **_probes(group, pod),
    }
    container["env"] += [{"name": one.name, "value": one.value} for one in fields.pod.env]
    is_broker = pod.component is Component.BROKER
    if is_broker and isinstance(group, BrokerGroup) and not group.spec.external_services:
        _advertise_pod_address(container)
    add_external_port(container, group, pod.component)
    if pod.component in PRE_STOP_OPERATION:
        command = [COMMAND, "admin-call", "--socket", ADMIN_SOCKET, *PRE_STOP_OPERATION[pod.component]]
        container["lifecycle"] = {"preStop": {"exec": {"command": command}}}
    return container


def _resources(given: ResourcesSpec) -> JsonObject:
    """The resources of a container."""
    return {
        kind: {name: str(amount) for name, amount in sorted(amounts.items())}
        for kind, amounts in (("requests", given.requests), ("limits", given.limits))
        if amounts
    }


def _advertise_pod_address(broker: JsonObject) -> None:
    """Makes the broker advertise its pod's IP address, which disappears with the pod: a client that resolved
    a name may use the former pod's address for long. Clients outside the cluster can use names only."""
    broker["args"] += ["--set", f"clientIP={OWN_ADDRESS}"]
    broker["env"].append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})


def _probes(group: GroupResource, pod: Pod) -> JsonObject:
    """The probes of the main container. Only readiness asks the sidecar, which reports the state of the main
    process. The probes that restart the main process do not depend on the sidecar, which may fail by itself:
    they connect to the main process's own port. A process that hangs accepts no connections, and once the
    port's queue is full the probes fail."""
    scheme = "HTTPS" if group.spec.admin.tls_secret else "HTTP"
    port = next(one.number for one in pod.ports if one.name == "remoting")
    live = {"tcpSocket": {"port": port}}
    delay = {"initialDelaySeconds": REGISTRATION_S} if pod.component is Component.NAMESERVER else {}
    ready: JsonObject = {"httpGet": {"path": "/ready", "port": ADMIN_PORT, "scheme": scheme}}
    return {
        "startupProbe": _probe(live, START_PERIOD_S, START_PROBES_MAX),
        "livenessProbe": _probe(live, LIVE_PERIOD_S, LIVE_PROBES_MAX),
        "readinessProbe": {**_probe(ready, READY_PERIOD_S, READY_PROBES_MAX), **delay},
    }


def _probe(how: JsonObject, period_s: int, failures_max: int) -> JsonObject:
    return {
        **how,
        "periodSeconds": period_s,
        "timeoutSeconds": PROBE_TIMEOUT_S,
        "failureThreshold": failures_max,
    }


def _sidecar_container(group: GroupResource, pod: Pod, settings: ManifestSettings) -> JsonObject:
    """The sidecar's container. Its own probes only check its port, because its responses are about the main
    process. It holds no data, so it is restarted soon when it hangs."""
    assert pod.sidecar is not None
    resources = pod_fields(group, pod.component).pod.sidecar_resources
    listens = {"tcpSocket": {"port": ADMIN_PORT}}
    mounts: list[dict[str, Any]] = [
        {"name": "config", "mountPath": CONFIG_DIRECTORY, "readOnly": True},
        {"name": "run", "mountPath": RUN_DIRECTORY},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if _secrets(group):
        mounts.append({"name": "admin-secrets", "mountPath": SECRETS_DIRECTORY, "readOnly": True})
    return {
        **_container("admin", pod.sidecar.args, pod, group, settings),
        "ports": [{"name": _admin_port_name(group), "containerPort": pod.sidecar.port.number}],
        "resources": {"requests": dict(SIDECAR_REQUESTS)} if resources is None else _resources(resources),
        "volumeMounts": mounts,
        "startupProbe": _probe(listens, START_PERIOD_S, SIDECAR_START_PROBES_MAX),
        "livenessProbe": {
            **_probe(listens, LIVE_PERIOD_S, LIVE_PROBES_MAX),
            "terminationGracePeriodSeconds": SIDECAR_GRACE_S,
        },
    }


def _admin_port_name(group: GroupResource) -> str:
    """The name of the sidecar's port, by which Prometheus knows whether it serves TLS."""
    return "admin-tls" if group.spec.admin.tls_secret else "admin"


def _volumes(group: GroupResource, pod: Pod, config_map: str) -> list[JsonObject]:
    volumes: list[JsonObject] = [
        {"name": "config", "configMap": {"name": config_map}},
        {"name": "run", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    sources = [
        {"secret": {"name": name, "items": [{"key": file, "path": file} for file in keys.values()]}}
        for name, keys in _secrets(group)
    ]
    if sources and pod.sidecar is not None:
        projected = {"defaultMode": 0o440, "sources": sources}
        volumes.append({"name": "admin-secrets", "projected": projected})
    auth = auth_secret(group)
    if auth is not None and pod.component is Component.BROKER:
        source = {"secret": {"name": auth, "items": [{"key": AUTH_FILE, "path": AUTH_FILE}]}}
        volumes.append({"name": "auth", "projected": {"defaultMode": 0o440, "sources": [source]}})
    if group.spec.client_tls_secret is not None:
        items = [{"key": file, "path": file} for file in CLIENT_TLS_FILES.values()]
        source = {"secret": {"name": group.spec.client_tls_secret, "items": items}}
        volumes.append({"name": "client-tls", "projected": {"defaultMode": 0o440, "sources": [source]}})
    members = member_secret(group)
    if members is not None:
        source = {"secret": {"name": members, "items": [{"key": MEMBERS_FILE, "path": MEMBERS_FILE}]}}
        volumes.append({"name": "members", "projected": {"defaultMode": 0o440, "sources": [source]}})
    return [*volumes, *(one.source() for one in pod_fields(group, pod.component).pod.volumes)]


def _with_affinity(own: JsonObject, more: JsonObject) -> JsonObject:
    """The operator's affinity with the user's; of `podAntiAffinity` the terms of both."""
    made = {**own, **more}
    if "podAntiAffinity" in own and "podAntiAffinity" in more:
        ours, theirs = own["podAntiAffinity"], more["podAntiAffinity"]
        made["podAntiAffinity"] = {
            key: [*ours.get(key, ()), *theirs.get(key, ())] for key in {**ours, **theirs}
        }
    return made


def _scheduling(group: GroupResource, component: Component) -> JsonObject:
    """Scheduling rules. They keep pods of one component of one group apart; pods of other groups do not
    count."""
    spec, same = pod_fields(group, component), {"matchLabels": component_selector(group, component)}
    scheduling: JsonObject = {}
    term = {"labelSelector": same, "topologyKey": "kubernetes.io/hostname"}
    if spec.host_spread is Spread.REQUIRED:
        rule: JsonObject = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        scheduling["affinity"] = {"podAntiAffinity": rule}
    elif spec.host_spread is Spread.PREFERRED:
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
        scheduling["affinity"] = {"podAntiAffinity": rule}
    affinity = _with_affinity(scheduling.get("affinity", {}), spec.pod.affinity)
    if affinity:
        scheduling["affinity"] = affinity
    if spec.zone_spread is not Spread.NONE:
        required = spec.zone_spread is Spread.REQUIRED
        scheduling["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule" if required else "ScheduleAnyway",
                "labelSelector": same,
            }
        ]
    more = [
        {**one.model_dump(by_alias=True), "labelSelector": same}
        for one in spec.pod.topology_spread_constraints
    ]
    if more:
        scheduling["topologySpreadConstraints"] = [
            *scheduling.get("topologySpreadConstraints", ()),
            *more,
        ]
    if spec.node_selector:
        scheduling["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        scheduling["tolerations"] = [
            one.model_dump(by_alias=True, exclude_none=True) for one in spec.tolerations
        ]
    return scheduling
