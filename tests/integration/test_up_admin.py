"""`epochmq up --admin`: every pod has its admin sidecar beside it, as it has on Kubernetes."""

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

from tests.integration.test_up import UP_S, Run, alive, kill_supervisor
from tests.support.process import wait_holds, wait_until


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.here("down")


def up(run: Run, *options: str) -> Any:
    """Detached; returns how it went."""
    return run.here("up", "-f", str(run.file), "--detach", "--timeout", str(UP_S), *options)


def ask(address: str, path: str, change: Any = None, token: str = "") -> tuple[int, Any]:
    """Status and answer of a sidecar; with a change, of a PUT of it."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = None if change is None else json.dumps(change).encode()
    method = "GET" if body is None else "PUT"
    request = urllib.request.Request(f"http://{address}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def answers(address: str) -> bool:
    """Whether somebody is there."""
    try:
        return ask(address, "/live")[0] == 200
    except OSError:
        return False


def sidecar_pid(run: Run, pod: str) -> int | None:
    """Of a pod's sidecar."""
    records = json.loads((run.state / "pods.json").read_text())["pods"]
    (process,) = [record["sidecar"] for record in records if record["pod"] == pod]
    return None if process is None else process["pid"]


def test_a_sidecar_stands_beside_every_pod_and_comes_and_goes_with_it(run: Run) -> None:
    assert up(run, "--admin").returncode == 0
    found = run.status()
    (replica,) = found["brokerGroups"][0]["replicas"]
    admin = replica["adminAddress"]
    assert admin == replica["address"].replace(":10911", ":9880")
    wait_until(lambda: answers(admin), what="the sidecar answers")

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
    wait_until(lambda: answers(nameserver["adminAddress"]), what="the nameserver's answers too")

    # What changes something needs the token of this run, which nobody else may read.
    token_file = run.state / "admin-token"
    assert token_file.stat().st_mode & 0o777 == 0o600
    level = {"level": "DEBUG", "logger": "epochmq_broker.registration"}
    assert ask(admin, "/v1/log-level", level)[0] == 401
    assert ask(admin, "/v1/log-level", level, token_file.read_text().strip())[0] == 200

    # One that is killed comes back; the broker beside it has noticed nothing.
    pid = sidecar_pid(run, replica["pod"])
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sidecar_pid(run, replica["pod"]) not in (pid, None), what="another sidecar")
    wait_until(lambda: answers(admin), what="it answers")
    assert run.status()["brokerGroups"][0]["replicas"][0]["pid"] == replica["pid"]

    pids = [sidecar_pid(run, pod) for pod in (replica["pod"], nameserver["pod"])]
    run.ok("down")
    assert not [pid for pid in pids if pid is not None and alive(pid)]


def test_a_supervisor_that_was_killed_leaves_no_sidecar_to_the_next_run(run: Run) -> None:
    assert up(run, "--admin").returncode == 0
    wait_until(lambda: sidecar_pid(run, "orders-broker-0") is not None, what="the sidecar")
    left = sidecar_pid(run, "orders-broker-0")
    assert left is not None
    kill_supervisor(run)
    assert "orders-broker-0, which an earlier supervisor had left" in run.ok("down")
    assert not alive(left)


def test_a_run_without_sidecars_says_so_when_they_are_wanted(run: Run) -> None:
    assert up(run).returncode == 0
    assert run.status()["brokerGroups"][0]["replicas"][0]["adminAddress"] is None
    refused = up(run, "--admin")
    assert refused.returncode == 2
    assert "was started without --admin; run down first" in refused.stderr


def test_a_state_directory_whose_path_has_no_room_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("a-very-long-name-" * 5)
    deep.mkdir()
    refused = up(Run(deep), "--admin")
    assert refused.returncode != 0
    assert "choose a shorter --state" in refused.stderr
    assert "Traceback" not in refused.stderr
