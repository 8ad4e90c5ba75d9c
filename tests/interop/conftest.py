"""Fixtures of the interoperability tests. Each test runs against an EpochMQ cluster (`ours`). In the soak
run, and with EPOCHMQ_INTEROP_ORACLE=1, it also runs against RocketMQ itself (`java`), which proves the test,
against three replicas under three controllers (`replicas`), and against EpochMQ's broker under RocketMQ's
nameserver and the other way round. Tests of clients also run against EpochMQ with mutual TLS, users and
rights (`secured`), those of one file in every run. EPOCHMQ_INTEROP_ORACLE may also list the kinds to run,
among them RocketMQ with the same users (`java-users`).

The scenarios of the Java client run with the client of the release in use, and in the soak with that of the
newest release that `java_env` knows, too."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet  # pytest exports no name for what `pytest.param` returns

from tests.interop.java_cluster import JavaCluster, OurBrokerCluster, OurNameserverCluster
from tests.interop.java_env import (
    NEWEST,
    REFERENCE,
    RELEASES,
    JavaMissingError,
    Release,
    in_use,
    java_library,
    using,
)
from tests.interop.replicated_cluster import ReplicatedCluster
from tests.interop.scenarios import DriverRun, ScenarioReport, run_scenarios
from tests.interop.secured_cluster import JavaUsersCluster, SecuredCluster
from tests.support.cluster import Cluster, OurCluster
from tests.support.compatibility import names_newest, passed_line
from tests.support.release_matrix import release_of, result_line
from tests.support.tls import tls_settings

CLUSTERS: dict[str, type[Cluster]] = {
    "ours": OurCluster,
    "java": JavaCluster,
    "replicas": ReplicatedCluster,
    "our-broker": OurBrokerCluster,
    "our-nameserver": OurNameserverCluster,
    "secured": SecuredCluster,
    "java-users": JavaUsersCluster,
}
WITH_USERS = {"secured", "java-users"}
"""The kinds of clusters whose brokers check users."""
QUICK_CHECKS = {
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 2000,
    "transactionCheckMax": 5,
    "transactionOpBatchInterval": 200,
}
"""Transactions are checked after seconds instead of half a minute. With RocketMQ, op messages must be written
sooner than that: it asks a producer again while the end of its transaction waits for an op message."""
COMPATIBILITY = os.environ.get("EPOCHMQ_COMPATIBILITY", "")
"""The file that lists the tests which passed (`tests.support.compatibility`)."""
MATRIX = os.environ.get("EPOCHMQ_MATRIX", "")
"""The file that lists all tests, and which of them passed (`tests.support.release_matrix`)."""
FOLDER = Path(__file__).resolve().parent
FEATURES = {"enablePropertyFilter": True, "recallMessageEnable": True}
"""Features that RocketMQ switches on by a key."""
ORACLE = os.environ.get("EPOCHMQ_INTEROP_ORACLE", "")


def _kinds(names: Iterable[str], *, in_every_run: Iterable[str] = ("ours",)) -> list[ParameterSet]:
    """The kinds of clusters among `names` that are asked for; those not for every run are in the soak run.
    RocketMQ's broker with users is asked for by its name only."""
    return [
        pytest.param(kind, marks=() if ORACLE or kind in in_every_run else pytest.mark.soak)
        for kind in names
        if kind in ORACLE.split(",") or (ORACLE in ("", "1") and kind != "java-users")
    ]


CLIENT_KINDS = _kinds(CLUSTERS)
"""The kinds of clusters that tests of clients run against."""
KINDS = _kinds(kind for kind in CLUSTERS if kind not in WITH_USERS)
"""The same for all other tests."""
CLIENT_FILES = ("test_java_client_", "test_go_client", "test_cpp_client")
"""Prefixes of the files with tests of clients."""
SECURED_FILE = "test_java_client_consume"
"""The one whose tests run against the secured cluster in every run."""
WITHOUT_JAVA = {"ours", "replicas", "secured"}
"""The kinds of clusters that need no Java."""
CLIENTS_OF_NEWEST = {"ours", "replicas"}
"""The kinds of clusters that the newest release's client runs against, too."""


IN_THE_SOAK = () if ORACLE else (pytest.mark.soak,)
"""The marks of tests with the newest release, which run after those with the release in use."""
EACH_RELEASE = [
    pytest.param(release, marks=IN_THE_SOAK if release is NEWEST else (), id=release.version)
    for release in RELEASES
]
"""The releases, for fixtures with one of them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chooses the clusters of a test, and for a test of a driver's report the clients of both releases."""
    kinds = _kinds_of(metafunc.module.__name__.rpartition(".")[2])
    runs = [name for name in ("driver_run", "binary_run") if name in metafunc.fixturenames]
    if runs:
        metafunc.parametrize(("cluster", *runs), _clusters_and_clients(kinds), indirect=True, scope="session")
    elif "cluster" in metafunc.fixturenames:
        metafunc.parametrize("cluster", kinds, indirect=True, scope="session")


def _kinds_of(file: str) -> list[ParameterSet]:
    """The kinds of clusters that the tests of a file run against."""
    if file == SECURED_FILE:
        return _kinds(CLUSTERS, in_every_run=("ours", "secured"))
    return CLIENT_KINDS if file.startswith(CLIENT_FILES) else KINDS


