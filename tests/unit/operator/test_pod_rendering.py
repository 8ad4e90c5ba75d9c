"""Tests the rendering of pods. A change is reviewed by its effect on the golden files under `golden/`;
`EPOCHMQ_UPDATE_GOLDEN=1` rewrites them."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from textwrap import dedent

import pytest

from epochmq_operator.pod_rendering import (
    pods_of,
    render_pods,
)
from epochmq_operator.pods import (
    WAITS_FOR,
    BrokerProbe,
    Component,
    Pod,
    PodPlacement,
)
from epochmq_operator.resources import BrokerGroup, ControllerGroup, GroupResource, load_resources
from epochmq_protocol import properties

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def group_of(text: str) -> BrokerGroup:
    (group,) = load_resources([("f", dedent(text))]).broker_groups
    return group


def controllers_of(text: str) -> ControllerGroup:
    (group,) = load_resources([("f", dedent(text))]).controller_groups
    return group


def places_for(*groups: GroupResource) -> dict[str, PodPlacement]:
    return {
        identity.name: PodPlacement(
            address=f"127.200.1.{number}",
            bind_address=f"127.200.1.{number}",
            config_directory=f"/run/{identity.name}",
            volumes={volume: f"/volumes/{identity.name}/{volume}" for volume in identity.volumes},
        )
        for number, identity in enumerate((one for group in groups for one in pods_of(group)), 1)
    }


def rendered(group: GroupResource, controllers: ControllerGroup | None = None) -> tuple[Pod, ...]:
    if controllers is None and isinstance(group, BrokerGroup):
        controllers = group.own_controllers
    return render_pods(
        group, places_for(group, *([controllers] if controllers is not None else [])), controllers
    )


FULL = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: eu-orders, namespace: shop}
spec:
  replicas: 1
  brokerName: Orders_EU
  cluster: Shop
  config:
    flushDiskType: SYNC_FLUSH
    deleteWhen: "04"
    maxMessageSize: 65536
    autoCreateTopicEnable: false
    messageDelayLevel: 1s 5s
"""


APART = """\
apiVersion: epochmq.io/v1alpha1
kind: ControllerGroup
metadata: {name: eu, namespace: shop}
spec:
  replicas: 1
  nameserver: {embedded: false}
  config:
    writeLeaseMs: 900
    enableElectUncleanMaster: true
"""


MASTER_SLAVE = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: pair}
spec:
  mode: MasterSlave
  replicas: 2
