"""`epochmq up`, `status`, `produce`, `consume` and `down` as people type them, with real nameservers and
brokers. `test_up_foreground` tests `up` without `--detach`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.integration.up_run import (
    COMMAND,
    ONE_BROKER,
    TIMEOUT_S,
    UP_S,
    OneBrokerRun,
    alive,
    kill_supervisor,
    spoil,
    wait_healed,
)
from tests.support.process import wait_holds, wait_until


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OneBrokerRun]:
    made = OneBrokerRun(tmp_path)
    yield made
    made.here("down")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBrokerRun]:
    """A run that several tests share."""
    made = OneBrokerRun(tmp_path_factory.mktemp("up"))
    try:
        made.up()
        yield made
    finally:
        made.ok("down")


# a run, from up to down


def test_a_group_starts_serves_survives_a_kill_and_a_change_and_stops(run: OneBrokerRun) -> None:
    printed = run.up()
    assert "orders-nameserver-0: Ready" in printed
    assert "orders-broker-0: Ready" in printed
    assert f"topic create greetings --state {run.state}" in printed
    assert f"produce greetings 'hello' --state {run.state}" in printed

    assert run.ok("produce", "orders", "first").startswith("SEND_OK orders-a queue ")
    assert run.consume("--count", "1") == ["first"]

    # A second up of the same file is a no-op.
    before = run.pids()
    assert "nothing changed" in run.up()
    assert run.pids() == before

    # A broker that is killed comes back with its messages.
    os.kill(before[1], signal.SIGKILL)
    wait_healed(run, before[1])
    assert run.pids()[0] == before[0]
    run.ok("produce", "orders", "second")
    run.receive(["first", "second"], "g2")

    # `up` with a changed file prints the differences, and restarts only the pods concerned.
    before = run.pids()
    run.write(maxMessageSize=1000)
    assert "orders: spec.config.maxMessageSize: 1000 (was not set)" in run.up()
    after = run.pids()
    assert (after[0], after[1] != before[1]) == (before[0], True)
    rejected = run.here("produce", "orders", "x" * 2000)
    assert (rejected.returncode, rejected.stdout) == (1, "")
    assert "MESSAGE_ILLEGAL" in rejected.stderr

    # `down` stops everything in order, and keeps the data.
    printed = run.ok("down")
    assert printed.index("orders-broker-0: Stopped (exit status 0)") < printed.index(
        "orders-nameserver-0: Stopped"
    )
    assert not any(alive(pid) for pid in after)
    assert run.here("status").returncode == 3
    assert "nothing runs" in run.ok("down")
    run.up()
    run.receive(["first", "second"], "g3")


def test_status_as_json_has_the_shape_that_scripts_rely_on(shared: OneBrokerRun) -> None:
    wait_holds(lambda: check_status(shared))


def check_status(shared: OneBrokerRun) -> None:
    """Checks the status; repeated, because a broker that is starved for a moment is not ready."""
    found = shared.status()
    (nameserver,) = found["nameservers"]
    assert re.fullmatch(r"127\.\d+\.\d+\.1:9876", nameserver)
    assert found["controllers"] == []
    (group,) = found["brokerGroups"]
    (replica,) = group.pop("replicas")
    wanted: dict[str, object] = {
        "name": "orders",
        "brokerName": "orders-a",
        "cluster": "DefaultCluster",
        "phase": "Ready",
        "masterEpoch": None,
        "syncStateSet": [],
    }
    assert {key: group[key] for key in wanted} == wanted
    assert alive(replica["pid"])
    assert Path(replica["dataDir"]).joinpath("commitlog").is_dir()
    host = replica["address"].removesuffix(":10911")
    wanted = {
        "pod": "orders-broker-0",
        "brokerId": 0,
        "role": "master",
        "haAddress": f"{host}:10912",
        "adminAddress": None,
        "ready": True,
    }
    assert {key: replica[key] for key in wanted} == wanted
    assert host != nameserver.removesuffix(":9876")


def test_status_as_a_table_names_every_pod(shared: OneBrokerRun) -> None:
    wait_holds(lambda: check_table(shared))


def check_table(shared: OneBrokerRun) -> None:
    """Checks the table; repeated, as `check_status`."""
    lines = shared.ok("status").splitlines()
    assert lines[0].split()[:5] == ["POD", "ROLE", "ADDRESS", "PID", "STATE"]
    assert [line.split()[0] for line in lines[1:]] == ["orders-nameserver-0", "orders-broker-0"]
    assert lines[2].split()[1] == "master"
    assert all("Ready" in line for line in lines[1:])


# produce and consume


def test_lines_of_a_pipe_are_messages_and_are_read_in_any_format(shared: OneBrokerRun) -> None:
    lines = [f"line {number}" for number in range(300)]
    sent = shared.ok("produce", "piped", "--tags", "t1", "--keys", "k", "-o", "json", stdin="\n".join(lines))
    results = [json.loads(line) for line in sent.splitlines()]
    assert [result["status"] for result in results] == ["SEND_OK"] * 300
    assert {result["queueId"] for result in results} == {0, 1, 2, 3}

    read = shared.ok("consume", "piped", "--count", "300", "-o", "json", "--timeout", "120")
    messages = [json.loads(line) for line in read.splitlines()]
    assert sorted(message["body"] for message in messages) == sorted(lines)
    place = ("msgId", "brokerName", "queueId", "queueOffset", "offsetMsgId")
    sent_to, read_from = ({tuple(m[key] for key in place) for m in some} for some in (results, messages))
    assert sent_to == read_from
    assert {(message["tags"], message["keys"]) for message in messages} == {("t1", "k")}

    plain = shared.ok("consume", "piped", "--count", "300", "--group", "plain", "--timeout", "120")
    assert sorted(plain.splitlines()) == sorted(lines)


def test_bodies_keep_their_bytes(shared: OneBrokerRun) -> None:
    shared.ok("produce", "bytes", "grüße \u0001 \U0001f680")
    assert shared.ok("consume", "bytes", "--count", "1", "--timeout", "120") == "grüße \u0001 \U0001f680\n"


def test_a_consumer_group_continues_at_its_offset(shared: OneBrokerRun) -> None:
    shared.ok("produce", "steps", stdin="".join(f"{n}\n" for n in range(10)))
    first = shared.ok("consume", "steps", "--count", "4", "--timeout", "120").split()
    rest = shared.ok("consume", "steps", "--count", "6", "--timeout", "120").split()
    assert sorted(first + rest, key=int) == [str(n) for n in range(10)]
    none = shared.here("consume", "steps", "--timeout", "1")
    assert (none.returncode, none.stdout) == (1, "")
    assert "no message arrived for 1 s; 0 printed so far" in none.stderr


def test_two_consumers_of_a_group_share_the_messages_and_one_takes_over(
    shared: OneBrokerRun, tmp_path: Path
) -> None:
    shared.ok("produce", "shared", stdin="warm\n" * 4)
    paths = [tmp_path / name for name in ("one", "other")]
    readers = []
    for path in paths:
        command = [*COMMAND, "consume", "shared", "--state", str(shared.state), "--group", "both"]
        with path.open("wb") as output:
            readers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output))

    def read() -> list[list[str]]:
        return [path.read_text().split() for path in paths]

    try:
        # Lines are sent until both have received some: then the queues are shared.
        sent = ["warm"] * 4

        def both_had_some() -> bool:
            batch = [f"m{len(sent) + n}" for n in range(8)]
            shared.ok("produce", "shared", stdin="".join(f"{line}\n" for line in batch))
            sent.extend(batch)
            return all("m" in "".join(line[0] for line in lines if line != "warm") for lines in read())

        wait_until(both_had_some, what="both had a share")
        # A queue that moves to the other consumer may deliver a line again.
        wait_until(lambda: Counter(sent) <= Counter(chain(*read())), what="all were read")
        assert set(chain(*read())) == set(sent)

        readers[0].send_signal(signal.SIGINT)
        assert readers[0].wait(120) == 130
        batch = [f"t{n}" for n in range(8)]
        shared.ok("produce", "shared", stdin="".join(f"{line}\n" for line in batch))
        wait_until(lambda: set(batch) <= set(read()[1]), what="the other one took over")
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


def test_a_closed_output_pipe_ends_the_command_without_an_error_text(shared: OneBrokerRun) -> None:
    shared.ok("produce", "cut", stdin="x\n" * 50)
    command = [*COMMAND, "consume", "cut", "--state", str(shared.state)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"x\n"
        reader.stdout.close()
        shared.ok("produce", "cut", stdin="y\n" * 50)
        assert reader.wait(120) == 141
        assert b"Traceback" not in reader.stderr.read()


def test_messages_that_cannot_be_sent_are_rejected_with_a_reason(shared: OneBrokerRun) -> None:
    for arguments, problem in [
        (["a b", "x"], "expected 1 to 127 letters"),
        (["t", ""], "the message is empty"),
    ]:
        done = shared.here("produce", *arguments)
        assert done.returncode != 0
        assert problem in done.stderr
        assert done.stdout == ""


def test_an_address_without_a_nameserver_is_reported_at_once(tmp_path: Path) -> None:
    done = OneBrokerRun(tmp_path).call("produce", "t", "x", "--nameserver", "127.55.0.1:9")
    assert done.returncode == 1
    assert "no nameserver responds: no connection to 127.55.0.1:9" in done.stderr


def test_a_state_directory_without_a_run_is_reported_with_what_to_do(tmp_path: Path) -> None:
    run = OneBrokerRun(tmp_path)
    for verb in ("produce", "consume"):
        done = run.here(verb, "t", *(["x"] if verb == "produce" else []))
        assert done.returncode == 2
        assert f"nothing runs in {run.state}; start something with `epochmq up -f FILE`" in done.stderr


# errors


def test_a_bad_resource_names_the_field_the_value_and_the_expectation(run: OneBrokerRun) -> None:
    text = ONE_BROKER.format(name="orders", config="    brokerId: 7\n")
    run.file.write_text(text.replace("replicas: 1", "replicas: x"))
    done = run.here("up", "-f", str(run.file), "--detach")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    subject = "document 1 (BrokerGroup orders)"
    assert f'{run.file}:6: {subject}: spec.replicas: "x", expected a whole number from 1 to 9' in lines
    assert (
        f"{run.file}:10: {subject}: spec.config.brokerId: 7, expected no such key: the operator sets it, "
        "from the replica's identity"
    ) in lines
    assert not run.state.exists()


def test_an_invalid_setting_is_rejected_before_anything_restarts(run: OneBrokerRun) -> None:
    run.up()
    before = run.pids()
    run.write(flushDiskType="NEVER", maxMessageSize="big", flushDiskTyp="x")
    done = run.here("up", "-f", str(run.file), "--detach")
    assert done.returncode == 2
    where = "(BrokerGroup orders): spec.config"
    assert f'{where}.flushDiskType: "NEVER", expected one of ASYNC_FLUSH, SYNC_FLUSH' in done.stderr
    assert f'{where}.maxMessageSize: "big", expected a whole number of at least 1' in done.stderr
    assert run.pids() == before
    run.write(flushDiskTyp="x")
    done = run.here("up", "-f", str(run.file), "--detach")
    assert done.returncode == 0
    assert "flushDiskTyp: unknown key, ignored (did you mean flushDiskType?)" in done.stderr


def test_a_failed_start_prints_the_pods_log_and_leaves_nothing_running(run: OneBrokerRun) -> None:
    spoil(run)
    done = run.here("up", "-f", str(run.file), "--detach")
    assert done.returncode == 1
    assert "orders-broker-0" in done.stderr
    assert "does not come up: BackOff: exit status 1" in done.stderr
    assert f"the end of {run.state / 'logs' / 'orders-broker-0.log'}" in done.stderr
    assert "commitlog" in done.stderr
    assert run.here("status").returncode == 3


def test_a_port_in_use_fails_the_start_and_names_the_program(run: OneBrokerRun) -> None:
    run.up()
    (nameserver,) = run.status()["nameservers"]
    host, _, port = nameserver.partition(":")
    run.ok("down")
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind((host, int(port)))
        squatter.listen(1)
        done = run.here("up", "-f", str(run.file), "--detach")
    assert done.returncode == 1
    assert f"{nameserver} (remoting) is in use by pid {os.getpid()}" in done.stderr
    assert run.here("status").returncode == 3


def test_two_state_directories_run_the_same_file_side_by_side(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    runs = [OneBrokerRun(tmp_path / name) for name in ("one", "other")]
    try:
        for number, run in enumerate(runs):
            run.up()
            run.ok("produce", "orders", f"of {number}")
        for number, run in enumerate(runs):
            assert run.consume("--count", "1") == [f"of {number}"]
    finally:
        for run in runs:
            run.here("down")


def test_groups_are_added_to_a_run_and_selected_by_name(run: OneBrokerRun) -> None:
    run.up()
    before = run.pids()
    other = OneBrokerRun(run.directory, name="invoices")
    other.up()
    names = [group["name"] for group in run.status()["brokerGroups"]]
    assert names == ["orders", "invoices"]
    assert run.pids() == before
    unclear = run.here("produce", "t", "x")
    assert unclear.returncode == 2
    assert "--broker-group is missing" in unclear.stderr
    assert "invoices, orders" in unclear.stderr
    assert "SEND_OK invoices-a" in run.ok("produce", "t", "x", "--broker-group", "invoices")


def test_pods_of_a_killed_supervisor_are_shown_by_status_and_stopped_by_down(run: OneBrokerRun) -> None:
    run.up()
    kill_supervisor(run)
    pids = run.pids()

    def check() -> None:
        after = run.status()
        assert after["supervisorPid"] is None
        assert after["brokerGroups"][0]["phase"] == "Ready"

    wait_holds(check)
    assert "the supervisor is gone" in run.here("status").stderr
    assert "SEND_OK" in run.ok("produce", "orders", "still served")
    printed = run.ok("down")
    assert "stopped orders-broker-0, which an earlier supervisor had left" in printed
    assert not any(alive(pid) for pid in pids)


def test_up_after_a_killed_supervisor_restarts_the_pods_with_their_data(run: OneBrokerRun) -> None:
    run.up()
    run.ok("produce", "orders", "kept")
    kill_supervisor(run)
    pids = run.pids()
    run.up()
    assert not any(alive(pid) for pid in pids)
    assert set(run.pids()).isdisjoint(pids)
    assert run.consume("--count", "1") == ["kept"]


def test_several_concurrent_ups_make_one_run(run: OneBrokerRun) -> None:
    command = [
        *COMMAND,
        "up",
        "-f",
        str(run.file),
        "--state",
        str(run.state),
        "--detach",
        "--timeout",
        str(UP_S),
    ]
    at_once = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = [process.communicate(timeout=TIMEOUT_S)[0] for process in at_once]
    assert [process.returncode for process in at_once] == [0, 0, 0]
    assert sorted("nothing changed" in text for text in printed) == [False, True, True]
    places = {line for text in printed for line in text.splitlines() if ", pid " in line}
    assert len(places) == 2
