"""Replication between RocketMQ's brokers and EpochMQ's: a RocketMQ slave follows an EpochMQ master, an
EpochMQ replica a RocketMQ master, with epochs and without, and the logs are equal, byte for byte."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.interop.java_cluster import NO_TIMER_MESSAGES, java_broker
from tests.support.group_processes import Factory, our_broker
from tests.support.ha_peer import SETTINGS, HAPeer, agree, fill
from tests.support.pair import Pair
from tests.support.process import wait_until
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("master", "replica"),
    [pytest.param(our_broker, java_broker, id="java-follows-ours"),
     pytest.param(java_broker, our_broker, id="ours-follows-java")],
)  # fmt: skip
def test_a_slave_follows_a_master_of_the_other_implementation(
    tmp_path: Path, master: Factory, replica: Factory
) -> None:
    settings = {**NO_TIMER_MESSAGES, "inSyncReplicas": 2, "slaveTimeout": 4000}
    with Pair(tmp_path, [master, replica], broker=settings, octet=62) as pair:
        wait_until(lambda: bool(pair.ha()["haConnectionInfo"]), what="a replica is connected")
        for number in range(250):
            pair.deliver(body=os.urandom(20_000), queue_id=number % 4)
        end = pair.wait_followed()
        assert pair.log_bytes(1, end) == pair.log_bytes(0, end)
        # The replica dies and comes back with a shorter log.
        pair.brokers[1].process.kill()
        codes = {pair.send(body=os.urandom(20_000)).code for _ in range(2)}
        assert codes == {12}
        pair.brokers[1].start()
        end = pair.wait_followed()
        assert pair.log_bytes(1, end) == pair.log_bytes(0, end)
        pair.deliver()
        # The master stops for a while.
        pair.master.process.signal(signal.SIGSTOP)
        pair.master.process.signal(signal.SIGCONT)
        pair.deliver()
        end = pair.wait_followed()
        assert pair.log_bytes(1, end) == pair.log_bytes(0, end)


# With epochs: RocketMQ's AutoSwitchHAService, which gets its roles from the test instead of a controller.


async def test_masters_take_turns_and_bytes_written_alone_are_truncated(tmp_path: Path) -> None:
    java = HAPeer(tmp_path / "java", 2)
    ours = await BrokerNode(tmp_path / "ours", 1, SETTINGS).open()
    try:
        await java.start()
        # EpochMQ's is the master, RocketMQ's follows, over several files.
        await ours.lead(1)
        fill(ours, 2500)
        assert await java.tell(f"slave {ours.address} 1") == "true"
        await agree(ours, java)
        fill(ours, 100)
        await agree(ours, java)
        # EpochMQ's writes alone, RocketMQ's is elected.
        assert await java.tell("slave 127.0.0.1:9 1") == "true"
        await until(lambda: not ours.ha_status().ha_connection_info)
        fill(ours, 70)
        assert await java.tell("master 2") == "true"
        assert await java.tell("write 300 700") == "ok"
        await ours.follow(java.address, 2)
        await agree(ours, java)
        assert [epoch for epoch, _ in ours.epochs] == [1, 2]
        # RocketMQ's writes alone, EpochMQ's is elected.
        await ours.follow(None, 2)
        assert await java.tell("write 90 800") == "ok"
        await ours.lead(3)
        fill(ours, 200)
        assert await java.tell(f"slave {ours.address} 3") == "true"
        await agree(ours, java)
        assert [epoch for epoch, _ in ours.epochs] == [1, 2, 3]
        # The same master under another epoch.
        await ours.lead(4)
        fill(ours, 50)
        await agree(ours, java)
        assert [epoch for epoch, _ in ours.epochs] == [1, 2, 3, 4]
    except BaseException as error:
        error.add_note(java.process.output(6000))
        raise
    finally:
        java.process.kill()
        await ours.close()
