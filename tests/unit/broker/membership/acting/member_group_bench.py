"""The service that keeps the members of a group, with nameservers that the test plays."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.membership.acting.member_group_service import MemberGroupDependencies, MemberGroupService
from epochmq_broker.services.master_services import MasterServices
from epochmq_protocol.bodies import to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import CallTimeoutError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_controller import (
    ExchangeHAInfoResponseHeader,
    NotifyMinBrokerIdChangeRequestHeader,
)
from epochmq_protocol.route import BrokerData, TopicRouteData

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
