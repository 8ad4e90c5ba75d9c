"""Tests the cluster that the other tests use: what they rely on, and that nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.kubernetes.testbed.cache import ROOT
from tests.kubernetes.testbed.cleanup import CLUSTERS, hierarchies, remove_dead, runs
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import image_name
from tests.kubernetes.testbed.pods import claim, pod
from tests.kubernetes.testbed.processes import TestbedError, wait_for
from tests.support.process import ProcessFailedError

HELLO = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080, bind='0.0.0.0')"
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).status)"
PATIENCE_S = 120
"""For what takes two seconds on an idle machine, and for Kubernetes' own delays of up to 16 s."""


def server(name: str, image: str, node: str, **more: str) -> dict[str, object]:
    """A pod that answers HTTP on port 8080, and can be asked to fetch from others."""
    return pod(name, image, command=["python3", "-c", HELLO], node=node, labels={"app": name, **more})


def service(name: str) -> dict[str, object]:
    """A Service in front of the pod of this name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


@pytest.mark.parametrize("target", ["broker", "controller", "operator"])
def test_image_runs_unprivileged_with_a_read_only_root(cluster: Cluster, namespace: str, target: str) -> None:
    """Under the "restricted" Pod Security Standard, with a read-only root, each image's command works."""
    cluster.apply(pod("version", image_name(target), arguments=["version"]), namespace=namespace)
    cluster.wait_pod(namespace, "version", phase="Succeeded")
    assert cluster.logs(namespace, "version") == f"{version('epochmq')}\n"


def test_restricted_namespace_rejects_root(cluster: Cluster, namespace: str) -> None:
    """This shows that the test above is effective."""
    rooted = pod("rooted", image_name("broker"), arguments=["version"])
    rooted["spec"]["securityContext"] |= {"runAsNonRoot": False, "runAsUser": 0}
    with pytest.raises(TestbedError, match="violates PodSecurity"):
        cluster.apply(rooted, namespace=namespace)


def test_pods_connect_by_name_on_one_node_and_across_nodes(cluster: Cluster, namespace: str) -> None:
    """A Service's name leads to its pod from the pod's own node, from another, and from the pod itself."""
    first, second = cluster.nodes[:2]
    cluster.apply(
        [
            server("here", cluster.base_image, first.name),
            server("beside", cluster.base_image, first.name),
            server("there", cluster.base_image, second.name),
            *(service(name) for name in ("here", "beside", "there")),
        ],
        namespace=namespace,
    )
    for name in ("here", "beside", "there"):
        cluster.wait_pod(namespace, name)

    def fetched(asking: str, asked: str) -> str | None:
        try:
            url = f"http://{asked}.{namespace}.svc.cluster.local/"
            return cluster.execute(namespace, asking, "python3", "-c", FETCH, url).strip()
        except TestbedError:
            return None  # the rules of a new Service take effect after a moment

    for asking, asked in (("here", "there"), ("there", "here"), ("here", "beside"), ("here", "here")):
        status = cluster.wait(
            lambda a=asking, b=asked: fetched(a, b), PATIENCE_S, f"{asking} reaches {asked}"
        )
        assert status == "200"


