"""How a broker polls its group, and carries out what is decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.membership.acting.member_group_service import MemberGroupDependencies, MemberGroupService
from epochmq_broker.services.master_services import MasterServices
from epochmq_protocol.bodies import to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers import (
    ExchangeHAInfoResponseHeader,
    NotifyMinBrokerIdChangeRequestHeader,
    RegisterBrokerResponseHeader,
)
from epochmq_protocol.route import BrokerData, TopicRouteData
from tests.unit.broker.kit import until

FIRST, SECOND = "127.53.9.1:9876", "127.53.9.2:9876"
MASTER, MASTER_HA = "127.53.9.3:10911", "127.53.9.3:10912"
SELF, OTHER = "127.53.9.4:10911", "127.53.9.5:10911"
ALL = {0: MASTER, 1: SELF, 2: OTHER}


class Service:
    """Replaces a service of the master."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log
        self.fails = False

    def start(self) -> None:
        self._log.append(f"start {self.name}")
        if self.fails:
            raise OSError("no space left")

    def stop(self) -> None:
        self._log.append(f"stop {self.name}")


class Peers:
    """Replaces a RemotingClient: nameservers that know `members`, and masters."""

    def __init__(self, log: list[str]) -> None:
        self.members: dict[str, dict[int, str]] = {FIRST: dict(ALL), SECOND: dict(ALL)}
        self.hanging: set[str] = set()
        self.dead: set[str] = set()
        self.polls: dict[str, int] = {FIRST: 0, SECOND: 0}
        self.ha_questions = 0
        self._log = log

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """RemotingClient.call."""
        if address in self.hanging:
            await asyncio.Event().wait()
        if command.code == RequestCode.EXCHANGE_BROKER_HA_INFO:
            self.ha_questions += 1
            if address in self.dead:
                raise CallTimeoutError(f"{address} is dead")
            header = ExchangeHAInfoResponseHeader(master_ha_address=MASTER_HA, master_address=MASTER)
            return response(command, ResponseCode.SUCCESS, header=header)
        self.polls[address] += 1
        if address in self.dead:
            raise CallTimeoutError(f"{address} is dead")
        group = BrokerData("DefaultCluster", "b", self.members[address])
        return response(command, ResponseCode.SUCCESS, body=to_json(TopicRouteData(broker_datas=[group])))

    def disconnect(self, address: str) -> None:
        """RemotingClient.disconnect."""
        self._log.append(f"disconnect {address}")


class Recorder:
    """Replaces a component: records the calls of its methods with their arguments."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def __getattr__(self, method: str) -> Any:
        return lambda *args: self._log.append(" ".join(map(str, (self._name, method, *args))))


class Bench:
    """A slave with id 1, or the master."""

    def __init__(self, **settings: str) -> None:
        text = {
            "namesrvAddr": f"{FIRST};{SECOND}",
            "brokerName": "b",
            "brokerId": "1",
            "brokerRole": "SLAVE",
            "brokerIP1": SELF.split(":")[0],
            "enableSlaveActingMaster": "true",
            "syncBrokerMemberGroupPeriod": "20",
        }
        self.log: list[str] = []
        self.live = LiveConfig(from_properties(text | settings).config)
        self.peers = Peers(self.log)
        self.special = Service("special", self.log)
        special = MasterServices(self.special)
        self.group = MemberGroupService(
            MemberGroupDependencies(
                self.live,
                cast(Any, self.peers),
                cast(Any, Recorder("registration", self.log)),
                cast(Any, Recorder("ha", self.log)),
                cast(Any, Recorder("tables", self.log)),
                MasterServices(special, Service("others", self.log)),
                special,
                lambda: self.log.append("release"),
            )
        )

    def list_only(self, *ids: int) -> None:
        """Makes the nameservers list these ids only."""
        for nameserver in (FIRST, SECOND):
            self.peers.members[nameserver] = {number: ALL[number] for number in ids}

    def notify(self, min_id: int, address: str, offline: str | None = None, ha: str | None = None) -> None:
        """Sends a notification."""
        self.group.min_id_changed(
            NotifyMinBrokerIdChangeRequestHeader(
                min_broker_id=min_id, min_broker_addr=address, offline_broker_addr=offline, ha_broker_addr=ha
            )
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
    assert made.log[:2] == ["start special", "start others"]
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
