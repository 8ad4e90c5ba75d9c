"""How a broker polls its group, and carries out what is decided."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from epochmq_protocol.headers_controller import NotifyMinBrokerIdChangeRequestHeader
from epochmq_protocol.headers_namesrv import RegisterBrokerResponseHeader
from tests.unit.broker.kit import until
from tests.unit.broker.membership.acting.member_group_bench import (
    ALL,
    FIRST,
    MASTER,
    MASTER_HA,
    OTHER,
    SECOND,
    SELF,
    Bench,
)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A slave in service, which follows the master."""
    made = Bench()
    made.group.start()
    made.group.start_service(0, MASTER)
    made.group.registered(RegisterBrokerResponseHeader(ha_server_addr=MASTER_HA, master_addr=MASTER))
    await until(lambda: "ha set_alive_replicas 3" in made.log)
    yield made
    await made.group.stop()


async def test_a_slave_goes_into_service_registers_and_follows_the_master(bench: Bench) -> None:
    assert not bench.group.isolated
    assert "registration start" in bench.log
    assert f"tables follow {MASTER}" in bench.log
    assert f"ha follow {MASTER_HA}" in bench.log
    assert "start special" not in bench.log
    assert bench.group.master_address == MASTER
    bench.group.start_service(0, MASTER)
    assert bench.log.count("registration start") == 1
    assert bench.log[-1] == "registration refresh"


async def test_an_isolated_broker_polls_and_does_nothing_else() -> None:
    made = Bench()
    made.list_only(2)
    made.group.start()
    await until(lambda: made.peers.polls[FIRST] > 3)
    assert made.group.isolated
    assert made.log == ["ha set_alive_replicas 2"]
    await made.group.stop()


async def test_the_master_runs_all_services_of_a_master() -> None:
    made = Bench(brokerId="0", brokerRole="ASYNC_MASTER")
    made.group.start()
    made.group.start_service(0, SELF)
    assert made.log[:3] == ["tables lower_offsets_to_log", "start special", "start others"]
    assert not made.group.is_acting_master
    await made.group.stop()


async def test_a_slave_acts_and_hands_back(bench: Bench) -> None:
    bench.list_only(1, 2)
    await until(lambda: bench.group.is_acting_master)
    assert bench.group.min_broker_id == 1
    for call in (
        "start special",
        f"disconnect {MASTER}",
        f"disconnect {MASTER.replace('10911', '10909')}",
        "tables follow None",
        "ha follow None",
        "ha set_alive_replicas 2",
    ):
        assert call in bench.log, call
    assert "start others" not in bench.log, "what only a master does"
    assert "tables lower_offsets_to_log" not in bench.log, "the master may have what the offsets are ahead of"
    bench.log.clear()
    bench.list_only(0, 1, 2)
    await until(lambda: f"ha follow {MASTER_HA}" in bench.log)
    assert not bench.group.is_acting_master
    assert bench.peers.ha_questions == 1, "a poll does not tell the HA address"
    assert bench.log.index("stop special") < bench.log.index(f"tables follow {MASTER}")
    assert "release" in bench.log


async def test_the_ha_address_is_asked_for_again_until_the_master_tells_it(bench: Bench) -> None:
    bench.list_only(1, 2)
    await until(lambda: bench.group.is_acting_master)
    bench.peers.dead.add(MASTER)
    bench.log.clear()
    bench.list_only(0, 1, 2)
    await until(lambda: bench.peers.ha_questions >= 3)
    assert f"ha follow {MASTER_HA}" not in bench.log
    bench.peers.dead.clear()
    await until(lambda: f"ha follow {MASTER_HA}" in bench.log)


async def test_a_configured_ha_address_is_kept() -> None:
    made = Bench(haMasterAddress="127.53.9.9:10912")
    made.group.start()
    made.group.start_service(0, MASTER)
    made.group.registered(RegisterBrokerResponseHeader(ha_server_addr=MASTER_HA, master_addr=MASTER))
    made.list_only(1)
    await until(lambda: made.group.is_acting_master)
    assert not [line for line in made.log if line.startswith("ha follow")]
    await made.group.stop()


async def test_a_notification_is_obeyed_at_once_when_one_nameserver_answers() -> None:
    made = Bench(namesrvAddr=FIRST, syncBrokerMemberGroupPeriod="600000")
    made.group.start()
    made.group.start_service(0, MASTER)
    await until(lambda: made.peers.polls[FIRST] == 1)
    made.list_only(1)
    made.notify(1, SELF, offline=MASTER)
    assert made.group.is_acting_master
    await until(lambda: made.peers.polls[FIRST] == 2)
    made.list_only(0, 1)
    made.notify(0, MASTER, ha=MASTER_HA)
    assert not made.group.is_acting_master
    assert f"ha follow {MASTER_HA}" in made.log
    await made.group.stop()


async def test_an_empty_notification_causes_a_poll() -> None:
    made = Bench(namesrvAddr=FIRST, syncBrokerMemberGroupPeriod="600000")
    made.group.start()
    await until(lambda: made.peers.polls[FIRST] == 1)
    made.group.min_id_changed(NotifyMinBrokerIdChangeRequestHeader())
    await until(lambda: made.peers.polls[FIRST] == 2)
    await made.group.stop()


async def test_a_nameserver_that_hangs_or_fails_does_not_delay_the_other(bench: Bench) -> None:
    bench.peers.hanging.add(FIRST)
    bench.peers.members[FIRST] = {}
    bench.list_only(1)
    await until(lambda: bench.group.is_acting_master)
    bench.peers.hanging.clear()
    bench.peers.dead.add(FIRST)
    bench.peers.members[SECOND] = dict(ALL)
    await until(lambda: not bench.group.is_acting_master)


async def test_a_nameserver_that_lists_the_broker_no_longer_gets_a_registration(bench: Bench) -> None:
    bench.peers.members[SECOND] = {0: MASTER, 2: OTHER}
    await until(lambda: f"registration refresh_at {SECOND}" in bench.log)
    assert f"registration refresh_at {FIRST}" not in bench.log


async def test_an_effect_that_fails_does_not_prevent_the_others(bench: Bench) -> None:
    bench.special.fails = True
    bench.list_only(1, 2)
    await until(lambda: bench.group.is_acting_master)
    assert "tables follow None" in bench.log


async def test_nameservers_can_be_added_and_removed(bench: Bench) -> None:
    bench.peers.members[FIRST] = {1: SELF}
    bench.live.update({"namesrvAddr": FIRST})
    await until(lambda: bench.group.is_acting_master)
    polls = bench.peers.polls[SECOND]
    await until(lambda: bench.peers.polls[FIRST] > polls + 10)
    assert bench.peers.polls[SECOND] <= polls + 1
