"""Tests the modules of the local runtime that need no pods: process identities, networks, restarts, the state
directory, and merging resources."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_operator.local import network
from epochmq_operator.local.errors import NetworkError, StateError
from epochmq_operator.local.network import allocate, candidates
from epochmq_operator.local.pod_placements import addresses_for, member_modes, render_all
from epochmq_operator.local.process import ProcessIdentity, current, identify, is_alive, send_signal
from epochmq_operator.local.quorum_changes import initial_quorums
from epochmq_operator.local.restart_rules import (
    DELAY_FIRST_S,
    DELAY_MAX_S,
    STEADY_AFTER_S,
    RestartHistory,
    changed_addresses,
)
from epochmq_operator.local.runtime import (
    check_controller_groups_exist,
    check_data_matches_mode,
    check_single_namespace,
    differences,
    merge_resources,
)
from epochmq_operator.local.state_directory import (
    LogKind,
    NetworkFile,
    QuorumRecord,
    StateDirectory,
    digest_of,
)
from epochmq_operator.local.supervisor import rotate
from epochmq_operator.pod_rendering import (
    pods_of,
    render_pods,
)
from epochmq_operator.pods import (
    Component,
    NameserverProbe,
    Pod,
    PodPlacement,
    PodPort,
)
from epochmq_operator.resources import Resources, load_resources, with_member_count
from epochmq_protocol import properties
from tests.support.net import free_port, loopback

HEAD = "apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\n"
BODY = "metadata: {name: %s}\nspec: {replicas: 1, config: {%s}}\n"


def group(name: str, config: str = "") -> Resources:
    return load_resources([("f", HEAD + BODY % (name, config))])


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)


# processes


def test_a_process_is_alive_until_it_ended() -> None:
    child = sleeper()
    found = identify(child.pid)
    assert found is not None
    assert is_alive(found)
    assert send_signal(found, signal.SIGTERM)
    assert child.wait(120) == -signal.SIGTERM
    assert not is_alive(found)
    assert not send_signal(found, signal.SIGTERM)
    assert identify(child.pid) is None


def test_a_zombie_process_is_not_alive() -> None:
    child = sleeper()
    found = identify(child.pid)
    assert found is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(found)
    child.wait()


@pytest.mark.parametrize("change", [{"started": "1"}, {"boot": "another"}])
def test_another_process_with_the_same_id_is_never_signalled(change: dict[str, str]) -> None:
    child = sleeper()
    try:
        found = identify(child.pid)
        assert found is not None
        earlier = ProcessIdentity(
            **{"pid": found.pid, "started": found.started, "boot": found.boot, **change}
        )
        assert not is_alive(earlier)
        assert not send_signal(earlier, signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("pid", [0, -1])
def test_an_id_that_means_a_process_group_is_never_signalled(pid: int) -> None:
    nobody = ProcessIdentity(pid=pid, started=current().started, boot=current().boot)
    assert not send_signal(nobody, signal.SIGTERM)


# networks


def test_a_directory_always_has_the_same_candidate_networks() -> None:
    assert list(candidates("/a")) == list(candidates("/a"))
    assert len({next(candidates(f"/{n}")) for n in range(100)}) > 95
    assert all(128 <= int(name.split(".")[1]) <= 254 for name in candidates("/a"))


def test_a_reserved_network_is_skipped_until_it_is_released(tmp_path: Path) -> None:
    state = str(tmp_path)
    first = network.claim_network(state)
    second = network.claim_network(state, previous=first.network)
    try:
        assert first.network != second.network
    finally:
        first.release()
        second.release()
    again = network.claim_network(state, previous=second.network)
    again.release()
    assert again.network == second.network


def test_addresses_are_kept_and_new_pods_get_free_ones() -> None:
    first = allocate("127.200.1", {}, ["a", "b"])
    assert first == {"a": "127.200.1.1", "b": "127.200.1.2"}
    assert allocate("127.200.1", {"b": "127.200.1.2"}, ["c"]) == {"b": "127.200.1.2", "c": "127.200.1.1"}
    assert allocate("127.200.2", first, ["b"]) == {"b": "127.200.2.1"}
    with pytest.raises(NetworkError, match="pod-253 has no address"):
        allocate("127.200.1", {}, [f"pod-{n}" for n in range(254)])


@given(
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=20),
    st.lists(st.text("ab", min_size=1), max_size=20),
)
def test_no_two_pods_share_an_address(earlier: list[str], now: list[str]) -> None:
    addresses = allocate("127.200.1", allocate("127.200.1", {}, earlier), now)
    assert set(addresses) == {*earlier, *now}
    assert len(set(addresses.values())) == len(addresses)


def pod_at(address: str, *ports: int) -> Pod:
    return Pod(
        name="p",
        group="g",
        component=Component.NAMESERVER,
        ordinal=0,
        address=address,
        args=(),
        config_files=(),
        ports=tuple(PodPort(f"port{number}", number) for number in ports),
        volumes=(),
        probe=NameserverProbe(f"{address}:{ports[0]}"),
    )


@pytest.mark.parametrize("host", ["own", "0.0.0.0"])
def test_a_port_in_use_is_reported_with_its_process(host: str) -> None:
    address = loopback(55)
    port = free_port(address)
    pod = pod_at(address, port, port + 1)
    assert network.port_in_use(pod) is None
    with socket.socket() as other:
        other.bind((address if host == "own" else host, port + 1))
        other.listen(1)
        found = network.port_in_use(pod)
    assert found is not None
    assert found.startswith(f"{address}:{port + 1} (port{port + 1}) is in use by pid {os.getpid()} (")


def test_an_address_of_another_machine_is_reported() -> None:
    found = network.port_in_use(pod_at("192.0.2.1", 20000))
    assert found is not None
    assert found.startswith("192.0.2.1:20000 (port20000) is ")


# restarts


def test_the_delay_doubles_with_every_consecutive_end_up_to_a_bound() -> None:
    restarts, delays = RestartHistory(), []
    for _ in range(50):
        restarts = restarts.ended(ready_for_s=None)
        delays.append(restarts.delay_s)
    assert delays[:4] == [DELAY_FIRST_S, DELAY_FIRST_S * 2, DELAY_FIRST_S * 4, DELAY_FIRST_S * 8]
    assert delays[-1] == DELAY_MAX_S
    assert (restarts.total, restarts.consecutive_unready_ends) == (50, 50)


def test_a_pod_that_was_steady_starts_with_the_first_delay_again() -> None:
    restarts = RestartHistory()
    for _ in range(50):
        restarts = restarts.ended(ready_for_s=STEADY_AFTER_S / 2)
    assert restarts.delay_s == DELAY_FIRST_S * 4
    assert restarts.ended(ready_for_s=STEADY_AFTER_S).delay_s == DELAY_FIRST_S
    assert restarts.ready().ended(ready_for_s=1).consecutive_unready_ends == 1


# the state directory


def test_only_one_process_holds_the_lock_until_it_releases_it(tmp_path: Path) -> None:
    one, other = StateDirectory(tmp_path / "s"), StateDirectory(tmp_path / "s")
    one.create()
    assert not one.lock.is_held()
    assert one.lock.try_acquire()
    assert not other.lock.try_acquire()
    assert other.lock.is_held()
    one.lock.release()
    assert other.lock.try_acquire()
    other.lock.release()


def test_a_directory_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StateError, match="is not empty and not a state directory"):
        StateDirectory(tmp_path).create()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ('{"mode":"Controller"}', LogKind.CONTROLLED),
        ('{"mode":"MasterSlave"}', LogKind.PLAIN),
        ("x", LogKind.PLAIN),
    ],
)
def test_restored_stores_are_data_of_their_groups_mode(tmp_path: Path, content: str, kind: LogKind) -> None:
    """A person restores them before the first `up`; they have neither identity nor epochs."""
    state = StateDirectory(tmp_path)
    store = state.volume_path("orders-broker-0", "store")
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / f"{0:020}").touch()
    (store / "restoredFrom.json").write_text(content)
    state.create()
    assert state.brokers_with_data("orders") == [(kind, "orders-broker-0")]


def test_a_file_in_place_of_the_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    with pytest.raises(StateError, match="cannot be the state directory"):
        StateDirectory(tmp_path / "s").create()


def test_written_state_is_read_back(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "s")
    state.create()
    assert (state.resources(), state.network(), state.pods(), state.supervisor()) == (
        Resources(),
        None,
        None,
        None,
    )
    resources = group("a", "x: 1, y: true, z: 0.5")
    state.write_resources(resources)
    state.write_network(NetworkFile(network="127.200.1", addresses={"a": "127.200.1.1"}))
    state.write_supervisor(current())
    again = StateDirectory(tmp_path / "s")
    assert again.resources() == resources
    assert digest_of(again.resources()) == digest_of(resources)
    assert again.supervisor() == current()
    assert again.network() == NetworkFile(network="127.200.1", addresses={"a": "127.200.1.1"})


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"pid": "x"}'])
def test_a_damaged_file_is_reported_by_name(tmp_path: Path, text: bytes) -> None:
    state = StateDirectory(tmp_path / "s")
    state.create()
    (tmp_path / "s" / "supervisor.json").write_bytes(text)
    with pytest.raises(StateError, match=r"supervisor\.json is damaged"):
        state.supervisor()


def test_resources_of_another_version_are_rejected(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "s")
    state.create()
    (tmp_path / "s" / "resources.json").write_text('[{"kind": "BrokerGroup", "spec": {"shards": 3}}]')
    with pytest.raises(StateError, match="was written by another version"):
        state.resources()


async def test_acquiring_the_lock_waits_for_a_process_that_only_tests_it(tmp_path: Path) -> None:
    state, looker = StateDirectory(tmp_path / "s"), StateDirectory(tmp_path / "s")
    state.create()
    assert looker.lock.try_acquire()
    asyncio.get_running_loop().call_later(0.1, looker.lock.release)
    await state.lock.acquire()
    assert looker.lock.is_held()
    state.lock.release()


# merging resources


def test_the_same_resources_change_nothing() -> None:
    merged = merge_resources(group("a", "x: 1, y: 2"), group("a", "y: 2, x: 1"))
    assert merged.changes == ()


def test_each_difference_is_one_line_with_old_and_new_value() -> None:
    planned = merge_resources(group("a", "x: 1, y: 2"), group("a", "x: 2, z: true"))
    assert planned.changes == (
        "a: spec.config.x: 1 → 2",
        "a: spec.config.y: not set (was 2)",
        "a: spec.config.z: true (was not set)",
    )
    assert planned.merged == group("a", "x: 2, z: true")


def test_groups_that_are_not_mentioned_stay() -> None:
    planned = merge_resources(group("a"), group("b"))
    assert planned.changes == ("b: new",)
    assert [found.name for found in planned.merged.broker_groups] == ["a", "b"]


def test_equal_values_of_different_types_differ() -> None:
    assert differences({"a": 1}, {"a": True}) == ["a: 1 → true"]


# logs


def test_a_long_log_is_rotated_while_its_writer_continues(tmp_path: Path) -> None:
    path = tmp_path / "pod.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        rotate(path, bytes_max=100)
        assert path.stat().st_size == 100
        writer.write(b"y")
        rotate(path, bytes_max=100)
        writer.write(b"after")
    assert path.read_bytes() == b"after"
    assert (tmp_path / "pod.log.1").read_bytes() == b"x" * 100 + b"y"


# controllers

QUORUM = "apiVersion: epochmq.io/v1alpha1\nkind: ControllerGroup\nmetadata: {name: q}\nspec: {replicas: %d}\n"


def quorum(replicas: int) -> Resources:
    return load_resources([("f", QUORUM % replicas)])


def test_resources_of_both_kinds_are_stored_unchanged(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.create()
    both = Resources(group("a").broker_groups, quorum(3).controller_groups)
    state.write_resources(both)
    assert state.resources() == both
    assert digest_of(both) != digest_of(group("a"))


def test_controllers_are_planned_beside_brokers() -> None:
    planned = merge_resources(group("a"), quorum(3))
    assert planned.changes == ("q: new",)
    assert [found.name for found in planned.merged.groups] == ["q", "a"]
    assert merge_resources(planned.merged, quorum(1)).changes == ("q: spec.replicas: 3 → 1",)


def test_a_name_of_two_kinds_is_rejected() -> None:
    with pytest.raises(StateError, match="q is the name of a ControllerGroup and of a BrokerGroup"):
        check_single_namespace(merge_resources(group("q"), quorum(3)).merged)


def test_a_quorum_begins_as_the_resource_says_and_keeps_the_number_of_its_data(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.create()
    assert initial_quorums(state, quorum(3), ()) == {"q": QuorumRecord(running=3, founders=3)}
    for ordinal in range(3):
        state.volume_path(f"q-controller-{ordinal}", "data").mkdir(parents=True)
    # None of them ever ran.
    assert initial_quorums(state, quorum(5), ()) == {"q": QuorumRecord(running=5, founders=5)}
    (state.volume_path("q-controller-1", "data") / "controller").mkdir()
    # Data of an earlier release, which has no record.
    assert initial_quorums(state, quorum(5), ()) == {"q": QuorumRecord(running=3, founders=3)}
    changing = QuorumRecord(running=4, founders=0, changing=True)
    state.write_quorums({"q": changing})
    assert initial_quorums(state, quorum(5), ()) == {"q": changing}
    shutil.rmtree(state.absolute / "volumes")
    # The pods run and have not written yet; or their volumes were removed.
    assert initial_quorums(state, quorum(5), {"q"}) == {"q": changing}
    assert initial_quorums(state, quorum(5), ()) == {"q": QuorumRecord(running=5, founders=5)}


def test_pods_that_differ_in_addresses_only_need_no_restart() -> None:
    def pods(controllers: int, founders: int, config: str = "") -> dict[str, Pod]:
        group = with_member_count(quorum(3).controller_groups[0], controllers)
        spec = f"metadata: {{name: a}}\nspec: {{replicas: 1, controllerGroup: q, config: {{{config}}}}}\n"
        brokers = load_resources([("f", HEAD + spec)]).broker_groups[0]
        places = {
            one.name: PodPlacement(one.name, one.name, "/etc", {"data": "/d", "store": "/s"})
            for one in (*pods_of(group), *pods_of(brokers))
        }
        rendered = (
            *render_pods(group, places, founders=founders),
            *render_pods(brokers, places, group),
        )
        return {pod.name: pod for pod in rendered}

    one, three = pods(1, 1), pods(3, 0)
    assert changed_addresses(one["q-controller-0"], three["q-controller-0"]) == {
        "controllerDLegerPeers": ";".join(f"n{n}-q-controller-{n}:9878" for n in range(3)),
        "joinControllerGroup": "true",
    }
    nameservers = ";".join(f"q-controller-{n}:9876" for n in range(3))
    controllers = ";".join(f"q-controller-{n}:9878" for n in range(3))
    assert changed_addresses(one["a-broker-0"], three["a-broker-0"]) == {
        "namesrvAddr": nameservers,
        "controllerAddr": controllers,
    }
    assert changed_addresses(three["a-broker-0"], pods(3, 0, "traceOn: false")["a-broker-0"]) is None
    assert changed_addresses(three["q-controller-0"], three["q-controller-1"]) is None


def test_running_brokers_of_a_dledger_group_need_no_restart_when_their_number_changes() -> None:
    def pods(replicas: int, founders: int, config: str = "") -> list[Pod]:
        spec = f"metadata: {{name: a}}\nspec: {{mode: DLedger, replicas: 1, config: {{{config}}}}}\n"
        (one,) = load_resources([("f", HEAD + spec)]).broker_groups
        brokers = with_member_count(one, replicas)
        volumes = {"data": "/d", "store": "/s"}
        places = {one.name: PodPlacement(one.name, one.name, "/etc", volumes) for one in pods_of(brokers)}
        return [pod for pod in render_pods(brokers, places, founders=founders) if "broker" in pod.name]

    (alone,), (first, *_) = pods(1, 1), pods(3, 0)
    assert changed_addresses(alone, first) == {
        "dLegerPeers": ";".join(f"n{n}-a-broker-{n}:40911" for n in range(3)),
        "joinDLedgerGroup": "true",
    }
    assert changed_addresses(alone, pods(3, 0, "traceOn: false")[0]) is None


GROUP_OF_SEVERAL = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: a}
spec: {replicas: 3%s}
"""


