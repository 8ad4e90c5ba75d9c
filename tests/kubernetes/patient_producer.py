"""A RocketMQ producer with its default settings on the cluster."""

from __future__ import annotations

from tests.kubernetes.operator_process import READY_TIMEOUT_S
from tests.kubernetes.testbed.clients import java_command
from tests.kubernetes.testbed.pods import claim, pod
from tests.kubernetes.traffic import CLIENT_TIMEOUT_S, Traffic

NAME = "patient"


class ProducerWithDefaults:
    """A Java producer with default settings: it fetches routes every 30 s and retries twice."""

    def __init__(self, traffic: Traffic, image: str) -> None:
        cluster, namespace = traffic.groups.cluster, traffic.groups.namespace
        program = java_command("PatientProducer", f"{traffic.group}-nameserver:9876")
        command = ["sh", "-c", 'exec "$@" > /journal/lines', "sh", *program]
        client = pod(NAME, image, command=command, claims={"/journal": NAME})
        cluster.apply([claim(NAME), client], namespace=namespace)
        cluster.wait_pod(namespace, NAME, timeout_s=CLIENT_TIMEOUT_S)
        self._journal = traffic.volume(NAME) / "lines"
        self._cluster = cluster

    def sent(self) -> list[tuple[int, int, str]]:
        """The number, the duration (ms) and the result of each send."""
        found = []
        for line in self._journal.read_text().splitlines(keepends=True):
            if line.startswith("sent ") and line.endswith("\n"):
                _, number, took_ms, outcome = line.split(maxsplit=3)
                found.append((int(number), int(took_ms), outcome.strip()))
        return found

    def wait(self, more: int) -> None:
        """Waits until it has sent this number of further messages."""
        wanted = len(self.sent()) + more
        self._cluster.wait(lambda: len(self.sent()) > wanted, READY_TIMEOUT_S, f"{more} messages are sent")