def test_command_in_a_nodes_network_finds_services(cluster: Cluster, namespace: str) -> None:
    """The command is like a test's client program, which runs on this machine and not in a pod."""
    cluster.apply(
        [server("web", cluster.base_image, cluster.nodes[1].name), service("web")], namespace=namespace
    )
    cluster.wait_pod(namespace, "web")
    command = [*cluster.nodes[0].enter, sys.executable, "-c", FETCH, f"http://web.{namespace}.svc/"]

    def fetched() -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()

    assert cluster.wait(fetched, PATIENCE_S, "the Service answers") == "200"
    port = cluster.forward(cluster.core.read_namespaced_pod("web", namespace).status.pod_ip, 8080)
    local = [sys.executable, "-c", FETCH, f"http://127.0.0.1:{port}/"]
    assert (
        subprocess.run(local, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == "200"
    )


def test_claim_gets_a_volume_on_its_pods_node_and_deletes_it(cluster: Cluster, namespace: str) -> None:
    """What one pod writes as an unprivileged user, the next one reads on that node; then the directory is
    deleted."""
    write = ["sh", "-c", "echo kept > /data/file"]
    node = cluster.nodes[1].name
    mounts = {"/data": "data"}
    cluster.apply(
        [claim("data"), pod("writer", cluster.base_image, command=write, claims=mounts, node=node)],
        namespace=namespace,
    )
    cluster.wait_pod(namespace, "writer", phase="Succeeded")
    reader = pod("reader", cluster.base_image, command=["cat", "/data/file"], claims=mounts)
    cluster.apply(reader, namespace=namespace)
    assert cluster.wait_pod(namespace, "reader", phase="Succeeded").spec.node_name == node
    assert cluster.logs(namespace, "reader") == "kept\n"
    volume = cluster.core.read_namespaced_persistent_volume_claim("data", namespace).spec.volume_name
    folder = cluster.layout.volumes / volume
    assert (folder / "file").read_text() == "kept\n"
    cluster.kubectl("delete", "pod/writer", "pod/reader", "pvc/data", f"--namespace={namespace}")
    cluster.wait(lambda: not folder.exists(), PATIENCE_S, "the volume's directory is gone")


def test_killed_container_starts_again_in_its_pod(cluster: Cluster, namespace: str) -> None:
    """SIGKILL to a container's first process, found through its control group."""
    cluster.apply(
        pod("victim", cluster.base_image, command=["sleep", "600"], restart="Always"), namespace=namespace
    )
    before = cluster.wait_pod(namespace, "victim")
    cluster.kill_container(namespace, "victim", "main")

    def restarted() -> object:
        seen = cluster.core.read_namespaced_pod("victim", namespace)
        status = seen.status.container_statuses[0]
        return seen if status.restart_count == 1 and status.ready else None

    after = cluster.wait(restarted, PATIENCE_S, "the container runs again")
    assert after.status.pod_ip == before.status.pod_ip
    assert after.status.container_statuses[0].last_state.terminated.exit_code == 128 + signal.SIGKILL


@pytest.mark.soak
def test_node_without_its_kubelet_is_not_ready_until_it_is_back(cluster: Cluster) -> None:
    """The control plane notices both, and a node whose power failed comes back as well."""
    node = cluster.nodes[1]

    def ready() -> str:
        conditions = cluster.core.read_node(node.name).status.conditions
        return next(str(each.status) for each in conditions if each.type == "Ready")

    node.stop_kubelet()
    cluster.wait(lambda: ready() == "Unknown", PATIENCE_S, f"{node.name} is lost")
    node.start_kubelet()
    cluster.wait(lambda: ready() == "True", PATIENCE_S, f"{node.name} is back")
    node.power_off()
    cluster.wait(lambda: ready() == "Unknown", PATIENCE_S, f"{node.name} is lost")
    node.power_on()
    cluster.wait(lambda: ready() == "True", PATIENCE_S, f"{node.name} is back")


def test_a_failure_collects_diagnostics(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Events, objects, the logs of pods and of the cluster's own processes, and every write."""
    cluster.apply(
        pod("talker", cluster.base_image, command=["sh", "-c", "echo my last words; exit 3"]),
        namespace=namespace,
    )
    cluster.wait_pod(namespace, "talker", phase="Failed")
    folder = cluster.collect(tmp_path / "kept")
    assert "my last words" in (folder / "logs" / f"{namespace}.talker.log").read_text()
    assert "talker" in (folder / "events.txt").read_text()
    assert f"name: {namespace}" not in (folder / "nodes.yaml").read_text()
    assert (folder / "servers" / "kube-apiserver.log").exists()
    created = [
        write
        for write in cluster.writes()
        if write["verb"] == "create" and write["objectRef"].get("name") == "talker"
    ]
    assert [write["user"]["username"] for write in created if "subresource" not in write["objectRef"]] == [
        "admin"
    ]


STARTS = """
import signal
import sys
from tests.kubernetes.testbed.cluster import Cluster
signal.signal(signal.SIGINT, signal.default_int_handler)
cluster = Cluster.start(sys.argv[1], nodes=1)
print("started", flush=True)
sys.stdin.read()
"""


class Starter:
    """A process that starts a small cluster of its own, as a test run does. SIGINT interrupts it, although a
    shell makes its background jobs ignore that."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = CLUSTERS / name
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTS, name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def wait_started(self) -> None:
        """Waits until the whole cluster runs."""
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"started\n":
            raise ProcessFailedError(f"no cluster: {self.process.wait(PATIENCE_S)}")

    def leftovers(self) -> list[str]:
        """What is left of the cluster: processes, mounts, control groups, its folder."""
        found = [
            f"process {entry.name}"
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and str(self.folder) in _command_line(entry)
        ]
        found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(self.folder) in line]
        found += [str(top) for each in hierarchies() if (top := each / f"epochmq-{self.name}").exists()]
        return found + ([str(self.folder)] if self.folder.exists() else [])


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""  # ended meanwhile


@pytest.fixture
def starter(cluster: Cluster) -> Iterator[Starter]:
    """A cluster beside the shared one: all programs are built by then, and the tests show that two clusters
    do not interfere."""
    assert cluster.nodes
    started = Starter(f"gone-{os.getpid()}")
    yield started
    with started.process:
        started.process.kill()
    wait_for(lambda: not runs(started.folder), timeout_s=PATIENCE_S, what="the cluster of the test is gone")
    remove_dead()


@pytest.mark.parametrize(
    "number",
    [pytest.param(one, marks=pytest.mark.soak) for one in (signal.SIGINT, signal.SIGTERM)] + [signal.SIGKILL],
)
def test_interrupted_tests_leave_nothing_of_their_cluster(
    cluster: Cluster, starter: Starter, number: signal.Signals
) -> None:
    """Whatever ends the test run: processes, namespaces, mounts, control groups and files are gone."""
    starter.wait_started()
    assert starter.leftovers(), "or the test would see nothing either way"
    starter.process.send_signal(number)
    starter.process.wait(PATIENCE_S)
    wait_for(lambda: not starter.leftovers(), timeout_s=PATIENCE_S, what=f"gone after {number.name}")
    assert cluster.core.list_node().items, "the other cluster lives on"


@pytest.mark.soak
def test_start_removes_the_leftovers_of_a_killed_cluster(cluster: Cluster, starter: Starter) -> None:
    """SIGKILL to a cluster's first process ends everything in it, and the files go with the next start."""
    starter.wait_started()
    init_pid = Cluster.attach(starter.name).processes.init_pid
    os.kill(init_pid, signal.SIGKILL)
    wait_for(lambda: not runs(starter.folder), timeout_s=PATIENCE_S, what="its lock is free")
    assert starter.folder.exists()
    assert starter.name in remove_dead()
    assert not starter.leftovers()
    assert cluster.core.list_node().items, "the other cluster lives on"
