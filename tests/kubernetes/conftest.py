"""Fixtures of the tests that need a real Kubernetes: one cluster for all of them, a namespace for each. The
tests skip, with the reason, where no cluster can run. With EPOCHMQ_CLUSTER they use a running cluster."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.operator_process import Groups, Operator, define, operator
from tests.kubernetes.testbed.cache import say
from tests.kubernetes.testbed.clients import NAME as CLIENTS
from tests.kubernetes.testbed.clients import clients_image
from tests.kubernetes.testbed.cluster import Cluster, failure_folder
from tests.kubernetes.testbed.images import image_name
from tests.kubernetes.testbed.prerequisites import MissingPrerequisiteError

TARGETS = ("broker", "controller", "operator")
FAILURES_KEPT = 10
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}

FIRST_USE_S = 1800
"""The first test on a machine waits until Kubernetes and the images are built."""

_numbers = itertools.count(1)
_running: list[Cluster] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises the timeout of all tests, because the first one may have to build."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(FIRST_USE_S))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of two nodes with the images `broker`, `controller` and `operator` on both
    (`image_name(target)`). All tests share it; each uses its own namespaces."""
    name = os.environ.get("EPOCHMQ_CLUSTER")
    if name:
        attached = Cluster.attach(name)
        _running.append(attached)
        yield attached
        _running.remove(attached)
        return
    try:
        started = Cluster.start(f"test-{os.getpid()}", targets=TARGETS)
    except MissingPrerequisiteError as missing:
        pytest.skip(str(missing))
    _running.append(started)
    try:
        yield started
    finally:
        _running.remove(started)
        started.stop()


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace that enforces the "restricted" Pod Security Standard; it is deleted after the test."""
    with namespace_for(cluster, request.node.name) as name:
        yield name


@contextlib.contextmanager
def namespace_for(cluster: Cluster, what: str, *, length: int = 0) -> Iterator[str]:
    """Such a namespace for the length of a block, named after its purpose; the name has at least `length`
    characters."""
    words = re.sub(r"[^a-z0-9]+", "-", what.removeprefix("test_").lower()).strip("-")
    number = f"-{os.getpid()}-{next(_numbers)}"
    name = words[:40].strip("-").ljust(length - len(number), "x") + number
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(RESTRICTED)}}
    )
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def release(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The name of a release in the test's namespace; it is uninstalled after the test."""
    name = f"epochmq-{uuid.uuid4().hex[:6]}"
    yield name
    cluster.helm("uninstall", name, "--namespace", namespace, "--ignore-not-found", "--wait")


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> None:
    """Installs the present CustomResourceDefinitions; the chart of another test may have installed others."""
    define(cluster)


@pytest.fixture
def groups(cluster: Cluster, namespace: str, definitions: None) -> Groups:
    """The groups of the test's namespace."""
    return Groups(cluster, namespace)


@pytest.fixture
def started(cluster: Cluster, namespace: str, definitions: None, tmp_path: Path) -> Iterator[Operator]:
    """An operator for the test's namespace."""
    with operator(cluster, namespace, tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def clients(cluster: Cluster) -> str:
    """The image with RocketMQ's clients, on every node."""
    try:
        archive = clients_image()
    except MissingPrerequisiteError as missing:
        pytest.skip(str(missing))
    cluster.load_image(archive)
    return image_name(CLIENTS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collects diagnostics of a failure before the test's namespace is deleted, and prints where they are."""
    report = yield
    if report.failed and _running:
        words = re.sub(r"[^\w.-]+", "-", item.nodeid.rpartition("/")[2])
        folder = failure_folder(f"{words}-{report.when}")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _running[-1].collect(folder)
            report.sections.append(("cluster", f"events, objects and logs: {folder}"))
        except Exception as error:  # report the failure itself in any case
            say(f"nothing kept of {item.nodeid}: {type(error).__name__}: {error}")
        folders = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in folders[:-FAILURES_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return report