def _clusters_and_clients(kinds: Sequence[ParameterSet]) -> list[ParameterSet]:
    """Each of these kinds of clusters with the client of the release in use, and in the soak with the newest
    client where that is another one."""
    pairs = []
    for kind in kinds:
        (name,) = kind.values
        pairs.append(pytest.param(name, in_use(), marks=kind.marks, id=str(name)))
        if name in CLIENTS_OF_NEWEST and in_use() != NEWEST:
            own = f"{name}@{NEWEST.version}"  # a cluster of its own, so that topics have the same names
            marks = (*kind.marks, *IN_THE_SOAK)
            pairs.append(pytest.param(own, NEWEST, marks=marks, id=f"{name}-{NEWEST.version}"))
    return pairs


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marks that name the Java scenario of a test."""
    config.addinivalue_line(
        "markers", "scenario(name): the Java client scenario whose report the test checks"
    )
    config.addinivalue_line(
        "markers", "not_secured(reason): why the test cannot run against a cluster with users"
    )
    config.addinivalue_line("markers", "binary_scenario(name): the same, by a client with binary headers")


def _params(item: pytest.Item) -> dict[str, object]:
    """The parameters of a test; none of one that is not parametrized."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def _kept_from_secured(item: pytest.Item) -> str | None:
    """Why a test cannot run against a cluster with users; None if it can, or has another one."""
    mark = item.get_closest_marker("not_secured")
    return mark.args[0] if mark is not None and _params(item).get("cluster") in WITH_USERS else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs Java on a machine without it, and names what is missing. Skips a test that
    cannot run against the secured cluster, too."""
    if (reason := _kept_from_secured(item)) is not None:
        pytest.skip(reason)
    needs_java = item.get_closest_marker("java") is not None
    kinds = {str(_params(item).get(name, "ours")).partition("@")[0] for name in ("cluster", "guarded")}
    if needs_java or not kinds <= WITHOUT_JAVA:
        release = NEWEST if names_newest(item.nodeid, NEWEST.version) else in_use()
        try:
            with using(release):
                java_library()
        except JavaMissingError as missing:
            pytest.skip(str(missing))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running nameserver and broker, shared; each test uses topics and groups of its own."""
    directory = tmp_path_factory.mktemp(f"cluster-{request.param}")
    tls = tls_settings(directory / "tls")
    broker = {**tls, **QUICK_CHECKS, **FEATURES}
    kind, _, _ = request.param.partition("@")
    made = CLUSTERS[kind](directory, broker=broker, nameserver=tls)
    made.start()
    yield made
    # The store is not needed any more, and RocketMQ takes twenty seconds to stop.
    made.abandon()


@pytest.fixture(scope="session")
def driver_run(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> DriverRun:
    """Runs every Java client scenario of the selected tests once, in one JVM, against `cluster`, with the
    client of the release that is this fixture's parameter."""
    return _run(request, "scenario", cluster, tmp_path_factory.mktemp("driver"))


def _run(
    request: pytest.FixtureRequest, mark: str, cluster: Cluster, home: Path, jvm: Sequence[str] = ()
) -> DriverRun:
    """Runs the scenarios that the selected tests name in this mark, if they want this fixture's release."""
    release: Release = request.param
    wanted = {
        found.args[0]
        for item in request.session.items
        if isinstance(item, pytest.Function) and _params(item).get(request.fixturename) == release
        if _kept_from_secured(item) is None
        for found in item.iter_markers(mark)
    }
    with using(release):
        return run_scenarios(cluster, sorted(wanted), home, jvm=jvm)


@pytest.fixture
def report(request: pytest.FixtureRequest, cluster: Cluster, driver_run: DriverRun) -> ScenarioReport:
    """The report of the scenario that the test's `scenario` mark names."""
    mark = request.node.get_closest_marker("scenario")
    assert mark is not None, "a test with a report names its scenario"
    return driver_run.of(mark.args[0])


# The client writes RocketMQ's binary headers instead of JSON, and compresses by LZ4 instead of zlib.
BINARY_JVM = (
    "-Drocketmq.serialize.type=ROCKETMQ",
    "-Drocketmq.message.compressType=LZ4",
    "-Depochmq.interop.prefix=binary_",
)


@pytest.fixture(scope="session")
def binary_run(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> DriverRun:
    """Runs the scenarios of `binary_scenario` marks, by a client with binary headers."""
    return _run(request, "binary_scenario", cluster, tmp_path_factory.mktemp("binary-driver"), BINARY_JVM)


@pytest.fixture
def binary_report(request: pytest.FixtureRequest, cluster: Cluster, binary_run: DriverRun) -> ScenarioReport:
    """The report of the scenario that the test's `binary_scenario` mark names."""
    mark = request.node.get_closest_marker("binary_scenario")
    assert mark is not None, "a test with a report names its scenario"
    return binary_run.of(mark.args[0])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Records the tests that this run has."""
    if MATRIX:
        _append_results(session.items, has_passed=False)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Records the tests that this run leaves out."""
    if MATRIX:
        _append_results(items, has_passed=False)


def _append_results(items: Iterable[pytest.Item], *, has_passed: bool) -> None:
    """Appends a line for each test of this folder to the file of results."""
    with Path(MATRIX).open("a", encoding="utf-8") as file:
        for item in items:
            if FOLDER in item.path.parents:
                release = release_of(item.nodeid, in_use().version, REFERENCE.version, NEWEST.version)
                file.write(result_line(item.nodeid, release, has_passed=has_passed) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the end of the cluster's logs to a failure, and records a test that passed."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if COMPATIBILITY and report.when == "call" and report.passed:
        with Path(COMPATIBILITY).open("a", encoding="utf-8") as file:
            file.write(passed_line(item.nodeid, in_use().version, NEWEST.version) + "\n")
    if MATRIX and report.when == "call" and report.passed:
        _append_results([item], has_passed=True)
    if report.failed and isinstance(cluster, Cluster):
        report.sections.append(("cluster logs", cluster.logs()))
    return report
