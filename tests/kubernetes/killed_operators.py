"""Runs operators of which each is killed after its first write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes.client import ApiException

from tests.kubernetes.operator_forks import OperatorForks, operator_forks
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, operator
from tests.kubernetes.write_limit_proxy import write_limit_proxy

DEATHS_MAX = 150


class KilledOperators:
    """A sequence of operators of a namespace. Each is killed after its first write other than to a lease. A
    request to a sidecar counts as a write, but not its repetition by a later operator."""

    def __init__(self, groups: Groups, folder: Path) -> None:
        self.groups = groups
        self.chosen: dict[str, object] = {}
        """Settings of the operators that differ from the tests'."""
        self.died: list[str] = []
        """The last write of each operator."""
        self._folder = folder
        self._asked: set[tuple[str, bytes]] = set()
        """The requests to sidecars after which an operator was killed."""

    def until(self, over: Callable[[], bool]) -> list[str]:
        """Runs operators until the condition holds; returns their writes."""
        before = len(self.died)
        with operator_forks() as forks:
            while not over():
                assert len(self.died) - before < DEATHS_MAX, self.died
                self._live_and_die(over, forks)
        died = self.died[before:]
        print(f"{len(died)} deaths: {dict(Counter(map(_kind, died)))}", flush=True)
        return died

    def _live_and_die(self, over: Callable[[], bool], forks: OperatorForks) -> None:
        cluster, chosen = self.groups.cluster, self.chosen
        with (
            write_limit_proxy(cluster.kubeconfig, self._folder, 1, self._asked) as (way, kubeconfig),
            operator(
                cluster,
                self.groups.namespace,
                self._folder,
                kubeconfig=kubeconfig,
                chosen=chosen,
                forks=forks,
            ) as victim,
        ):
            way.on_limit = victim.kill
            cluster.wait(lambda: victim.ended or over(), READY_TIMEOUT_S, f"a write after {self.died[-3:]}")
        if way.last:
            self.died.append(way.last)
        self.groups.forget_lease()

    def died_each_time(self) -> None:
        """Fails if an operator wrote more than once."""
        writes = self.groups.writes()
        assert len(writes) == len(self.died), [f"{one['verb']} {one['requestURI']}" for one in writes]


def _kind(write: str) -> str:
    """The kind of write: the method, the plural of the resource, and the subresource."""
    method, _, path = write.partition(" ")
    parts = path.partition("/namespaces/")[2].split("/")
    return f"{method} {'/'.join((*parts[1:2], *parts[3:]))}"


def resource(groups: Groups, kind: str, name: str) -> dict[str, Any]:
    """A group, {} if it does not exist; by the client library, without kubectl."""
    ask = groups.cluster.custom.get_namespaced_custom_object
    try:
        found: dict[str, Any] = ask("epochmq.io", "v1alpha1", groups.namespace, f"{kind.lower()}s", name)
    except ApiException as error:
        if error.status != 404:
            raise
        return {}
    return found


def ready(groups: Groups, count: int, controllers: str) -> Callable[[], bool]:
    """Whether the group `orders` has this number of replicas, and it and its controllers are ready with
    finished plans."""

    def done(found: dict[str, Any]) -> bool:
        status = found.get("status") or {}
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("phase") == "Ready"
            and bool((status.get("plan") or {}).get("finished"))
        )

    def both() -> bool:
        group = resource(groups, "BrokerGroup", "orders")
        quorum = resource(groups, "ControllerGroup", controllers)
        return bool(
            group
            and quorum
            and done(group)
            and done(quorum)
            and group["status"].get("ready") == f"{count}/{count}"
        )

    return both