def test_a_groups_own_controllers_run_and_are_not_stored_as_a_document(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.create()
    resources = load_resources([("f", GROUP_OF_SEVERAL % "")])
    state.write_resources(resources)
    assert state.resources() == resources
    placed = addresses_for(resources, NetworkFile(network="127.9.9", addresses={}))
    pods = render_all(state, resources, placed)
    assert [pod.name for pod in pods] == [
        *(f"a-controller-{n}" for n in range(3)),
        *(f"a-broker-{n}" for n in range(3)),
    ]
    one = merge_resources(resources, group("a"))
    assert one.changes == ("a: spec.replicas: 3 → 1",)
    assert [found.kind for found in one.merged.groups] == ["BrokerGroup"]


@pytest.mark.parametrize(
    ("spec", "accepting"),
    [
        ("", set()),
        (", memberAuthentication: Require", set()),
        (", memberAuthentication: Accept", {"controller", "broker"}),
        (", memberAuthentication: Disabled", {"controller", "broker"}),
        (", memberAuthentication: Accept, config: {allowUnauthenticatedMembers: false}", {"controller"}),
        (", config: {allowUnauthenticatedMembers: true}", {"broker"}),
    ],
)
def test_members_of_a_run_require_a_proof_unless_the_group_accepts_others(
    tmp_path: Path, spec: str, accepting: set[str]
) -> None:
    """Also its own controllers accept them, unless only the brokers' configuration says so."""
    state = StateDirectory(tmp_path / "state")
    state.create()
    resources = load_resources([("f", GROUP_OF_SEVERAL % spec)])
    placed = addresses_for(resources, NetworkFile(network="127.9.9", addresses={}))

    def modes() -> dict[str, str]:
        return {str(group.kind): str(mode) for group, mode in member_modes(state, resources)}

    assert set(modes().values()) == {"Disabled"}, "no secret yet"
    assert "memberSecretPath" not in str(render_all(state, resources, placed))
    state.write_member_secret()
    assert state.member_secret.stat().st_mode & 0o777 == 0o600
    found = set()
    for pod in render_all(state, resources, placed):
        config = properties.parse(pod.config_files[0].text)
        assert config["memberSecretPath"] == str(state.member_secret)
        if config.get("allowUnauthenticatedMembers", "false") == "true":
            found.add(str(pod.component))
    assert found == accepting
    assert modes() == {
        "ControllerGroup": "Accept" if "controller" in accepting else "Require",
        "BrokerGroup": "Accept" if "broker" in accepting else "Require",
    }


def test_controllers_that_a_group_names_must_exist() -> None:
    named = load_resources([("f", GROUP_OF_SEVERAL % ", controllerGroup: q")])
    with pytest.raises(StateError, match=r'BrokerGroup a: spec\.controllerGroup: "q", expected'):
        check_controller_groups_exist(named)
    check_controller_groups_exist(merge_resources(quorum(3), named).merged)


@pytest.mark.parametrize("controlled", [True, False])
def test_data_is_used_only_in_the_mode_it_was_written_in(tmp_path: Path, controlled: bool) -> None:
    state = StateDirectory(tmp_path / "state")
    state.create()
    with_controllers, without = load_resources([("f", GROUP_OF_SEVERAL % "")]), group("a")
    store = state.volume_path("a-broker-1", "store")
    (store / "commitlog").mkdir(parents=True)
    for resources in (with_controllers, without):
        check_data_matches_mode(state, resources)
    (store / "commitlog" / "00000000000000000000").touch()
    if controlled:
        (store / "brokerIdentity").write_text("c#a#2")
    check_data_matches_mode(state, with_controllers if controlled else without)
    with pytest.raises(StateError, match=r"BrokerGroup a: the data of a-broker-1 under .* was written with"):
        check_data_matches_mode(state, without if controlled else with_controllers)


def ledger(replicas: int) -> Resources:
    more = f"metadata: {{name: a}}\nspec: {{mode: DLedger, replicas: {replicas}}}\n"
    return load_resources([("f", f"apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\n{more}")])


def test_data_of_a_dledger_group_is_used_in_this_mode_only_and_by_as_many_replicas_at_first(
    tmp_path: Path,
) -> None:
    state = StateDirectory(tmp_path / "state")
    state.create()
    for ordinal in range(3):
        state.volume_path(f"a-broker-{ordinal}", "store").mkdir(parents=True)
    # None of them ever ran.
    assert initial_quorums(state, ledger(5), ()) == {"a": QuorumRecord(running=5, founders=5)}
    data = state.volume_path("a-broker-1", "store") / "dledger-n1" / "data"
    data.mkdir(parents=True)
    (data / "00000000000000000000").touch()
    check_data_matches_mode(state, ledger(3))
    # Data of an earlier release, which has no record.
    assert initial_quorums(state, ledger(5), ()) == {"a": QuorumRecord(running=3, founders=3)}
    changing = QuorumRecord(running=4, founders=0, changing=True)
    state.write_quorums({"a": changing})
    assert initial_quorums(state, ledger(5), ()) == {"a": changing}
    for resources in (group("a"), load_resources([("f", GROUP_OF_SEVERAL % "")])):
        with pytest.raises(StateError, match="in the mode DLedger and cannot be used in another mode"):
            check_data_matches_mode(state, resources)
    (data / "00000000000000000000").unlink()
    plain = state.volume_path("a-broker-2", "store") / "commitlog"
    plain.mkdir()
    (plain / "00000000000000000000").touch()
    with pytest.raises(StateError, match=r"spec\.mode: DLedger: the data of a-broker-2 .* as a DLedger log"):
        check_data_matches_mode(state, ledger(3))
