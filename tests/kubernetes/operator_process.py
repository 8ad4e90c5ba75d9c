"""Runs an operator as a process of this machine, for one namespace of the tests' cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from epochmq_operator.crd import definition
from epochmq_operator.pod_rendering import ADMIN_PORT
from epochmq_operator.resources import KINDS
from tests.kubernetes.operator_forks import ForkedOperator, OperatorForks
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import image_name

READY_TIMEOUT_S = 300
"""The time to create a group and make it ready, on two cores that others use, too."""
WRITERS_AGENT = "epochmq-operator"
LEASE = "epochmq-operator"
NO_NODE = {"nodeSelector": {"example.org/there-is": "no-such-node"}}
"""A spec whose pods are never scheduled, and so cost nothing."""


def define(cluster: Cluster) -> None:
    """Installs the CustomResourceDefinitions."""
    cluster.apply([definition(kind) for kind in KINDS])
    for kind in KINDS:
        name = definition(kind)["metadata"]["name"]
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=240s")


def run_epochmq(*arguments: str) -> str:
    """Runs the command and returns its output; fails with its error output."""
    command = [sys.executable, "-m", "epochmq", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"epochmq {' '.join(arguments)}: {done.stderr}"
    return done.stdout


class Operator:
    """A running operator. Its log is in a file of its own."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        folder: Path,
        *more: str,
        kubeconfig: Path | None = None,
        chosen: Mapping[str, object] | None = None,
        forks: OperatorForks | None = None,
    ) -> None:
        settings = {
            "kubeconfig": str(kubeconfig or cluster.kubeconfig),
            "namespaces": [namespace, *more],
            "operatorNamespace": namespace,
            "brokerImage": image_name("broker"),
            "controllerImage": image_name("controller"),
            "metricsAddress": "127.0.0.1",
            "metricsPort": 0,
            "sidecars": "proxy",
            **(chosen or {}),
        }
        number = len(list(folder.glob("operator-*.json")))
        config = folder / f"operator-{number}.json"
        config.write_text(json.dumps(settings))
        self.log = folder / f"operator-{number}.log"
        self._process: subprocess.Popen[bytes] | ForkedOperator
        if forks is not None:
            self._process = forks.start(config, self.log)
            return
        with self.log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "epochmq", "operator", "--config", str(config)],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def kill(self) -> None:
        """Kills the operator by SIGKILL."""
        self._process.kill()
        self._process.wait(READY_TIMEOUT_S)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> int:
        """Ends the operator by SIGTERM; returns its exit code. Only for one that was not forked."""
        assert isinstance(self._process, subprocess.Popen)
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(READY_TIMEOUT_S)

    @property
    def memory_bytes(self) -> int:
        """Its resident memory."""
        text = Path(f"/proc/{self._process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def operator(
    cluster: Cluster,
    namespace: str,
    folder: Path,
    *more: str,
    kubeconfig: Path | None = None,
    chosen: Mapping[str, object] | None = None,
    forks: OperatorForks | None = None,
) -> Iterator[Operator]:
    """An operator for the length of a block. It also manages the `more` namespaces. `chosen` are other
    settings. With `forks` it is forked, which is faster."""
    started = Operator(cluster, namespace, folder, *more, kubeconfig=kubeconfig, chosen=chosen, forks=forks)
    try:
        yield started
    finally:
        started.kill()


class Groups:
    """The groups of a namespace, as users see them."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        """kubectl apply."""
        self.cluster.apply(
            {
                "apiVersion": "epochmq.io/v1alpha1",
                "kind": kind,
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"imagePullPolicy": "Never", **spec},
            }
        )

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """The resource, {} if it does not exist."""
        text = self.cluster.kubectl(
            "get", kind, name, "--namespace", self.namespace, "--ignore-not-found", "--output=json"
        )
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def volume(self, claim: str) -> Path:
        """The directory of a claim's volume on this machine."""
        found = self.get("PersistentVolumeClaim", claim)
        return self.cluster.layout.volumes / str(found["spec"]["volumeName"])

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Its status."""
        found: dict[str, Any] = self.get(kind, name).get("status") or {}
        return found

    def condition(self, kind: str, name: str, wanted: str) -> dict[str, Any]:
        """One of its conditions, {} without it."""
        conditions = self.status(kind, name).get("conditions") or []
        return next((one for one in conditions if one["type"] == wanted), {})

    def wait(self, kind: str, name: str, timeout_s: float = READY_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Waits until the status has these fields; returns the status."""

        def found() -> dict[str, Any] | None:
            status = self.status(kind, name)
            return status if all(status.get(key) == value for key, value in fields.items()) else None

        what = f"{kind} {name} of {self.namespace} has {fields}"
        status: dict[str, Any] = self.cluster.wait(found, timeout_s=timeout_s, what=what)
        return status

    def ready(self, name: str, replicas: int) -> dict[str, Any]:
        """Waits until a broker group is ready with this number of replicas; returns its status."""
        return self.wait("BrokerGroup", name, phase="Ready", ready=f"{replicas}/{replicas}")

    def writes(self) -> list[dict[str, Any]]:
        """The successful writes of the operator in this namespace, without leases."""
        return [
            one
            for one in self.cluster.writes()
            if str(one.get("userAgent", "")).startswith(WRITERS_AGENT)
            and one.get("objectRef", {}).get("namespace") == self.namespace
            and one["objectRef"].get("resource") != "leases"
            and one.get("responseStatus", {}).get("code", 0) < 300
        ]

    def settled(self, quiet_s: float = 5) -> int:
        """Waits until there was no write for this time; returns the number of writes."""

        def still() -> bool:
            before = len(self.writes())
            time.sleep(quiet_s)  # the condition is that nothing happens
            return len(self.writes()) == before

        self.cluster.wait(still, timeout_s=300, what="the operator has nothing left to write")
        return len(self.writes())

    def made(self) -> list[str]:
        """The objects that the operator created here, once for each time."""
        return sorted(
            f"{one['objectRef']['resource']}/{one['objectRef'].get('name')}"
            for one in self.writes()
            if one["responseStatus"]["code"] == 201 and one["objectRef"]["resource"] != "events"
        )

    def made_once(self) -> None:
        """Fails if the operator created an object twice."""
        made = self.made()
        assert made == sorted(set(made))

    def forget_lease(self) -> None:
        """Removes the holder of the Lease, as if the Lease of a killed operator had expired."""
        self.cluster.kubectl(
            "delete", "lease", LEASE, "--namespace", self.namespace, "--ignore-not-found", "--wait=true"
        )

    def state(self, pod: str) -> dict[str, Any]:
        """The state that a replica's sidecar reports; {} if it does not respond."""
        ask = self.cluster.core.connect_get_namespaced_pod_proxy_with_path
        try:
            response = ask(
                f"{pod}:{ADMIN_PORT}", self.namespace, "v1/state", _preload_content=False, _request_timeout=10
            )
            found: dict[str, Any] = json.loads(response.data)
        except (ApiException, HTTPError, ValueError):
            return {}
        return found

    def broker_ids(self, group: str, count: int) -> dict[str, int]:
        """The broker ids that the replicas report, by pod."""
        found = {}
        for ordinal in range(count):
            pod = f"{group}-broker-{ordinal}"
            text = self.cluster.execute(
                self.namespace, pod, "epochmq", "admin-call", "state", container="broker"
            )
            found[pod] = json.loads(text)["brokerId"]
        return found
