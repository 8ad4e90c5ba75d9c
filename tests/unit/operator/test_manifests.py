"""Tests the rendering of Kubernetes objects. A change is reviewed by its effect on the golden files under
`golden/`; `EPOCHMQ_UPDATE_GOLDEN=1` rewrites them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_controller.controller import config as controller_config
from epochmq_operator.crd import to_yaml
from epochmq_operator.manifests import (
    OBJECT_KINDS,
    JsonObject,
    ManifestSettings,
    admin_address,
    possible_objects,
    render_kubernetes_pods,
    selector,
)
from epochmq_operator.manifests.kept_templates import mounted_config_maps, template_inputs
from epochmq_operator.pod_rendering import BROKER_HA_PORT
from epochmq_operator.pods import Component
from epochmq_operator.quorum_steps import Founders
from epochmq_operator.resources import (
    NAME_LENGTH_MAX,
    REPLICAS_MAX,
    ControllerGroup,
    GroupResource,
    load_resources,
)
from epochmq_protocol import properties
from tests.unit.operator.rendered_groups import (
    EVERYTHING,
    SETTINGS,
    broker_group,
    controller_group,
    made,
    of_kind,
)

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"


def stateful_set(group: GroupResource, settings: ManifestSettings = SETTINGS) -> JsonObject:
    return of_kind("StatefulSet", made(group, settings))[-1]["spec"]  # type: ignore[no-any-return]


def pod_spec(group: GroupResource) -> JsonObject:
    return stateful_set(group)["template"]["spec"]  # type: ignore[no-any-return]


APART = controller_group(replicas=1, nameserver={"embedded": False}, hostSpread="None", zoneSpread="None")


@pytest.mark.parametrize(
    ("name", "group"),
    [
        (
            "kubernetes-orders",
            load_resources([("f", (EXAMPLES / "orders.yaml").read_text())]).broker_groups[0],
        ),
        (
            "kubernetes-dledger",
            load_resources([("f", (EXAMPLES / "dledger.yaml").read_text())]).broker_groups[0],
        ),
        ("kubernetes-controllers", controller_group("orders")),
        ("kubernetes-everything", EVERYTHING),
        ("kubernetes-apart", APART),
    ],
)
def test_rendered_objects_equal_the_golden_file(name: str, group: GroupResource) -> None:
    found = to_yaml(made(group))
    path = HERE / "golden" / f"{name}.yaml"
    if os.environ.get("EPOCHMQ_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("text", ["12e3", "7e0123456789", "-1E+5", "12", "1.5e3", "0_1"])
def test_texts_that_look_like_numbers_are_quoted(text: str) -> None:
    """A digest of hexadecimal digits may look like one."""
    assert to_yaml([{"digest": text}]) == f"digest: '{text}'\n"


# pods


def configuration(
    group: GroupResource, pod: str, controllers: ControllerGroup | None = None
) -> Mapping[str, str]:
    (rendered,) = (one for one in render_kubernetes_pods(group, controllers, SETTINGS) if one.name == pod)
    return properties.parse(rendered.config_files[0].text)


def test_a_broker_advertises_its_dns_name_and_listens_on_all_addresses() -> None:
    group = broker_group()
    read = configuration(group, "orders-broker-1", group.default_controllers())
    assert read["brokerIP1"] == "orders-broker-1.orders-brokers.shop.svc"
    assert read["bindAddress"] == "0.0.0.0"
    controllers = [f"orders-controller-{n}.orders-controllers.shop.svc" for n in range(3)]
    assert read["controllerAddr"] == ";".join(f"{host}:9878" for host in controllers)
    assert read["namesrvAddr"] == ";".join(f"{host}:9876" for host in controllers)
    assert read["adminSocketPath"] == "/run/epochmq/admin.sock"


def test_clients_inside_the_cluster_get_pod_addresses_and_others_get_names() -> None:
    for outside in (False, True):
        main, sidecar = pod_spec(broker_group(externalServices=outside))["containers"]
        sources = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in main["env"]}
        assert ("clientIP=$(POD_IP)" in main["args"]) is not outside
        assert sources.get("POD_IP") == (None if outside else "status.podIP")
        assert "POD_IP" not in str(sidecar)
        read = configuration(
            broker_group(externalServices=outside), "orders-broker-1", broker_group().default_controllers()
        )
        assert "clientIP" not in read


@pytest.mark.parametrize("embedded", [True, False])
def test_a_controller_listens_without_resolving_its_own_name(embedded: bool) -> None:
    read = configuration(controller_group(nameserver={"embedded": embedded}), "quorum-controller-0")
    loaded = controller_config.load(
        "".join(f"{key}={value}\n" for key, value in read.items()), without=embedded * ("bindAddress",)
    )
    assert loaded.config.bind_address == "0.0.0.0"
    assert loaded.config.listen_port == 9878


def test_a_master_and_its_slaves_use_the_nameservers_of_the_controllers_only() -> None:
    group = broker_group(mode="MasterSlave", replicas=2)
    controllers = group.default_controllers()
    for number in range(2):
        read = configuration(group, f"orders-broker-{number}", controllers)
        assert (read["brokerId"], read["totalReplicas"]) == (str(number), "2")
        assert read["enableSlaveActingMaster"] == "true"
        assert "controllerAddr" not in read
        assert read["namesrvAddr"].startswith("orders-controller-0.orders-controllers.shop.svc:9876;")


def test_dledger_peers_find_each_other_by_stable_names() -> None:
    group = broker_group(mode="DLedger", replicas=3)
    controllers = group.default_controllers()
    read = configuration(group, "orders-broker-1", controllers)
    assert read["dLegerPeers"].split(";") == [
        f"n{number}-orders-broker-{number}.orders-brokers.shop.svc:40911" for number in range(3)
    ]
    assert read["dLegerSelfId"] == "n1"
    assert "controllerAddr" not in read
    (policy,) = of_kind("NetworkPolicy", made(group))
    (rule,) = (one for one in policy["spec"]["ingress"] if one["ports"][0]["port"] == 40911)
    assert rule["from"][0]["podSelector"]["matchLabels"], "only the group's own pods"


def test_a_single_replica_uses_controllers_so_that_it_can_scale_up() -> None:
    one, three = broker_group(replicas=1), broker_group(replicas=3)
    controllers = one.default_controllers()
    assert configuration(one, "orders-broker-0", controllers)["enableControllerMode"] == "true"
    changed = {
        key
        for key, value in configuration(three, "orders-broker-0", controllers).items()
        if configuration(one, "orders-broker-0", controllers).get(key) != value
    }
    assert changed == {"minInSyncReplicas"}


def test_more_replicas_change_neither_the_template_nor_the_files_of_existing_pods() -> None:
    three, five = stateful_set(broker_group(replicas=3)), stateful_set(broker_group(replicas=5))
    assert five["replicas"] == 5
    assert {**five, "replicas": 3} == three
    (before,), (after,) = (of_kind("ConfigMap", made(broker_group(replicas=n))) for n in (3, 5))
    assert before == after


def test_each_pod_finds_its_own_files_by_its_name() -> None:
    for group in (broker_group(), controller_group(), EVERYTHING, APART):
        objects = made(group)
        data = {one["metadata"]["name"]: one["data"] for one in of_kind("ConfigMap", objects)}
        for one in of_kind("StatefulSet", objects):
            name, spec = one["metadata"]["name"], one["spec"]
            (config_map,) = mounted_config_maps(spec["template"]["spec"])
            for container in spec["template"]["spec"]["containers"]:
                path = container["args"][container["args"].index("--config") + 1]
                for ordinal in range(spec["replicas"]):
                    file = path.replace("$(POD_NAME)", f"{name}-{ordinal}").removeprefix("/etc/epochmq/")
                    assert file in data[config_map]


def test_a_changed_configuration_has_a_name_of_its_own_and_changes_nothing_else() -> None:
    plain, other = made(broker_group()), made(broker_group(config={"maxMessageSize": 7}))
    (before,), (after,) = (of_kind("ConfigMap", objects) for objects in (plain, other))
    assert before["immutable"] is after["immutable"] is True
    assert before["metadata"]["name"] != after["metadata"]["name"]
    kinds = [one["kind"] for one, new in zip(plain, other, strict=True) if one != new]
    assert kinds == ["ConfigMap", "StatefulSet"]
    digests = [one["metadata"]["name"].rpartition("-")[2] for one in (before, after)]
    templates = [yaml.safe_dump(of_kind("StatefulSet", one)[0]["spec"]) for one in (plain, other)]
    assert templates[0].replace(digests[0], digests[1]) == templates[1]


def test_templates_follow_from_inputs_that_a_later_release_computes_alike() -> None:
    """Fields with default values are not among the inputs: a later release may have more of them."""
    plain = template_inputs(broker_group(), None, "broker:1")
    assert plain == {"image": "broker:1", "copies": 2}
    for spec in (
        {"replicas": 5},
        {"paused": True},
        {"storage": {"size": "1Ti"}},
        {"hostSpread": "Preferred"},
    ):
        assert template_inputs(broker_group(**spec), None, "broker:1") == plain
    for spec in ({"replicas": 2}, {"minInSyncReplicas": 3}, {"podLabels": {"a": "b"}}, {"config": {"a": 1}}):
        assert template_inputs(broker_group(**spec), None, "broker:1") != plain
    assert template_inputs(broker_group(), None, "broker:2") != plain
    assert template_inputs(broker_group(), controller_group(), "broker:1") != template_inputs(
        broker_group(), controller_group(replicas=1), "broker:1"
    )
    quorum = template_inputs(controller_group(), None, "controller:1", Founders(3))
    assert quorum == {"image": "controller:1", "replicas": 3}
    for founders in (Founders(0), Founders(3, complete=False)):
        assert template_inputs(controller_group(), None, "controller:1", founders) != quorum


def test_the_pods_pass_the_restricted_pod_security_standard() -> None:
    for group in (broker_group(), controller_group(), EVERYTHING, APART):
        for one in of_kind("StatefulSet", made(group)):
            spec = one["spec"]["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
            assert {next(iter(volume.keys() - {"name"})) for volume in spec["volumes"]} <= {
                "configMap",
                "emptyDir",
                "projected",
            }
            assert spec["automountServiceAccountToken"] is False
            for container in spec["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
                assert "hostPort" not in str(container)


def test_a_broker_switches_over_before_it_stops_and_its_readiness_is_the_sidecars_response() -> None:
    main, sidecar = pod_spec(broker_group())["containers"]
    call = ["epochmq", "admin-call", "--socket", "/run/epochmq/admin.sock", "--timeout", "60"]
    assert main["lifecycle"]["preStop"]["exec"]["command"] == [*call, "handover", "lingerMs=35000"]
    assert pod_spec(broker_group())["terminationGracePeriodSeconds"] == 120
    assert main["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 9880, "scheme": "HTTP"}
    assert sidecar["args"] == ["admin", "--config", "/etc/epochmq/$(POD_NAME).admin.conf"]


@pytest.mark.parametrize(
    ("group", "ports"),
    [(broker_group(), [10911]), (controller_group(), [9878]), (APART, [9876, 9878])],
    ids=["brokers", "controllers", "controllers beside nameservers"],
)
def test_a_failing_sidecar_restarts_no_main_process(group: GroupResource, ports: list[int]) -> None:
    """The kubelet restarts a container whose startup or liveness probe fails."""
    found = []
    for one in of_kind("StatefulSet", made(group)):
        main, sidecar = one["spec"]["template"]["spec"]["containers"]
        assert main["startupProbe"]["tcpSocket"] == main["livenessProbe"]["tcpSocket"]
        assert "httpGet" not in main["startupProbe"] | main["livenessProbe"]
        found.append(main["livenessProbe"]["tcpSocket"]["port"])
        assert found[-1] in [port["containerPort"] for port in main["ports"]]
        assert found[-1] not in [port["containerPort"] for port in sidecar["ports"]]
    assert sorted(found) == ports


def test_a_recovery_takes_as_long_as_it_needs() -> None:
    main, _ = pod_spec(broker_group())["containers"]
    probe = main["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] > 10 * 365 * 86400


def test_a_controller_transfers_its_leadership_before_it_stops() -> None:
    main, _ = pod_spec(controller_group())["containers"]
    command = main["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["epochmq", "admin-call"]
    assert command[-3:] == ["--timeout", "10", "handover"]
    assert pod_spec(controller_group())["terminationGracePeriodSeconds"] > 10


def test_admin_secrets_make_the_sidecar_require_a_token_or_a_certificate() -> None:
    (pod, *_) = render_kubernetes_pods(EVERYTHING, EVERYTHING.default_controllers(), SETTINGS)
    assert pod.sidecar is not None
    read = properties.parse(pod.sidecar.config_file.text)
    assert read["adminTokenFile"] == "/etc/epochmq-admin/token"
    main, sidecar = pod_spec(EVERYTHING)["containers"]
    assert main["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    mounted = [container["name"] for container in (main, sidecar) if "admin-secrets" in str(container)]
    assert mounted == ["admin"]
    plain = render_kubernetes_pods(broker_group(), EVERYTHING.default_controllers(), SETTINGS)[0].sidecar
    assert plain is not None
    assert "adminToken" not in plain.config_file.text
    assert admin_address(pod) == "orders-broker-0.orders-brokers.shop.svc:9880"


# names


def names(objects: tuple[JsonObject, ...]) -> list[tuple[str, str, str]]:
    return [(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in objects]


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)
TRICKY = st.sampled_from(["a", "a-broker", "a-brokers", "a-broker-0", "a-controller", "a-nameserver", "a-0"])
GROUPS = st.builds(
    lambda broker, name, count, embedded: (
        broker_group(name, replicas=count, externalServices=embedded)
        if broker
        else controller_group(name, nameserver={"embedded": embedded})
    ),
    st.booleans(),
    NAMES | TRICKY,
    st.integers(1, REPLICAS_MAX),
    st.booleans(),
)


@settings(deadline=None)
@given(GROUPS)
def test_names_are_valid_in_kubernetes(group: GroupResource) -> None:
    objects = made(group)
    assert max(len(one["metadata"]["name"]) for one in objects) <= 63
    for one in of_kind("StatefulSet", objects):
        last = f"{one['metadata']['name']}-{one['spec']['replicas'] - 1}"
        claims = [claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]]
        assert max(len(f"{claim}-{last}") for claim in claims) <= 63
        assert len(f"{one['metadata']['name']}-0123456789") <= 63  # the label of a pod's revision
    assert len(set(names(objects))) == len(objects)


@settings(deadline=None)
@given(GROUPS, GROUPS)
def test_two_groups_share_no_name_and_no_pod(one: GroupResource, other: GroupResource) -> None:
    if (one.kind, one.name) == (other.kind, other.name):
        return
    assert not set(names(made(one))) & set(names(made(other)))
    assert not possible_objects(one) & possible_objects(other)
    assert not {str(chosen) for chosen in selectors(one)} & {str(chosen) for chosen in selectors(other)}


def selectors(group: GroupResource) -> Iterator[Mapping[str, str]]:
    for one in made(group):
        spec = one.get("spec", {})
        found = spec.get("podSelector") or spec.get("selector")
        if found is not None:
            yield found.get("matchLabels", found)


@settings(deadline=None)
@given(GROUPS)
def test_all_objects_are_found_by_name_and_by_label(group: GroupResource) -> None:
    for one in made(group):
        known = (one["kind"], one["metadata"]["name"]) in possible_objects(group)
        assert known is (one["kind"] != "ConfigMap")
        assert selector(group).items() <= one["metadata"]["labels"].items()
        assert one["metadata"]["namespace"] == group.metadata.namespace
        assert one["kind"] in {kind.kind for kind in OBJECT_KINDS}


def test_the_longest_object_name_matches_the_limit_of_the_resource() -> None:
    assert len(made(broker_group("a" * NAME_LENGTH_MAX))) > 0


def test_groups_of_one_name_in_two_namespaces_use_their_own_addresses_only() -> None:
    text = yaml.safe_dump_all(made(broker_group(namespace="a")))
    assert ".b.svc" not in text
    assert text.replace("namespace: a", "namespace: b").replace(".a.svc", ".b.svc") != text


# network policies and services


def test_policies_restrict_the_admin_port_and_the_ha_port() -> None:
    (policy,) = of_kind("NetworkPolicy", made(broker_group()))
    rules = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["spec"]["ingress"]}
    assert rules[10911] is None
    assert rules[BROKER_HA_PORT] == [{"podSelector": policy["spec"]["podSelector"]}]
    spaces = [one["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for one in rules[9880]]
    assert spaces == ["epochmq-system", "watch"]
    assert rules[9880][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "epochmq-operator"}}


def test_network_policies_can_be_turned_off() -> None:
    open_to_all = ManifestSettings("b", "c", "epochmq-system", network_policies=False)
    assert not of_kind("NetworkPolicy", made(broker_group(), open_to_all))


@pytest.mark.parametrize(("count", "budgets"), [(1, 0), (3, 1), (5, 1)])
def test_controllers_have_a_disruption_budget_where_they_tolerate_a_loss(count: int, budgets: int) -> None:
    assert len(of_kind("PodDisruptionBudget", made(controller_group(replicas=count)))) == budgets


def test_the_nameserver_service_has_the_same_name_for_both_kinds_of_nameservers() -> None:
    for embedded, component in ((True, Component.CONTROLLER), (False, Component.NAMESERVER)):
        services = of_kind("Service", made(controller_group(nameserver={"embedded": embedded})))
        (found,) = (one for one in services if one["metadata"]["name"] == "quorum-nameserver")
        assert found["spec"]["selector"]["epochmq.io/component"] == component
        assert [port["port"] for port in found["spec"]["ports"]] == [9876]


@pytest.mark.parametrize(
    "group",
    [
        broker_group(clientTlsSecret="orders-tls"),
        controller_group(clientTlsSecret="orders-tls"),
        controller_group(nameserver={"embedded": False}, clientTlsSecret="orders-tls"),
    ],
    ids=["brokers", "controllers", "nameservers"],
)
def test_every_main_process_serves_tls_with_the_mounted_certificates(group: GroupResource) -> None:
    objects = made(group)
    for one in of_kind("StatefulSet", objects):
        spec = one["spec"]["template"]["spec"]
        mounted = [each["name"] for each in spec["containers"] if "/etc/epochmq-tls" in str(each)]
        assert mounted == [spec["containers"][0]["name"]]
        (volume,) = (each for each in spec["volumes"] if each["name"] == "client-tls")
        (source,) = volume["projected"]["sources"]
        assert source["secret"]["name"] == "orders-tls"
    texts = [text for one in of_kind("ConfigMap", objects) for name, text in one["data"].items()]
    configured = [text for text in texts if "listenPort=9880" not in text]
    assert configured
    for text in configured:
        assert "tlsServerCertPath=/etc/epochmq-tls/tls.crt" in text
        assert "tlsServerKeyPath=/etc/epochmq-tls/tls.key" in text
        assert "tlsServerTrustCertPath=/etc/epochmq-tls/ca.crt" in text


def test_only_brokers_mount_the_passwords_of_access_control_and_no_config_map_has_them() -> None:
    objects = made(broker_group(authSecret="orders-auth"))
    for one in of_kind("StatefulSet", objects):
        is_broker = one["metadata"]["name"].endswith("broker")
        containers = one["spec"]["template"]["spec"]["containers"]
        mounted = [each["name"] for each in containers if "/etc/epochmq-auth" in str(each)]
        assert mounted == (["broker"] if is_broker else [])
    (config,) = (one for one in of_kind("ConfigMap", objects) if "broker" in one["metadata"]["name"])
    assert "authSecretsPath=/etc/epochmq-auth/auth.properties" in str(config)