"""


DLEDGER = (EXAMPLES / "dledger.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("orders", (EXAMPLES / "orders.yaml").read_text()),
        ("full", FULL),
        ("controllers", (EXAMPLES / "controllers.yaml").read_text()),
        ("apart", APART),
        ("master-slave", MASTER_SLAVE),
        ("dledger", DLEDGER),
    ],
    ids=["orders", "full", "controllers", "apart", "master-slave", "dledger"],
)
def test_rendered_pods_equal_the_golden_file(name: str, text: str) -> None:
    (group,) = load_resources([(name, text)]).documents
    pods = [dataclasses.asdict(pod) for pod in rendered(group)]
    for file in (file for pod in pods for file in pod["config_files"]):
        file["text"] = file["text"].splitlines()
    found = json.dumps(pods, indent=2) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("EPOCHMQ_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def test_nameservers_start_before_their_brokers() -> None:
    pods = rendered(group_of(FULL))
    assert [pod.component for pod in pods] == [Component.NAMESERVER, Component.BROKER]
    assert pods[1].probe.nameservers == (pods[0].port("remoting"),)  # type: ignore[union-attr]


@pytest.mark.parametrize("replicas", [1, 3, 5])
@pytest.mark.parametrize("embedded", [True, False])
def test_each_controller_knows_all_peers_and_has_its_own_address_and_volume(
    replicas: int, embedded: bool
) -> None:
    text = APART.replace("replicas: 1", f"replicas: {replicas}").replace("false", str(embedded).lower())
    pods = rendered(controllers_of(text))
    controllers = [pod for pod in pods if pod.component is Component.CONTROLLER]
    read = [properties.parse(pod.config_files[0].text) for pod in controllers]
    peers = ";".join(f"n{pod.ordinal}-{pod.port('remoting')}" for pod in controllers)
    assert [file["controllerDLegerPeers"] for file in read] == [peers] * replicas
    assert [file["controllerDLegerSelfId"] for file in read] == [f"n{n}" for n in range(replicas)]
    assert len({file["controllerStorePath"] for file in read}) == replicas
    assert len(pods) == (replicas if embedded else 2 * replicas)
    verb = "nameserver" if embedded else "controller"
    assert {pod.args[0] for pod in controllers} == {verb}


def test_only_brokers_wait_for_other_pods() -> None:
    assert [component for component, others in WAITS_FOR.items() if others] == [Component.BROKER]


@pytest.mark.parametrize("embedded", [True, False])
def test_brokers_know_all_controllers_and_nameservers_of_their_group(embedded: bool) -> None:
    group = group_of(FULL.replace("replicas: 1", "replicas: 2\n  controllerGroup: eu"))
    text = APART.replace("replicas: 1", "replicas: 3").replace("false", str(embedded).lower())
    controllers = controllers_of(text)
    pods = rendered(group, controllers)
    assert [pod.name for pod in pods] == ["eu-orders-broker-0", "eu-orders-broker-1"]
    places = places_for(group, controllers)
    names = [f"eu-{'controller' if embedded else 'nameserver'}-{n}" for n in range(3)]
    nameservers = tuple(f"{places[name].address}:9876" for name in names)
    controllers = tuple(f"{places[f'eu-controller-{n}'].address}:9878" for n in range(3))
    for pod in pods:
        assert (pod.group, pod.depends_on) == ("eu-orders", "eu")
        assert pod.probe == BrokerProbe(pod.port("remoting"), "Shop", "Orders_EU", nameservers, controllers)
        read = properties.parse(pod.config_files[0].text)
        assert read["namesrvAddr"] == ";".join(nameservers)
        assert read["controllerAddr"] == ";".join(controllers)
        assert read["enableControllerMode"] == "true"
        assert read["allAckInSyncStateSet"] == "true"
        assert not {"brokerId", "brokerRole"} & read.keys()


def test_the_spec_overrides_the_defaults_of_replication() -> None:
    group = group_of(
        FULL.replace("replicas: 1", "replicas: 3").replace(
            "deleteWhen", "allAckInSyncStateSet: false\n    inSyncReplicas: 2\n    deleteWhen"
        )
    )
    text = rendered(group)[0].config_files[0].text
    assert text.count("allAckInSyncStateSet") == 1
    assert properties.parse(text)["allAckInSyncStateSet"] == "false"


def test_more_replicas_restart_no_existing_pod() -> None:
    three, four = (group_of(FULL.replace("replicas: 1", f"replicas: {n}")) for n in (3, 4))
    controllers = three.own_controllers
    assert controllers is not None
    places = places_for(four, controllers)
    assert render_pods(four, places, controllers)[:3] == render_pods(three, places, controllers)


def test_rendering_does_not_depend_on_the_order_of_keys() -> None:
    head = "apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\nmetadata: {name: a}\n"
    one = group_of(head + "spec: {replicas: 1, config: {a: 1, b: 2}}\n")
    other = group_of(head + "spec: {config: {b: 2, a: 1}, replicas: 1}\n")
    assert rendered(one) == rendered(other)


def test_a_configuration_file_has_the_values_of_the_spec() -> None:
    values: dict[str, str | int | float | bool] = {
        "a": "C:\\data\\",
        "b": " x = y # z ",
        "c": "two\nlines",
        "d": True,
        "e": 0.5,
        "f": "größe",
        "g": "",
    }
    group = group_of(FULL)
    group = group.model_copy(update={"spec": group.spec.model_copy(update={"config": values})})
    (config,) = rendered(group)[1].config_files
    read = properties.parse(config.text)
    assert {key: read[key] for key in values} == {
        key: "true" if value is True else str(value) for key, value in values.items()
    }
    assert read["storePathCommitLog"] == "/volumes/eu-orders-broker-0/store/commitlog"


def test_pod_names_are_valid_in_kubernetes() -> None:
    group = group_of(FULL.replace("eu-orders", "a" * 40))
    for pod in rendered(group):
        workload = pod.name.rpartition("-")[0]
        assert max(len(pod.name), len(f"{workload}-0123456789")) <= 63


def broker_configs(text: str, controllers: ControllerGroup | None = None) -> list[dict[str, str]]:
    """The configurations of the brokers of a group."""
    pods = rendered(group_of(text), controllers)
    return [properties.parse(pod.config_files[0].text) for pod in pods if pod.component is Component.BROKER]


def test_a_dledger_peer_knows_all_peers_and_neither_controllers_nor_slaves() -> None:
    pods = [pod for pod in rendered(group_of(DLEDGER)) if pod.component is Component.BROKER]
    configs = [properties.parse(pod.config_files[0].text) for pod in pods]
    (peers,) = {config["dLegerPeers"] for config in configs}
    assert peers.split(";") == [f"n{n}-{pod.port('dledger')}" for n, pod in enumerate(pods)]
    assert [config["dLegerSelfId"] for config in configs] == ["n0", "n1", "n2"]
    assert {config["dLegerGroup"] for config in configs} == {"ledger"}
    assert all(not config.keys() & {"controllerAddr", "brokerRole", "brokerId"} for config in configs)
    assert {port.name for port in pods[0].ports} == {"remoting", "vip", "dledger"}
    assert all(pod.restarts_in_turn for pod in pods)


def test_the_first_replica_is_the_master_for_good_in_the_mode_master_slave() -> None:
    configs = broker_configs(MASTER_SLAVE.replace("replicas: 2", "replicas: 3"))
    assert [(one["brokerId"], one["brokerRole"]) for one in configs] == [
        ("0", "ASYNC_MASTER"),
        ("1", "SLAVE"),
        ("2", "SLAVE"),
    ]
    for config in configs:
        assert config["enableSlaveActingMaster"] == "true"
        assert config["enableRemoteEscape"] == "true"
        assert config["slaveReadEnable"] == "true"
        assert config["totalReplicas"] == "3"
        assert config["skipPreOnline"] == "false", "a returning master always goes through pre-online"
        assert not {"enableControllerMode", "controllerAddr"} & config.keys()


def test_without_an_acting_master_nothing_escapes() -> None:
    configs = broker_configs(MASTER_SLAVE + "  actingMaster: false\n")
    for config in configs:
        assert config["enableSlaveActingMaster"] == "false"
        assert "enableRemoteEscape" not in config


@pytest.mark.parametrize(
    ("spec", "role", "copies"),
    [
        ("", "ASYNC_MASTER", None),
        ("  minInSyncReplicas: 2\n", "SYNC_MASTER", "2"),
        ("  config: {inSyncReplicas: 2}\n", "SYNC_MASTER", "2"),
    ],
)
def test_the_master_waits_for_slaves_only_if_several_replicas_must_have_a_message(
    spec: str, role: str, copies: str | None
) -> None:
    master = broker_configs(MASTER_SLAVE + spec)[0]
    assert (master["brokerRole"], master.get("inSyncReplicas")) == (role, copies)


def test_groups_of_both_modes_share_the_nameservers_of_a_controller_group() -> None:
    controllers = controllers_of(APART)
    group = group_of(MASTER_SLAVE + "  controllerGroup: eu\n")
    pods = rendered(group, controllers)
    assert [pod.name for pod in pods] == ["pair-broker-0", "pair-broker-1"]
    nameserver = f"{places_for(group, controllers)['eu-nameserver-0'].address}:9876"
    for pod in pods:
        assert isinstance(pod.probe, BrokerProbe)
        assert (pod.depends_on, pod.probe.nameservers, pod.probe.controllers) == ("eu", (nameserver,), ())
        assert pod.restarts_in_turn
    for pod in rendered(controllers):
        if pod.component is Component.NAMESERVER:
            config = properties.parse(pod.config_files[0].text)
            assert (config["supportActingMaster"], config["notifyMinBrokerIdChanged"]) == ("true", "true")


def test_the_nameservers_support_of_acting_masters_can_be_configured() -> None:
    text = APART.replace("embedded: false", "embedded: true") + "    supportActingMaster: false\n"
    (pod,) = rendered(controllers_of(text))
    assert pod.config_files[0].text.count("supportActingMaster") == 1
    assert "supportActingMaster=false\n" in pod.config_files[0].text
