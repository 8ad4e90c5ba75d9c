"""Tests which documents the loader accepts, and how it reports faults."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epochmq_operator.resources import (
    BrokerGroup,
    ControllerGroup,
    ResourceError,
    Resources,
    load_resources,
    show_value,
)

ROOT = Path(__file__).resolve().parents[3]
HEAD = "apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\nmetadata: {name: orders}\n"


def faults(text: str) -> list[str]:
    with pytest.raises(ResourceError) as caught:
        load_resources([("f.yaml", dedent(text))])
    lines = str(caught.value).split("\n")
    assert len(lines) == len(caught.value.faults)
    return lines


def only(text: str) -> BrokerGroup:
    (group,) = load_resources([("f.yaml", dedent(text))]).broker_groups
    return group


def test_three_lines_of_spec_are_enough() -> None:
    group = only(HEAD + "spec:\n  replicas: 1\n")
    assert (group.name, group.broker_name, group.spec.cluster) == ("orders", "orders", "DefaultCluster")
    assert group.metadata.namespace == "default"
    assert group.spec.config == {}


def test_the_example_loads() -> None:
    path = ROOT / "examples" / "orders.yaml"
    (group,) = load_resources([(str(path), path.read_text())]).broker_groups
    assert (group.name, group.spec.replicas, group.controlled_by) == ("orders", 3, "orders")


def test_every_example_loads() -> None:
    texts = {str(path): path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))}
    own = {name: text for name, text in texts.items() if "kind: SparkApplication" not in text}
    assert len(own) >= 3
    for example in own.items():
        resources = load_resources([example])
        for group in resources.broker_groups:
            resources.controllers_of(group)


def test_a_group_of_several_replicas_has_its_own_controllers_unless_it_names_some() -> None:
    alone, several, named = (
        load_resources([("f", HEAD + f"spec: {spec}\n")])
        for spec in ("{replicas: 1}", "{replicas: 2}", "{replicas: 1, controllerGroup: quorum}")
    )
    assert [resources.broker_groups[0].controlled_by for resources in (alone, several, named)] == [
        None,
        "orders",
        "quorum",
    ]
    assert alone.groups == alone.broker_groups
    assert alone.controllers_of(alone.broker_groups[0]) is None
    (own,) = several.all_controller_groups
    assert (own.name, own.spec.replicas, own.spec.nameserver.embedded) == ("orders", 3, True)
    assert several.groups == (own, *several.broker_groups)
    assert several.documents == several.broker_groups
    assert several.controllers_of(several.broker_groups[0]) == own
    with pytest.raises(KeyError):
        named.controllers_of(named.broker_groups[0])
    (quorum,) = load_resources([("f", CONTROLLERS.replace("orders", "quorum"))]).controller_groups
    both = Resources(named.broker_groups, (quorum,))
    assert both.controllers_of(both.broker_groups[0]) == quorum


def test_a_group_in_the_mode_master_slave_has_no_controllers_and_may_use_their_nameservers() -> None:
    alone, named = (
        load_resources([("f", HEAD + f"spec: {{mode: MasterSlave, replicas: 2{more}}}\n")])
        for more in ("", ", controllerGroup: quorum")
    )
    assert alone.all_controller_groups == ()
    assert [
        (group.controlled_by, group.nameservers_of, group.has_acting_master)
        for group in (*alone.broker_groups, *named.broker_groups)
    ] == [(None, None, True), (None, "quorum", True)]
    (quorum,) = load_resources([("f", CONTROLLERS.replace("orders", "quorum"))]).controller_groups
    assert Resources(named.broker_groups, (quorum,)).controllers_of(named.broker_groups[0]) == quorum
    group = only(HEAD + "spec: {mode: MasterSlave, replicas: 2, actingMaster: false}\n")
    assert not group.has_acting_master


def test_a_group_in_the_mode_dledger_elects_by_itself_and_may_use_nameservers_of_others() -> None:
    alone, named = (
        load_resources([("f", HEAD + f"spec: {{mode: DLedger, replicas: {count}{more}}}\n")])
        for count, more in ((5, ""), (3, ", controllerGroup: quorum"))
    )
    assert alone.all_controller_groups == ()
    assert [
        (group.controlled_by, group.nameservers_of, group.has_acting_master, group.min_in_sync)
        for group in (*alone.broker_groups, *named.broker_groups)
    ] == [(None, None, False, 3), (None, "quorum", False, 2)]


def test_a_file_may_hold_many_documents_in_order() -> None:
    one = "apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\nmetadata: {name: %s}\nspec: {replicas: 1}\n"
    loaded = load_resources([("a", "---\n" + one % "b" + "---\n---\n" + one % "a"), ("b", one % "c")])
    assert [group.name for group in loaded.broker_groups] == ["b", "a", "c"]


def test_fields_that_the_api_server_adds_are_ignored() -> None:
    group = only(
        """\
        apiVersion: epochmq.io/v1alpha1
        kind: BrokerGroup
        metadata:
          name: orders
          namespace: shop
          uid: 1e04
          generation: 3
          annotations: {note: mine}
        spec: {replicas: 1, brokerName: Orders_1, cluster: shop}
        status: {phase: Ready, replicas: [1]}
        """
    )
    assert (group.broker_name, group.metadata.namespace) == ("Orders_1", "shop")


def test_a_loaded_group_dumps_to_what_loads_again() -> None:
    group = only(HEAD + "spec: {replicas: 1, config: {a: 1, b: true, c: x, d: 0.5}}\n")
    assert BrokerGroup.model_validate(group.model_dump(by_alias=True)) == group


RESTORE = "replicas: 1\n  restoreFrom: {url: "
NOT_A_TIME = 'expected a time in UTC in quotes, such as "2030-01-31T14:00:00Z"'
WHOLE = "expected a whole number from 1 to 9"
SCALAR = "expected a string, a number, or true or false"
PODS = (
    "image, imagePullPolicy, resources, hostSpread, zoneSpread, nodeSelector, tolerations, podLabels, "
    "podAnnotations, pod"
)
COMMON = (
    f"{PODS}, storage, admin, clientTlsSecret, external, memberAuthentication, updatePolicy, paused, "
    "deletionGuard"
)
# (the body of spec, each fault as "line: path and problem")
SPEC_FAULTS = [
    (
        "replicas: 1\n  restoreFrom: {}",
        "6: spec.restoreFrom.url: missing, expected s3://BUCKET/PREFIX?OPTIONS, "
        "gs://…, abfs://… or file:///backups/…",
    ),
    (
        RESTORE + "s3://b/o, backup: newest}",
        '6: spec.restoreFrom.backup: "newest", expected the id of a backup, such as 20300131T140000Z-0a1b2c',
    ),
    (
        RESTORE + "s3://b/o, offset: -1}",
        "6: spec.restoreFrom.offset: -1, expected a whole number of at least 0",
    ),
    (
        RESTORE + "s3://b/o, time: '2030-01-31T14:00'}",
        f'6: spec.restoreFrom.time: "2030-01-31T14:00", {NOT_A_TIME}',
    ),
    (
        RESTORE + "s3://b/o, time: '2030-02-31T14:00Z'}",
        f'6: spec.restoreFrom.time: "2030-02-31T14:00Z", {NOT_A_TIME}',
    ),
    (
        RESTORE + "s3://b/o, offset: 1, time: '2030-01-31T14:00Z'}",
        "6: spec.restoreFrom.offset: expected no such "
        "field together with spec.restoreFrom.time: remove one of them",
    ),
    (
        RESTORE + "file:///backups/o}",
        "6: spec.restoreFrom.claimName: a url that begins with file:///backups/ and "
        "claimName belong together: give both, or another url",
    ),
    (
        RESTORE + "s3://b/o, claimName: nfs}",
        "6: spec.restoreFrom.claimName: a url that begins with "
        "file:///backups/ and claimName belong together: give both, or another url",
    ),
    (
        RESTORE + "file:///etc}",
        "6: spec.restoreFrom.url: give a url that begins with file:///backups/, where the "
        "volume of claimName is mounted",
    ),
    (
        RESTORE + "'s3://key:secret@b/o'}",
        "6: spec.restoreFrom.url: remove the credentials from url, put them into a Secret, and name it in "
        "credentialsSecret: everyone who may read the resource reads its url",
    ),
    (
        "replicas: 1\n  mode: DLedger\n  restoreFrom: {url: s3://b/o}",
        "7: spec.restoreFrom: expected no such field "
        "in the mode DLedger, in which no backups are taken: remove it",
    ),
    ('replicas: "1"', f'5: spec.replicas: "1", {WHOLE}'),
    ("replicas: 0", f"5: spec.replicas: 0, {WHOLE}"),
    ("replicas: true", f"5: spec.replicas: true, {WHOLE}"),
    ("replicas: 10", f"5: spec.replicas: 10, {WHOLE}"),
    (
        "replica: 1",
        f"4: spec.replicas: missing, {WHOLE}",
        "5: spec.replica: unknown field, expected replicas (is it a misspelling?)",
    ),
    (
        "replicas: 1\n  volumes: {}",
        "6: spec.volumes: unknown field, expected one of replicas, mode, actingMaster, brokerName, "
        "cluster, controllerGroup, controllers, minInSyncReplicas, config, hibernate, externalServices, "
        "restoreFrom, authSecret, " + COMMON,
    ),
    (
        "replicas: 1\n  controllers: {replicas: 4}",
        "6: spec.controllers.replicas: 4, expected 1, 3 or 5: an even number of controllers tolerates no "
        "more failures than one fewer",
    ),
    (
        "replicas: 1\n  controllers: {volumes: a}",
        f"6: spec.controllers.volumes: unknown field, expected one of replicas, storage, {PODS}",
    ),
    (
        "replicas: 1\n  external: {type: HostPort, nodeport: 1}",
        "6: spec.external.nodeport: unknown field, expected nodePort (is it a misspelling?)",
    ),
    (
        "replicas: 1\n  controllerGroup: quorum\n  memberAuthentication: Require",
        "7: spec.memberAuthentication: expected no such field together with spec.controllerGroup: remove it, "
        "and set it on that ControllerGroup",
    ),
    (
        "replicas: 1\n  memberAuthentication: Off",
        "6: spec.memberAuthentication: false, expected Require, Accept or Disabled",
    ),
    (
        "replicas: 1\n  controllerGroup: quorum\n  controllers: {}",
        "7: spec.controllers: expected no such field together with spec.controllerGroup, which has a number "
        "of controllers of its own: remove it, and scale that ControllerGroup",
    ),
    (
        "replicas: 1\n  external: {type: LoadBalancer}",
        "6: spec.external.host: missing, expected a value with the type LoadBalancer",
    ),
    (
        "replicas: 1\n  external: {type: NodePort, nodePort: 80}",
        "6: spec.external.nodePort: 80, expected a whole number from 1024 to 65500",
    ),
    (
        "replicas: 1\n  externalServices: true\n  external: {type: HostPort}",
        "7: spec.external: expected no such field together with spec.externalServices: remove one of them",
    ),
    (
        "replicas: 1\n  minInSyncReplicas: 2",
        "6: spec.minInSyncReplicas: 2, expected at most spec.replicas, which is 1",
    ),
    (
        "replicas: 2\n  mode: Slave\n  actingMaster: maybe",
        '6: spec.mode: "Slave", expected Controller, MasterSlave or DLedger',
        '7: spec.actingMaster: "maybe", expected true or false',
    ),
    (
        "replicas: 2\n  actingMaster: true",
        "6: spec.actingMaster: true, expected no such field in the mode Controller: controllers elect "
        "another master; remove it, or set spec.mode to MasterSlave in a new group",
    ),
    (
        "replicas: 3\n  mode: DLedger\n  actingMaster: true",
        "7: spec.actingMaster: true, expected no such field in the mode DLedger: the replicas elect another "
        "master; remove it, or set spec.mode to MasterSlave in a new group",
    ),
    (
        "replicas: 4\n  mode: DLedger",
        "5: spec.replicas: 4, expected 1, 3 or 5 in the mode DLedger: an even number tolerates no more "
        "failures than one fewer",
    ),
    (
        "replicas: 7\n  mode: DLedger",
        "5: spec.replicas: 7, expected 1, 3 or 5 in the mode DLedger: more replicas make elections and every "
        "message slower",
    ),
    (
        "replicas: 3\n  mode: DLedger\n  minInSyncReplicas: 2",
        "7: spec.minInSyncReplicas: 2, expected no such field in the mode DLedger: a message is acknowledged "
        "once a majority of the replicas has it; remove it",
    ),
    (
        "replicas: 3\n  mode: DLedger\n  hibernate: true",
        "7: spec.hibernate: true, expected false: a group in the mode DLedger cannot hibernate yet, because "
        "a replica alone is no majority",
    ),
    (
        "replicas: 3\n  mode: DLedger\n  config: {dLegerSelfId: n0}",
        '7: spec.config.dLegerSelfId: "n0", expected no such key: the operator sets it, from '
        "the pod's place in the group",
    ),
    ("replicas: 1\n  image: a b", '6: spec.image: "a b", expected the name of an image'),
    (
        "replicas: 1\n  storage: {size: 10, retention: Keep, class: a}",
        "6: spec.storage.size: 10, expected a quantity with a unit, such as 10Gi",
        '6: spec.storage.retention: "Keep", expected Retain or Delete',
        "6: spec.storage.class: unknown field, expected one of size, storageClassName, retention",
    ),
    (
        "replicas: 1\n  resources: {limits: {cpu: a lot, memory: [1]}}",
        '6: spec.resources.limits.cpu: "a lot", expected a quantity, such as 2, 500m or 1Gi',
        "6: spec.resources.limits.memory: a list, expected a quantity, such as 2, 500m or 1Gi",
    ),
    ("replicas: 1\n  zoneSpread: yes", "6: spec.zoneSpread: true, expected None, Preferred or Required"),
    (
        "replicas: 1\n  podLabels: {epochmq.io/group: a}",
        '6: spec.podLabels.epochmq.io/group: "epochmq.io/group", expected no key of epochmq.io or '
        "kubernetes.io",
    ),
    *(
        (
            f"replicas: 1\n  controllerGroup: {value}",
            f"6: spec.controllerGroup: {value}, expected the name of a ControllerGroup",
        )
        for value in ('"A B"', "7")
    ),
    (
        "replicas: 1\n  brokerName: a b",
        "6: spec.brokerName: \"a b\", expected letters, digits, '-', '_', '|' and '%', "
        "at most 100 characters",
    ),
    (
        "replicas: 1\n  config: [a]",
        "6: spec.config: a list, expected a mapping of RocketMQ's broker keys to values",
    ),
    (
        "replicas: 1\n  config:\n    flushDiskType: [a]\n    maxMessageSize: null",
        f"7: spec.config.flushDiskType: a list, {SCALAR}",
        f"8: spec.config.maxMessageSize: null, {SCALAR}",
    ),
    (
        "replicas: 1\n  config:\n    1: x",
        "7: spec.config.1: the key is not a string, expected a string (quote it)",
    ),
    (
        "replicas: 1\n  config: {a b: 2}",
        "6: spec.config.a b: 2, expected a RocketMQ key: letters and digits, at most 100",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), [(spec, lines) for spec, *lines in SPEC_FAULTS])
def test_each_fault_names_line_document_field_value_and_expectation(spec: str, expected: list[str]) -> None:
    assert faults(f"{HEAD}spec:\n  {spec}\n") == [
        f"f.yaml:{line}: document 1 (BrokerGroup orders): {problem}"
        for line, _, problem in (text.partition(": ") for text in expected)
    ]


def test_a_duplicate_key_is_rejected() -> None:
    assert faults(HEAD + "spec:\n  replicas: 1\n  replicas: 2\n") == [
        "f.yaml:6: document 1: spec.replicas: given twice"
    ]


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("brokerId", "the replica's identity"),
        ("brokerIP1", "the pod's address"),
        ("clientIP", "the pod's address"),
        ("listenPort", "the pod's ports"),
        ("namesrvAddr", "the addresses of the group's nameservers"),
        ("brokerName", "spec.brokerName"),
        ("brokerClusterName", "spec.cluster"),
        ("storePathRootDir", "the pod's volumes"),
        ("storePathEpochFile", "the pod's volumes"),
        ("enableControllerMode", "how the group's replicas elect a master"),
    ],
)
def test_a_key_that_the_operator_owns_is_rejected_by_name(key: str, owner: str) -> None:
    assert faults(f"{HEAD}spec:\n  replicas: 1\n  config:\n    {key}: 7\n") == [
        f"f.yaml:7: document 1 (BrokerGroup orders): spec.config.{key}: 7, expected no such key: "
        f"the operator sets it, from {owner}"
    ]


OTHER_FAULTS = [
    ("", "1: no documents, expected at least one BrokerGroup or ControllerGroup"),
    ("# nothing\n---\n", "1: no documents, expected at least one BrokerGroup or ControllerGroup"),
    ("\n- 1\n", "2: document 1: a list, expected a resource: a mapping with apiVersion, kind, …"),
    ("kind: Pod\n", '1: document 1 (Pod): kind: "Pod", expected BrokerGroup or ControllerGroup'),
    ("kind: [1]\n", "1: document 1: kind: a list, expected BrokerGroup or ControllerGroup"),
    ("metadata: {}\n", "1: document 1: kind: missing, expected BrokerGroup or ControllerGroup"),
    (
        "a: [\n",
        "2: not YAML: while parsing a flow node expected the node content, but found '<stream end>'",
    ),
    ("a: *b\n", "1: not YAML: found undefined alias 'b'"),
    (
        "a: !!python/name:os.system\n",
        "1: not YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/name:os.system'",
    ),
    ("[" * 5000, "1: not YAML: nested too deeply"),
]


@pytest.mark.parametrize(("text", "expected"), OTHER_FAULTS)
def test_anything_else_than_a_resource_is_rejected_in_one_line(text: str, expected: str) -> None:
    assert faults(text) == [f"f.yaml:{expected}"]


def test_unsupported_kinds_are_rejected_with_a_reason() -> None:
    (line,) = faults("apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroupAudit\nmetadata: {name: c}\n")
    assert line == (
        "f.yaml:2: document 1 (BrokerGroupAudit c): kind: BrokerGroupAudit is not supported: it is for "
        "Kubernetes; audit directories with: epochmq audit DIR…; expected BrokerGroup or ControllerGroup"
    )


def test_another_api_version_is_rejected() -> None:
    (line,) = faults(HEAD.replace("v1alpha1", "v1") + "spec: {replicas: 1}\n")
    assert line.endswith('apiVersion: "epochmq.io/v1", expected epochmq.io/v1alpha1')


@pytest.mark.parametrize("name", ["Orders", "-a", "a-", "1a", "a_b", "a" * 41, "", "a\nb"])
def test_a_name_that_is_invalid_for_pods_is_rejected(name: str) -> None:
    (line,) = faults(f"{HEAD.replace('orders', show_value(name))}spec: {{replicas: 1}}\n")
    assert f"metadata.name: {show_value(name)}, expected lower-case letters, digits, '-'," in line


def test_a_name_that_is_too_long_for_dns_is_rejected() -> None:
    names = f"{{name: {'a' * 40}, namespace: {'n' * 61}}}"
    assert only(HEAD.replace("{name: orders}", names) + "spec: {replicas: 1}\n").name == "a" * 40
    (line,) = faults(HEAD.replace("{name: orders}", names.replace("}", "n}")) + "spec: {replicas: 1}\n")
    assert "metadata.name: 102 characters with the namespace's name, expected at most 101: choose" in line


# controllers

CONTROLLERS = HEAD.replace("BrokerGroup", "ControllerGroup")
ODD = "expected 1, 3 or 5"
EVEN = f"{ODD}: an even number of controllers tolerates no more failures than one fewer"
CONTROLLER_FAULTS = [
    *(
        (f"replicas: {count}", f"5: spec.replicas: {count}, {ODD}")
        for count in (0, -2, 7, 9, "true", '"3"', 3.0)
    ),
    *((f"replicas: {count}", f"5: spec.replicas: {count}, {EVEN}") for count in (2, 4, 6)),
    ("nameserver: apart", '5: spec.nameserver: "apart", expected a mapping with embedded, replicas and pods'),
    (
        "nameserver: {embedded: 1, embeded: true}",
        "5: spec.nameserver.embedded: 1, expected true or false",
        "5: spec.nameserver.embeded: unknown field, expected embedded (is it a misspelling?)",
    ),
    (
        "nameserver: {embedded: false, replicas: 10}",
        "5: spec.nameserver.replicas: 10, expected a whole number from 1 to 9",
    ),
    (
        "nameserver: {replicas: 2}",
        "5: spec.nameserver.replicas: 2, expected no such field for embedded nameservers, of which each "
        "controller has one: remove it, or create a new group with embedded: false",
    ),
    (
        "brokerName: a",
        "5: spec.brokerName: unknown field, expected one of replicas, nameserver, config, " + COMMON,
    ),
    ("config: 7", "5: spec.config: 7, expected a mapping of RocketMQ's controller keys to values"),
    (
        "config: {mappedFileSize: 7, controllerDLegerPeers: x, brokerId: 1, writeLeaseMs: [1]}",
        "5: spec.config.mappedFileSize: 7, expected no such key: the operator sets it, from the pod's "
        "volumes",
        '5: spec.config.controllerDLegerPeers: "x", expected no such key: the operator sets it, from the '
        "addresses of the group's pods",
        f"5: spec.config.writeLeaseMs: a list, {SCALAR}",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), [(spec, lines) for spec, *lines in CONTROLLER_FAULTS])
def test_each_fault_of_controllers_names_field_value_and_expectation(spec: str, expected: list[str]) -> None:
    assert faults(f"{CONTROLLERS}spec:\n  {spec}\n") == [
        f"f.yaml:{line}: document 1 (ControllerGroup orders): {problem}"
        for line, _, problem in (text.partition(": ") for text in expected)
    ]


@pytest.mark.parametrize("text", ["", "spec: {}\n", "spec: {replicas: 3}\n"])
def test_the_default_is_three_controllers_with_embedded_nameservers(text: str) -> None:
    loaded = load_resources([("f", CONTROLLERS + text)])
    (found,) = loaded.controller_groups
    assert loaded.groups == (found,)
    assert (found.name, found.spec.replicas, found.spec.nameserver.embedded) == ("orders", 3, True)
    assert found.spec.config == {}
    assert ControllerGroup.model_validate(found.model_dump(by_alias=True)) == found


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_one_three_and_five_controllers_are_valid(replicas: int) -> None:
    path = ROOT / "examples" / "controllers.yaml"
    text = path.read_text().replace("replicas: 3", f"replicas: {replicas}")
    (found,) = load_resources([(str(path), text)]).controller_groups
    assert (found.name, found.spec.replicas) == ("controllers", replicas)


def test_a_controller_group_and_a_broker_group_of_one_name_are_rejected() -> None:
    (line,) = faults(CONTROLLERS + "---\n" + HEAD + "spec: {replicas: 1}\n")
    assert line.endswith('metadata.name: "orders" is the name of another group, at f.yaml:1')


def test_two_groups_of_one_name_are_rejected_with_both_places() -> None:
    text = HEAD + "spec: {replicas: 1}\n"
    with pytest.raises(ResourceError) as caught:
        load_resources([("a.yaml", text), ("b.yaml", text)])
    assert str(caught.value) == (
        'b.yaml:3: document 1 (BrokerGroup orders): metadata.name: "orders" is the name of another group, '
        "at a.yaml:1"
    )


def test_faults_of_all_documents_of_all_files_are_reported_together() -> None:
    bad = HEAD + "spec: {replicas: 0}\n"
    with pytest.raises(ResourceError) as caught:
        load_resources([("a.yaml", bad + "---\n" + bad), ("b.yaml", "a: [")])
    assert [(fault.file, fault.document) for fault in caught.value.faults] == [
        ("a.yaml", 1),
        ("a.yaml", 2),
        ("b.yaml", None),
    ]


def test_nested_yaml_aliases_are_read_once() -> None:
    ten = [", ".join([f"*a{i - 1}"] * 10) for i in range(25)]
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{ten[i]}]\n" for i in range(1, 25))
    assert len(faults(HEAD + "spec: {replicas: 1}\n" + bomb)) == 25


@given(st.text(max_size=200) | st.text(alphabet="ab:{}[]-&*!|>'\"#%,? \n\t01", max_size=80))
def test_any_text_loads_or_is_rejected(text: str) -> None:
    try:
        outcome: object = load_resources([("f", text)])
    except ResourceError as error:
        outcome = error.faults
    assert outcome


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


KINDS = st.sampled_from(["BrokerGroup", "ControllerGroup"])


@given(
    st.fixed_dictionaries(
        {"apiVersion": st.just("epochmq.io/v1alpha1") | VALUES, "kind": KINDS | VALUES},
        optional={
            "metadata": st.fixed_dictionaries({}, optional={"name": st.just("orders") | VALUES}) | VALUES,
            "spec": st.dictionaries(
                st.sampled_from(["replicas", "brokerName", "cluster", "nameserver", "config", "x"]),
                VALUES,
                max_size=5,
            )
            | VALUES,
        },
    )
)
def test_any_document_loads_or_has_each_fault_in_one_printable_line(document: dict[str, object]) -> None:
    try:
        load_resources([("f", yaml.safe_dump(document, allow_unicode=True))])
        lines = ["loaded"]
    except ResourceError as error:
        lines = [str(fault) for fault in error.faults]
    assert lines
    assert not [line for line in lines if "\n" in line]


@pytest.mark.parametrize(
    ("controllers", "count"), [("", 3), (", controllers: {}", 3), (", controllers: {replicas: 5}", 5)]
)
def test_a_group_has_as_many_controllers_of_its_own_as_it_asks_for(controllers: str, count: int) -> None:
    group = only(HEAD + f"spec: {{replicas: 3{controllers}}}\n")
    assert isinstance(group, BrokerGroup)
    assert group.own_controllers is not None
    assert group.own_controllers.spec.replicas == count
