"""Brokers with a DLedger commit log: EpochMQ's and RocketMQ's continue each other's directories, and are
peers of one group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochmq_broker.dledger.commit_log_peer import POSITION_AT, is_record
from epochmq_dledger.store.block_log import BlockLog
from tests.interop.java_cluster import java_broker
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.dledger_group import FILE_SIZE, DLedgerGroup
from tests.support.process import wait_until
from tests.support.replica_group import Factory, Member, our_broker

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


def switch(member: Member, make: Factory) -> None:
    """Stops a broker in order and starts the other program in its place."""
    member.process.stop()
    member.make = make
    member.start()


def fill(group: DLedgerGroup, member: Member, count: int, sent: list[bytes]) -> None:
    """Sends messages, each until it is acknowledged."""
    for _ in range(count):
        body = f"{len(sent)}-".encode() + os.urandom(2000).hex().encode()
        wait_until(lambda body=body: group.send(member, body), what="a send is acknowledged")  # type: ignore[misc]
        sent.append(body)


def unique(texts: Sequence[bytes]) -> list[bytes]:
    """The bodies that `fill` has sent, without repetitions."""
    return [text for text in dict.fromkeys(texts) if b"-" in text]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_each_program_continues_the_others_directory(tmp_path: Path, *, killed: bool) -> None:
    sent: list[bytes] = []
    with DLedgerGroup(tmp_path, [our_broker]) as group:
        (member,) = group.brokers
        for make in (java_broker, our_broker, java_broker, our_broker):
            fill(group, member, 300, sent)
            assert unique(group.texts(member)) == sent
            if killed:
                member.process.kill()
            switch(member, make)
            group.wait_master()
            assert unique(group.texts(member)) == sent
    assert len(list((group.store(0) / "dledger-n0" / "data").iterdir())) >= 5


def opened(group: DLedgerGroup, number: int) -> BlockLog:
    folder = group.store(number) / f"dledger-n{number}"
    log = BlockLog(folder, FILE_SIZE, position_at=POSITION_AT, check=is_record)
    log.open()
    return log


def check_logs(group: DLedgerGroup) -> None:
    """Checks that all logs have the same entries, byte for byte, up to the end of the shortest. Leaders that
    were elected while the brokers stopped have appended the first entries of their terms."""
    logs = [opened(group, number) for number in range(len(group.brokers))]
    ends = sorted(log.end_index for log in logs)
    assert ends[-1] - ends[0] <= len(logs)
    for index in range(ends[0] + 1):
        assert len({log.read_block(index, 1) for log in logs}) == 1, index
    for log in logs:
        log.close()


@pytest.mark.parametrize(
    "makers",
    [
        pytest.param((our_broker, our_broker, our_broker), id="ours"),
        pytest.param((our_broker, our_broker, java_broker), id="mostly-ours"),
        pytest.param((java_broker, java_broker, our_broker), id="mostly-rocketmqs"),
    ],
)
def test_no_acknowledged_message_is_lost_whoever_leads(tmp_path: Path, makers: tuple[Factory, ...]) -> None:
    """A Java client sends, while each leader in turn is killed and comes back. The queues of RocketMQ's
    brokers are not compared: after a kill their dispatcher continues at the committed position of that
    moment, and leaves out what was committed since recovery read the log."""
    with DLedgerGroup(tmp_path, makers) as group:
        producer = JavaProcess(
            "SteadyProducer",
            [group.nameserver.address],
            home=tmp_path / "producer",
            classes=compile_java("SteadyProducer.java"),
            heap_mb=128,
        )
        producer.start()

        def acknowledged() -> list[bytes]:
            lines = (line.split() for line in producer.output(1 << 30).splitlines())
            return [line[1].encode() for line in lines if len(line) == 5 and line[0] == "acked"]

        try:
            for _ in range(3):
                count = len(acknowledged())
                wait_until(lambda: len(acknowledged()) > count + 200, what="the client goes on")  # noqa: B023 # called at once
                master = group.wait_master()
                master.process.kill()
                group.wait_master(other_than=master)
                master.start()
            count = len(acknowledged())
            wait_until(lambda: len(acknowledged()) > count + 200, what="the client goes on")
        finally:
            producer.kill()
        group.wait_caught_up()
        ours = [one for one in group.brokers if one.make is our_broker]
        shown = {text for queue_id in range(4) for text in group.wait_equal(ours, queue_id)}
        assert set(acknowledged()) <= shown
        for member in group.brokers:
            member.process.stop()
        check_logs(group)
