"""Runs a whole cluster: starts it, connects to it, inspects it, ends it."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from tests.kubernetes.testbed import diagnostics
from tests.kubernetes.testbed.addons import addons
from tests.kubernetes.testbed.cache import cache_folder, say
from tests.kubernetes.testbed.cleanup import CLUSTERS, remove_dead, runs
from tests.kubernetes.testbed.control_plane import ControlPlane, write_files
from tests.kubernetes.testbed.images import (
    BASE_IMAGE,
    base_image,
    image_name,
    pause_image,
    project_images,
)
from tests.kubernetes.testbed.layout import API_PORT, CONTROL_PLANE, Layout
from tests.kubernetes.testbed.network import CONTROL_PLANE_NAMESPACE, resolv_conf, setup_script
from tests.kubernetes.testbed.node import Node
from tests.kubernetes.testbed.prerequisites import ensure_machine
from tests.kubernetes.testbed.processes import (
    Processes,
    TestbedError,
    pids_below,
    process_hierarchy,
    run,
    wait_for,
)
from tests.kubernetes.testbed.programs import programs
from tests.support.net import free_port

CLUSTER_RECORD = "cluster.json"
COMMAND_TIMEOUT_S = 300
READY_TIMEOUT_S = 300
POLL_S = 0.2

Objects: TypeAlias = str | Mapping[str, Any] | Iterable[Mapping[str, Any]]


class Cluster:
    """A running cluster. `Cluster.start` starts one, `Cluster.attach` finds a running one."""

    def __init__(self, layout: Layout, folder_of_programs: Path) -> None:
        self.layout = layout
        self.programs = folder_of_programs
        self.processes = Processes(layout)
        self.nodes = [Node(layout, node, folder_of_programs, self.processes) for node in layout.nodes]
        self._forwards: dict[tuple[str, str, int], int] = {}

    # Starting and ending

    @classmethod
    def start(
        cls, name: str, *, nodes: int = 2, targets: Sequence[str] = (), leashed: bool = True
    ) -> Cluster:
        """Starts a cluster with the project's images of these targets on every node, and waits until its
        nodes are Ready. A leashed cluster ends with this process, however that ends. MissingPrerequisiteError
        if this machine cannot run one."""
        ensure_machine()
        built = programs()
        archives = [pause_image(built), base_image(), *project_images(targets).values()]
        for dead in remove_dead():
            say(f"removed what cluster {dead} had left")
        if runs(CLUSTERS / name):
            raise TestbedError(f"cluster {name} runs already")
        cluster = cls(Layout(name, CLUSTERS / name, nodes), built)
        try:
            cluster._start(archives, leashed=leashed)
        except BaseException:
            with contextlib.suppress(Exception):
                cluster.collect(failure_folder(f"{name}-start"))
            cluster.stop()
            raise
        return cluster

    @classmethod
    def attach(cls, name: str) -> Cluster:
        """The running cluster of this name."""
        facts = CLUSTERS / name / CLUSTER_RECORD
        if not runs(CLUSTERS / name) or not facts.exists():
            raise TestbedError(f"no cluster {name} runs")
        known = json.loads(facts.read_text())
        return cls(Layout(name, CLUSTERS / name, known["nodes"]), Path(known["programs"]))

    def _start(self, archives: Sequence[Path], *, leashed: bool) -> None:
        layout = self.layout
        self.processes.begin(leashed=leashed)
        local_port = _free_port()
        write_files(layout, local_port)
        (layout.folder / "resolv.conf").write_text(resolv_conf())
        layout.volumes.mkdir()
        self.processes.inside(setup_script(layout))
        self._forward(CONTROL_PLANE_NAMESPACE, CONTROL_PLANE, API_PORT, local_port)
        control_plane = ControlPlane(layout, self.programs, self.processes)
        with ThreadPoolExecutor(len(self.nodes) + 1) as workers:
            prepared = [workers.submit(self._prepare_node, node, archives[:1]) for node in self.nodes]
            control_plane.start_api()
            control_plane.start_others()
            for node in prepared:
                node.result()
            for node in self.nodes:
                node.start_kubelet()
                node.start_proxy()
            loaded = [workers.submit(self._load, node, archives[1:]) for node in self.nodes]
            self.apply(addons())
            self._start_volumes()
            self.wait(self._all_ready, timeout_s=READY_TIMEOUT_S, what="all nodes are Ready")
            for node in loaded:
                node.result()
        facts = {"nodes": len(self.nodes), "programs": str(self.programs)}
        (layout.folder / CLUSTER_RECORD).write_text(json.dumps(facts))

    def _prepare_node(self, node: Node, archives: Sequence[Path]) -> None:
        node.write_files()
        node.start_containerd()
        self._load(node, archives)

    def _load(self, node: Node, archives: Sequence[Path]) -> None:
        for archive in archives:
            node.load(archive)

    def _start_volumes(self) -> None:
        self.processes.start(
            "volumes",
            [
                *(sys.executable, "-m", "tests.kubernetes.testbed.volumes"),
                *(self.layout.kubeconfig("volumes"), self.layout.volumes),
            ],
            node=CONTROL_PLANE_NAMESPACE,
            cgroup=f"{self.layout.cgroup}/control-plane",
        )

    def stop(self) -> None:
        """Ends all processes of the cluster and removes its files."""
        self.processes.end()

    # Connecting

    @property
    def name(self) -> str:
        """Its name among this machine's clusters."""
        return self.layout.name

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of a cluster administrator, for use on this machine outside the cluster's networks."""
        return self.layout.kubeconfig()

    @functools.cached_property
    def client(self) -> client.ApiClient:
        """A client of the Kubernetes library, as administrator."""
        return config.new_client_from_config(str(self.kubeconfig))

    @property
    def core(self) -> client.CoreV1Api:
        """Pods, claims, services, …"""
        return client.CoreV1Api(self.client)

    @property
    def apps(self) -> client.AppsV1Api:
        """StatefulSets, Deployments, …"""
        return client.AppsV1Api(self.client)

    @property
    def custom(self) -> client.CustomObjectsApi:
        """Custom resources."""
        return client.CustomObjectsApi(self.client)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Runs kubectl; returns its output. TestbedError if it fails."""
        command = [self.programs / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(command, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 600) -> str:
        """Runs helm; returns its output. TestbedError if it fails. Its files are in the cluster's folder."""
        home = self.layout.folder / "helm"
        places = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        command = [self.programs / "helm", *arguments]
        return run(command, environment={"KUBECONFIG": str(self.kubeconfig), **places}, timeout_s=timeout_s)

    def apply(self, objects: Objects, *, namespace: str | None = None) -> str:
        """Applies objects; returns kubectl's output."""
        place = [] if namespace is None else [f"--namespace={namespace}"]
        return self.kubectl("apply", *place, "--filename=-", stdin=_as_yaml(objects))

    def delete(self, objects: Objects, *, namespace: str | None = None) -> str:
        """Deletes objects and waits until they are gone."""
        place = [] if namespace is None else [f"--namespace={namespace}"]
        return self.kubectl("delete", *place, "--ignore-not-found", "--filename=-", stdin=_as_yaml(objects))

    def execute(self, namespace: str, pod: str, *command: str, container: str | None = None) -> str:
        """Runs a command in a container of a pod; returns its output."""
        where = [] if container is None else [f"--container={container}"]
        return self.kubectl("exec", f"--namespace={namespace}", pod, *where, "--", *command)

    def logs(self, namespace: str, pod: str, *arguments: str) -> str:
        """The logs of a pod."""
        return self.kubectl("logs", f"--namespace={namespace}", pod, "--all-containers", *arguments)

    def forward(self, host: str, port: int, *, node: int = 0) -> int:
        """A port of 127.0.0.1 that forwards to a pod's or a Service's address and port, as seen from that
        node."""
        key = (self.nodes[node].name, host, port)
        if key not in self._forwards:
            local_port = _free_port()
            self._forward(*key, local_port)
            self._forwards[key] = local_port
        return self._forwards[key]

    def _forward(self, namespace: str, host: str, port: int, local_port: int) -> None:
        self.processes.start(
            f"forward-{local_port}",
            [
                *(sys.executable, "-m", "tests.kubernetes.testbed.forward"),
                *(f"127.0.0.1:{local_port}", f"/run/netns/{namespace}", f"{host}:{port}"),
            ],
            node=None,
            cgroup=f"{self.layout.cgroup}/control-plane",
        )
        wait_for(lambda: _listens(local_port), timeout_s=READY_TIMEOUT_S, what=f"{host}:{port} is forwarded")

    # Images

    def load_image(self, archive: Path) -> None:
        """Loads the images of an archive in the format of `docker save` on every node."""
        with ThreadPoolExecutor(len(self.nodes)) as workers:
            list(workers.map(lambda node: node.load(archive), self.nodes))

    def tag_image(self, image: str, name: str) -> None:
        """Gives an image on every node one more name."""
        for node in self.nodes:
            node.tag_image(image, name)

    def load_project_images(self, targets: Sequence[str]) -> dict[str, str]:
        """Builds these targets of the `Dockerfile` from the present sources and loads them on every node;
        returns their names by target. Running pods are not changed."""
        for archive in project_images(targets).values():
            self.load_image(archive)
        return {target: image_name(target) for target in targets}

    @property
    def base_image(self) -> str:
        """The name of an image with Python and a shell on every node, for pods of tests."""
        return BASE_IMAGE

    # Waiting and inspecting

    def wait(
        self,
        condition: Callable[[], Any],
        timeout_s: float = READY_TIMEOUT_S,
        what: str = "the condition holds",
    ) -> Any:
        """Waits until `condition` is true; returns its value. TestbedError with `what` after `timeout_s`. A
        condition that cannot reach the API server, does not find an object, or runs a command that fails
        counts as not true; the last failed command is the cause of the error."""
        failed: TestbedError | None = None

        def guarded() -> Any:
            nonlocal failed
            try:
                return condition()
            except TestbedError as error:
                failed = error
                return None
            except client.ApiException as error:
                if error.status in (404, 409, 429) or error.status >= 500:
                    return None
                raise
            except (OSError, HTTPError):
                return None

        try:
            return wait_for(guarded, timeout_s=timeout_s, what=what, poll_s=POLL_S)
        except TestbedError as error:
            raise error from failed

    def wait_pod(
        self, namespace: str, pod: str, *, phase: str = "Ready", timeout_s: float = READY_TIMEOUT_S
    ) -> Any:
        """Waits until the pod is Ready, or in the phase Running, Succeeded or Failed; returns the pod."""

        def found() -> Any:
            seen = self.core.read_namespaced_pod(pod, namespace)
            if phase == "Ready":
                conditions = seen.status.conditions or []
                there = any(each.type == "Ready" and each.status == "True" for each in conditions)
            else:
                there = seen.status.phase == phase
            return seen if there else None

        return self.wait(found, timeout_s, f"pod {namespace}/{pod} is {phase}")

    def _all_ready(self) -> bool:
        ready = [
            any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or [])
            for node in self.core.list_node().items
        ]
        return len(ready) == len(self.nodes) and all(ready)

    def writes(self) -> list[dict[str, Any]]:
        """Every write in the API server's audit log, in order, except those of kubelets (`verb`, `user`,
        `objectRef`, `responseStatus`, `requestReceivedTimestamp`, …)."""
        lines = self.layout.audit_log.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]  # the last may be half written

    def collect(self, folder: Path) -> Path:
        """Writes diagnostics of a failure into a folder."""
        return diagnostics.collect(self.layout, self.kubectl, folder)

    # Faults

    def node(self, name: str) -> Node:
        """The node of this name, as in `pod.spec.node_name`."""
        return next(node for node in self.nodes if node.name == name)

    def container_pids(self, namespace: str, pod: str, container: str) -> list[int]:
        """The process ids of a container outside of it, its first process first."""
        seen = self.core.read_namespaced_pod(pod, namespace)
        statuses = [*(seen.status.container_statuses or []), *(seen.status.init_container_statuses or [])]
        ids = [each.container_id for each in statuses if each.name == container and each.container_id]
        if not ids:
            raise TestbedError(f"pod {namespace}/{pod} runs no container {container}")
        wanted = ids[0].rpartition("/")[2]
        top = process_hierarchy() / self.node(seen.spec.node_name).layout.cgroup.strip("/")
        found = sorted(top.rglob(wanted))
        return sorted(pids_below(found[0])) if found else []

    def kill_container(
        self, namespace: str, pod: str, container: str, number: signal.Signals = signal.SIGKILL
    ) -> int:
        """Sends a signal, by default SIGKILL, to the first process of a container; returns its id outside of
        it."""
        pids = self.container_pids(namespace, pod, container)
        if not pids:
            raise TestbedError(f"container {container} of pod {namespace}/{pod} has no process")
        self.processes.signal_in(self.layout.cgroup, pids[0], number)
        return pids[0]


def _as_yaml(objects: Objects) -> str:
    if isinstance(objects, str):
        return objects
    documents = [objects] if isinstance(objects, Mapping) else list(objects)
    return str(yaml.safe_dump_all([dict(document) for document in documents], sort_keys=False))


def _free_port() -> int:
    """A port of 127.0.0.1. The kernel gives those of other tests to no outgoing connection meanwhile."""
    with contextlib.suppress(AssertionError):
        return free_port("127.0.0.1", beside=())
    with socket.socket() as probe:  # more than a test run has for itself
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def failure_folder(name: str) -> Path:
    """The folder for diagnostics of a failure: `.cache/kubernetes/failures` holds the last ten."""
    top = cache_folder() / "failures"
    top.mkdir(parents=True, exist_ok=True)
    return top / name
