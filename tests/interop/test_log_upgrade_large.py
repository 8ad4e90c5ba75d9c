"""A plain commit log with many messages in 200 queues, of either program, becomes the old part of a DLedger
log. A Java consumer then reads each queue from its first to its last message, over the boundary."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.build import CompilerMissingError, load_program
from tests.benchmarks.cells import run_load
from tests.benchmarks.peers import UPDATE_AND_CREATE_TOPIC
from tests.interop.java_cluster import java_broker
from tests.interop.java_env import compile_java, run_java
from tests.interop.upgraded_modes import set_mode
from tests.support.dledger_group import DLedgerGroup
from tests.support.group_processes import Factory, Member, our_broker
from tests.support.process import wait_until
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(5400)]

OLD_BYTES = int(float(os.environ.get("EPOCHMQ_UPGRADE_GB", "10")) * 1e9)
QUEUES = 200
BODY_BYTES = 16_384
NEW = 20 * QUEUES
LOAD_S = 3600
TOPIC = "many-queues"


def create_topic(member: Member) -> None:
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip

    def created() -> bool:
        return call(member.address, UPDATE_AND_CREATE_TOPIC, fields).code == 0

    wait_until(created, what="the topic exists")


def fill(program: Path, member: Member, count: int) -> None:
    """Sends messages to all queues in turn."""
    host, _, port = member.address.rpartition(":")
    command = [str(program), "send", f"host={host}", f"port={port}", f"topic={TOPIC}", f"count={count}"]
    command += [f"broker={DLedgerGroup.NAME}", f"queues={QUEUES}", "connections=4", "depth=4"]
    run_load([*command, f"body={BODY_BYTES}", "stall=120"], LOAD_S)


def upgrade_log(member: Member, *options: str) -> list[str]:
    """Runs `epochmq upgrade-log`, and returns what it prints."""
    command = [sys.executable, "-m", "epochmq", "upgrade-log", *options, str(member.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


@pytest.mark.parametrize("plain", [our_broker, java_broker], ids=["ours", "rocketmqs"])
def test_every_message_of_a_large_log_is_read_over_the_boundary(tmp_path: Path, plain: Factory) -> None:
    try:
        program = load_program()
    except CompilerMissingError as error:
        pytest.skip(f"missing: {error}")
    old = OLD_BYTES // BODY_BYTES // QUEUES * QUEUES
    group = DLedgerGroup(tmp_path, [plain], broker={"mappedFileSizeCommitLog": 1 << 28})
    (member,) = group.brokers
    set_mode(member, dledger=False)
    with group:
        create_topic(member)
        fill(program, member, old)
        member.process.stop()
        set_mode(member, dledger=True)
        store = group.store(0)
        size = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
        assert any("would create" in line for line in upgrade_log(member, "--dry-run"))
        assert not (store / "dledger-n0").exists()
        began = time.monotonic()
        upgrade_log(member)
        print(f"{size:,} bytes: {time.monotonic() - began:.1f} s")
        member.make = our_broker
        member.start()
        group.wait_master()
        fill(program, member, NEW)
        done = run_java(
            "QueueReader",
            [group.nameserver.address, TOPIC, str(BODY_BYTES)],
            home=tmp_path / "reader",
            classes=compile_java("QueueReader.java"),
            heap_mb=256,
            timeout_s=LOAD_S,
        )
    read = [line.split() for line in done.stdout.splitlines() if line.startswith("queue ")]
    assert sorted(int(words[1]) for words in read) == list(range(QUEUES))
    assert {(int(first), int(count)) for _, _, first, count in read} == {(0, (old + NEW) // QUEUES)}
