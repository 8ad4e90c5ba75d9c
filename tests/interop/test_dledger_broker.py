"""Brokers with a DLedger commit log: EpochMQ's and RocketMQ's continue each other's directories, and are
peers of one group."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from epochmq_broker.membership.dledger.commit_log_peer import is_record
from epochmq_dledger.store.block_log import BlockLog
from epochmq_protocol.message import encode_host
from epochmq_protocol.message_const import TRANSACTION_ROLLBACK_TYPE
from epochmq_protocol.record_layout import PHYSICAL_OFFSET_AT
from epochmq_store.record import HEAD_V4
from tests.interop.dledger_logs import fill, fill_led, switch, unique, wait_shown
from tests.interop.java_cluster import NO_TIMER_MESSAGES, java_broker
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.dledger_group import FILE_SIZE, DLedgerGroup
from tests.support.group_processes import Factory, Member, our_broker
from tests.support.process import wait_holds, wait_until

LEADERSHIPS_MAX = 30
"""After so many elections each of three brokers has led twice."""

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.soak), True], ids=["stopped", "killed"]
)
def test_each_program_continues_the_others_directory(tmp_path: Path, *, killed: bool) -> None:
    sent: list[bytes] = []
    with DLedgerGroup(tmp_path, [our_broker], broker=NO_TIMER_MESSAGES) as group:
        (member,) = group.brokers
        for make in (java_broker, our_broker, java_broker, our_broker):
            fill(group, member, 300, sent)
            wait_shown(group, member, sent)
            if killed:
                member.process.kill()
            switch(member, make)
            group.wait_master()
            wait_shown(group, member, sent)
    assert len(list((group.store(0) / "dledger-n0" / "data").iterdir())) >= 5


def opened(group: DLedgerGroup, number: int) -> BlockLog:
    folder = group.store(number) / f"dledger-n{number}"
    log = BlockLog(folder, FILE_SIZE, position_at=PHYSICAL_OFFSET_AT, check=is_record)
    log.open()
    return log


def term_of(log: BlockLog, index: int) -> int:
    """The term of an entry of the log."""
    entry = log.entry(index)
    assert entry is not None
    return entry.term


def check_logs(group: DLedgerGroup) -> None:
    """Checks that all logs have the same entries, byte for byte, up to the end of the shortest. Behind that
    end there are only the first entries of terms: of leaders that were elected while the brokers stopped."""
    logs = [opened(group, number) for number in range(len(group.brokers))]
    end = min(log.end_index for log in logs)
    for index in range(end + 1):
        assert len({log.read_block(index, 1) for log in logs}) == 1, index
    for log in logs:
        for index in range(end + 1, log.end_index + 1):
            assert term_of(log, index) > term_of(log, index - 1), f"only one log has entry {index}"
    for log in logs:
        log.close()


class SteadyProducer:
    """A context manager: RocketMQ's producer, which sends one message after another with a pause between
    them."""

    def __init__(self, group: DLedgerGroup, pause_ms: int = 5) -> None:
        self.process = JavaProcess(
            "SteadyProducer",
            [group.nameserver.address, str(pause_ms)],
            home=group.directory / "producer",
            classes=compile_java("SteadyProducer.java"),
            heap_mb=128,
        )

    def __enter__(self) -> SteadyProducer:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def _acks(self) -> list[list[str]]:
        # `output` returns only the end of what a JVM wrote. The last line may not be complete.
        text = self.process.output_path.read_text(errors="replace")
        lines = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
        return [line for line in lines if len(line) == 5 and line[0] == "acked"]

    def acknowledged(self) -> list[bytes]:
        """The bodies of the acknowledged messages."""
        return [line[1].encode() for line in self._acks()]

    def wait_acknowledged(self, count: int) -> None:
        """Waits until this number of further messages is acknowledged."""
        before = len(self.acknowledged())
        wait_until(lambda: len(self.acknowledged()) > before + count, what="the client sends again")

    def longest_silence_s(self, began_s: float) -> float:
        """The longest time without an acknowledgement since then (s, monotonic)."""
        # Java's nanoTime and Python's monotonic read the same clock.
        moments = [began_s, *(at for line in self._acks() if (at := int(line[4]) / 1e9) > began_s)]
        return max(after - before for before, after in itertools.pairwise(moments))


def check_complete(group: DLedgerGroup, shown_by: Sequence[Member], producer: SteadyProducer) -> None:
    """Checks that these brokers show every acknowledged message, and that all logs are equal. The producer
    has ended.

    A RocketMQ broker that was killed may, as the leader, assign queue offsets that messages in its log
    already have: its queues lack what its dispatcher has left out
    (`test_no_acknowledged_message_is_lost_whoever_leads`). A queue shows one message for each offset. The
    other one is in the log only."""
    group.wait_caught_up()
    shown = {text for queue_id in range(4) for text in group.wait_equal(shown_by, queue_id)}
    for member in group.brokers:
        member.process.stop()
    check_logs(group)
    hidden = set(producer.acknowledged()) - shown
    assert hidden <= stored_at_taken_offsets(group), hidden


def stored_at_taken_offsets(group: DLedgerGroup) -> set[bytes]:
    """The bodies of the messages that a RocketMQ broker has stored at an offset that an earlier message of
    the queue has in the log. The brokers have stopped."""
    theirs = {
        encode_host(host, int(port))
        for host, _, port in (one.address.rpartition(":") for one in group.brokers if one.make is java_broker)
    }
    log = opened(group, 0)
    taken: set[tuple[bytes, int, int]] = set()
    found: set[bytes] = set()
    for index in range(log.end_index + 1):
        entry = log.entry(index)
        assert entry is not None
        head = HEAD_V4.unpack_from(entry.body)
        queue_id, offset, flag, store_host, size = head[3], head[5], head[7], head[11], head[14]
        if flag & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_ROLLBACK_TYPE:
            continue  # the first record of a term is in no queue
        body, rest = entry.body[HEAD_V4.size :][:size], entry.body[HEAD_V4.size + size :]
        queue = rest[1 : 1 + rest[0]], queue_id, offset
        if queue in taken and store_host in theirs:
            found.add(body)
        taken.add(queue)
    log.close()
    return found


def check_same_bytes(group: DLedgerGroup) -> None:
    """Checks that the data files of all brokers are equal up to what each has committed. Clients may send."""
    end = 0

    def told() -> bool:
        nonlocal end
        end = min(group.committed_end(member) or 0 for member in group.brokers)
        return end > 0

    wait_until(told, what="all brokers say how much they have committed")
    logs = {group.log_bytes(member, end) for member in group.brokers}
    assert [len(log) for log in logs] == [end]


def check_shows_all(group: DLedgerGroup, acknowledged: set[bytes]) -> None:
    """Checks that the present master shows these messages."""
    master = group.master()
    assert master is not None
    assert acknowledged <= {text for queue_id in range(4) for text in group.texts(master, queue_id)}


@pytest.mark.parametrize(
    "makers",
    [
        pytest.param((our_broker, our_broker, our_broker), id="ours", marks=pytest.mark.soak),
        pytest.param((our_broker, our_broker, java_broker), id="mostly-ours"),
        pytest.param((java_broker, java_broker, our_broker), id="mostly-rocketmqs", marks=pytest.mark.soak),
    ],
)
def test_no_acknowledged_message_is_lost_whoever_leads(tmp_path: Path, makers: tuple[Factory, ...]) -> None:
    """A Java client sends, while each leader in turn is killed and comes back. The queues of RocketMQ's
    brokers are not compared: after a kill their dispatcher continues at the committed position of that
    moment, and leaves out what was committed since recovery read the log."""
    made = DLedgerGroup(tmp_path, makers, broker=NO_TIMER_MESSAGES)
    with made as group, SteadyProducer(group) as producer:
        for _ in range(3):
            producer.wait_acknowledged(200)
            master = group.wait_master()
            master.process.kill()
            group.wait_master(other_than=master)
            master.start()
        producer.wait_acknowledged(200)
        producer.process.kill()
        ours = [one for one in group.brokers if one.make is our_broker]
        check_complete(group, ours, producer)


@pytest.mark.soak
@pytest.mark.parametrize("program", [java_broker, our_broker], ids=["rocketmqs", "ours"])
def test_a_group_led_by_each_of_its_mixed_brokers(tmp_path: Path, program: Factory) -> None:
    """One broker is of another program than the two others. Each of the three leads twice, and is killed as
    the leader. `program`: of the two."""
    other = our_broker if program is java_broker else java_broker
    made = DLedgerGroup(tmp_path, [program, program, other], broker=NO_TIMER_MESSAGES)
    with made as group, SteadyProducer(group) as producer:
        led = dict.fromkeys((member.name for member in group.brokers), 0)
        for _ in range(LEADERSHIPS_MAX):
            producer.wait_acknowledged(200)
            master = group.wait_master()
            led[master.name] += 1
            if min(led.values()) >= 2:
                break
            master.process.kill()
            group.wait_master(other_than=master)
            master.start()
        print(f"leaderships: {led}")
        assert min(led.values()) >= 2, led
        producer.process.kill()
        check_complete(group, [one for one in group.brokers if one.make is our_broker], producer)


@pytest.mark.soak
def test_rocketmqs_brokers_are_replaced_one_at_a_time_and_back(tmp_path: Path) -> None:
    """Under a Java client that sends, each of three RocketMQ brokers is stopped and EpochMQ's started in its
    directory, the leader last; then all are replaced by RocketMQ's again. After each step the logs of the
    three are equal, byte for byte, and at the end every acknowledged message is there."""
    made = DLedgerGroup(tmp_path, [java_broker] * 3, broker=NO_TIMER_MESSAGES)
    with made as group, SteadyProducer(group, pause_ms=20) as producer:
        for make in (our_broker, java_broker):
            for _ in group.brokers:
                producer.wait_acknowledged(50)
                left = [member for member in group.brokers if member.make is not make]
                master = group.wait_master()
                member = next((one for one in left if one is not master), master)
                began_s = time.monotonic()
                switch(member, make)
                producer.wait_acknowledged(50)
                group.wait_master()
                group.wait_replicated()
                check_same_bytes(group)
                print(
                    f"{member.name} {'and leader ' if member is master else ''}is now {make.__name__}:"
                    f" longest silence {producer.longest_silence_s(began_s):.2f} s"
                )
            if make is our_broker:
                wait_holds(partial(check_shows_all, group, set(producer.acknowledged())))
        producer.process.kill()
        for member in group.brokers:
            member.process.signal(signal.SIGTERM)  # RocketMQ's take ten seconds to stop
        for member in group.brokers:
            switch(member, our_broker)
        check_complete(group, group.brokers, producer)


@pytest.mark.parametrize(
    "makers",
    [
        pytest.param((our_broker, our_broker, java_broker), id="rocketmqs", marks=pytest.mark.soak),
        pytest.param((java_broker, java_broker, our_broker), id="ours"),
    ],
)
def test_the_preferred_leader_gets_the_role_of_master(tmp_path: Path, makers: tuple[Factory, ...]) -> None:
    """n2 is preferred, and of the other program than its peers. It becomes master, and becomes master again
    after it was away. All brokers have every acknowledged message, and show it; of a RocketMQ broker that was
    killed only the log is compared, because its queues may lack messages
    (`test_no_acknowledged_message_is_lost_whoever_leads`)."""
    settings = {**NO_TIMER_MESSAGES, "preferredLeaderId": "n2"}
    with DLedgerGroup(tmp_path, makers, broker=settings) as group:
        preferred = group.brokers[2]
        sent: list[bytes] = []

        def leads() -> bool:
            return group.master() is preferred and group.send(preferred, b"ready")

        wait_until(leads, timeout_s=120, what="the preferred leader is master")
        fill_led(group, 20, sent)
        preferred.process.kill()
        fill_led(group, 20, sent)
        preferred.start()
        wait_until(leads, timeout_s=120, what="the preferred leader is master again")
        group.wait_caught_up()
        check_same_bytes(group)
        show = [one for one in group.brokers if one is not preferred or one.make is our_broker]
        wait_shown(group, show[0], sent)
        assert unique(group.wait_equal(show, 0)) == sent
