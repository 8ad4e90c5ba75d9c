"""`epochmq up --admin`: every pod has an admin sidecar, as on Kubernetes."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.up_run import OneBrokerRun, alive, kill_supervisor
from tests.support.process import wait_holds, wait_until


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OneBrokerRun]:
    made = OneBrokerRun(tmp_path)
    yield made
    made.here("down")


def ask(address: str, path: str, change: Any = None, token: str = "") -> tuple[int, Any]:
    """Status and body of a sidecar's response to a GET or, with a change, to a PUT."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = None if change is None else json.dumps(change).encode()
    method = "GET" if body is None else "PUT"
    request = urllib.request.Request(f"http://{address}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def responds(address: str) -> bool:
    """Whether a sidecar answers at the address."""
    try:
        return ask(address, "/live")[0] == 200
    except OSError:
        return False


def sidecar_pid(run: OneBrokerRun, pod: str) -> int | None:
    """The process id of a pod's sidecar."""
    records = json.loads((run.state / "pods.json").read_text())["pods"]
    (process,) = [record["sidecar"] for record in records if record["pod"] == pod]
    return None if process is None else process["pid"]


def test_every_pod_has_a_sidecar_that_starts_and_stops_with_it(run: OneBrokerRun) -> None:
    assert run.try_up("--admin").returncode == 0
    found = run.status()
    (replica,) = found["brokerGroups"][0]["replicas"]
    admin = replica["adminAddress"]
    assert admin == replica["address"].replace(":10911", ":9880")
    wait_until(lambda: responds(admin), what="the sidecar answers")

    def check() -> None:
        status, state = ask(admin, "/v1/state")
        assert (status, state["brokerName"], state["role"], state["ready"]) == (
            200,
            "orders-a",
            "master",
            True,
        )

    wait_holds(check)
    (nameserver,) = found["nameserverPods"]
    wait_until(lambda: responds(nameserver["adminAddress"]), what="the nameserver's sidecar answers, too")

    # A change needs the token of this run, which other users cannot read.
    token_file = run.state / "admin-token"
    assert token_file.stat().st_mode & 0o777 == 0o600
    level = {"level": "DEBUG", "logger": "epochmq_broker.membership.registration"}
    assert ask(admin, "/v1/log-level", level)[0] == 401
    assert ask(admin, "/v1/log-level", level, token_file.read_text().strip())[0] == 200

    # A killed sidecar is started again; its broker is not affected.
    pid = sidecar_pid(run, replica["pod"])
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sidecar_pid(run, replica["pod"]) not in (pid, None), what="another sidecar")
    wait_until(lambda: responds(admin), what="it answers")
    assert run.status()["brokerGroups"][0]["replicas"][0]["pid"] == replica["pid"]

    pids = [sidecar_pid(run, pod) for pod in (replica["pod"], nameserver["pod"])]
    run.ok("down")
    assert not [pid for pid in pids if pid is not None and alive(pid)]


def test_the_next_run_stops_the_sidecars_of_a_killed_supervisor(run: OneBrokerRun) -> None:
    assert run.try_up("--admin").returncode == 0
    wait_until(lambda: sidecar_pid(run, "orders-broker-0") is not None, what="the sidecar")
    left = sidecar_pid(run, "orders-broker-0")
    assert left is not None
    kill_supervisor(run)
    assert "orders-broker-0, which an earlier supervisor had left" in run.ok("down")
    assert not alive(left)


def test_a_run_without_sidecars_rejects_admin(run: OneBrokerRun) -> None:
    assert run.try_up().returncode == 0
    assert run.status()["brokerGroups"][0]["replicas"][0]["adminAddress"] is None
    failed = run.try_up("--admin")
    assert failed.returncode == 2
    assert "was started without --admin; run down first" in failed.stderr


def test_a_state_directory_with_too_long_a_path_for_a_socket_is_rejected(tmp_path: Path) -> None:
    deep = tmp_path / ("a-very-long-name-" * 5)
    deep.mkdir()
    failed = OneBrokerRun(deep).try_up("--admin")
    assert failed.returncode != 0
    assert "choose a shorter --state" in failed.stderr
    assert "Traceback" not in failed.stderr
