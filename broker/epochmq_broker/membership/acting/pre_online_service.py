"""Takes the steps by which an isolated broker goes online (`pre_online` decides them): asks nameservers and
members, and watches the HA connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.acting.group_poll import poll_members
from epochmq_broker.membership.acting.pre_online import (
    AnnounceMaster,
    AskMaster,
    AskMembers,
    AwaitMaster,
    AwaitRetry,
    AwaitSlave,
    GoOnline,
    HAObserved,
    LagMeasured,
    MasterAnnounced,
    MasterAnswered,
    MeasureLag,
    MembersReceived,
    PreOnline,
    PreOnlineEvent,
    PreOnlineStep,
    RetryDue,
    StepFailed,
    TablesTakenBack,
    TakeBackTables,
)
from epochmq_broker.membership.ha_info import exchange_ha_info
from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_broker.replication.ha.master_flush_offset import adopt_master_flush_offset
from epochmq_broker.replication.ha.service import HAService
from epochmq_formats.abort_file import TailState
from epochmq_protocol.bodies import HARuntimeInfo, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import ExchangeHAInfoRequestHeader
from epochmq_protocol.transport.request_client import RequestClient

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 3000
HA_POLL_S: Final = 0.1
"""How often the driver looks for an HA connection."""
LAG_POLL_S: Final = 0.5
"""How often it measures how far the log lags."""
FAILURE_LOG_INTERVAL_S: Final = 60.0
"""How often a lasting failure is logged."""


class ReturnedTables(Protocol):
    """The part of `TableReturn` that is used here."""

    async def take_back(self, address: str) -> None:
        """Adopts the tables of the slave at `address` that are not older."""
        ...


class PreOnlineService:
    """The driver of one broker. `start` it once; it ends when the broker is online, or with `stop`."""

    def __init__(
        self,
        live: LiveConfig,
        ha: HAService,
        client: RequestClient,
        tables: ReturnedTables,
        members: Callable[[], Awaitable[Mapping[int, str]]],
        go_online: Callable[[int, str], None],
    ) -> None:
        """`members` returns the living members of the group, and raises EpochMQError if no nameserver
        responds. `go_online` gets the smallest id of the group and its address."""
        config = live.current
        self.core = PreOnline(config.broker_id, config.client_addr, config.ha_max_gap_not_in_sync)
        self._live = live
        self._ha = ha
        self._client = client
        self._tables = tables
        self._members = members
        self._go_online = go_online
        self._task: asyncio.Task[None] | None = None
        self._logged = ("", 0.0)

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pre-online")

    async def stop(self) -> None:
        """Ends the step under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        step = self.core.step
        while not isinstance(step, GoOnline):
            event = await self._take(step)
            following = self.core.handle(event, int(loop.time() * 1000))
            if isinstance(following, AwaitRetry) and not isinstance(step, AwaitRetry):
                self._log_failure(following.why, loop.time())
            elif following == step:
                await asyncio.sleep(LAG_POLL_S if isinstance(step, MeasureLag) else HA_POLL_S)
            step = following
        log.info("pre-online is complete after %d attempts", self.core.attempts)
        self._go_online(step.min_id, step.min_address)

    async def _take(self, step: PreOnlineStep) -> PreOnlineEvent:
        try:
            return await self._outcome(step)
        except (EpochMQError, OSError) as error:
            return StepFailed(f"{type(step).__name__}: {error}")
        except Exception as error:  # no response, however wrong, may end pre-online
            log.exception("pre-online failed at %s", step)
            return StepFailed(f"{type(step).__name__}: {error!r}")

    async def _outcome(self, step: PreOnlineStep) -> PreOnlineEvent:
        match step:
            case AskMembers():
                return MembersReceived(await self._members(), has_log=self._ha.store.max_phy_offset > 0)
            case AnnounceMaster(address=address):
                await self._announce(address)
                return MasterAnnounced()
            case AwaitSlave(address=address):
                return HAObserved(await self._is_connected(address))
            case TakeBackTables(address=address):
                await self._check_slave_log(address)
                await self._tables.take_back(address)
                return TablesTakenBack()
            case AskMaster(address=address):
                return MasterAnswered(await self._ask_master(address))
            case AwaitMaster(ha_address=ha_address):
                self._ha.follow(ha_address)
                client = self._ha.client
                return HAObserved(client is not None and client.reached == ha_address)
            case MeasureLag(address=address):
                return LagMeasured(await self._measure_lag(address))
            case AwaitRetry(until_ms=until_ms):
                await asyncio.sleep(max(until_ms / 1000 - asyncio.get_running_loop().time(), 0))
                return RetryDue()
            case GoOnline():
                raise AssertionError("the last step has no outcome")

    async def _announce(self, address: str) -> None:
        config = self._live.current
        header = ExchangeHAInfoRequestHeader(
            master_ha_address=config.ha_server_addr,
            master_flush_offset=self._ha.store.end_at_load,
            master_address=config.client_addr,
        )
        await exchange_ha_info(self._client, address, CALL_TIMEOUT_MS, header)

    async def _ask_master(self, address: str) -> str | None:
        """The master's HA address, None if it has none."""
        header = await exchange_ha_info(self._client, address, CALL_TIMEOUT_MS)
        adopt_master_flush_offset(self._ha.store, self._live.current, header.master_flush_offset)
        return header.master_ha_address or None

    async def _is_connected(self, address: str) -> bool:
        """Whether an HA connection from the slave's host has arrived since this master started. As in
        RocketMQ, the first report is not awaited: RocketMQ's slaves send it after some seconds, and a slave
        whose log is longer than this one cannot follow."""
        server = self._ha.server
        if server is None:
            raise EpochMQError("this broker does not serve HA connections")
        host = address.rpartition(":")[0].strip("[]")
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return any(entry[4][0] in server.known_hosts for entry in found)

    @property
    def _follows(self) -> bool:
        """Whether the HA connection to the present master exists."""
        client = self._ha.client
        return (
            client is not None
            and client.phase is HAClientPhase.FOLLOWING
            and client.reached == client.address
        )

    async def _check_slave_log(self, address: str) -> None:
        """Raises EpochMQError if the slave has messages that only another volume of this master had: this log
        cannot end before a slave's unless the machine lost its power. After a power loss the master goes
        online without what it had not flushed, as in RocketMQ."""
        store = self._ha.store
        if store.tail.state is TailState.UNFLUSHED_LOST:
            return
        status = request(RequestCode.GET_BROKER_HA_STATUS)
        response = await self._client.call(address, status, CALL_TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            return
        theirs = from_json(HARuntimeInfo, response.body).ha_client_runtime_info.max_offset
        if theirs > store.max_phy_offset:
            raise EpochMQError(
                f"the log of the slave at {address} ends at {theirs}, this master's at "
                f"{store.max_phy_offset}: the master's volume was replaced by an older or an empty one. Stop "
                f"both brokers, copy the store of the slave at {address} to "
                f"{self._live.current.store_path_root_dir}, and start both. To give the messages up instead, "
                "empty the stores of the slaves"
            )

    async def _measure_lag(self, address: str) -> int | None:
        """How many bytes of the master's log are missing here; None if the master does not tell."""
        response = await self._client.call(
            address, request(RequestCode.GET_BROKER_HA_STATUS), CALL_TIMEOUT_MS
        )
        if response.code != ResponseCode.SUCCESS:
            return None
        end = from_json(HARuntimeInfo, response.body).master_commit_log_max_offset
        lag_bytes = end - self._ha.store.max_phy_offset
        if lag_bytes > 0 and not self._follows:
            raise EpochMQError(
                f"the HA connection was lost {lag_bytes} bytes before the end of the master's log"
            )
        return lag_bytes

    def _log_failure(self, why: str, now_s: float) -> None:
        last, logged_s = self._logged
        if why != last or now_s - logged_s > FAILURE_LOG_INTERVAL_S:
            self._logged = (why, now_s)
            log.warning("the broker stays isolated, and retries in a second: %s", why)


async def poll_all_members(client: RequestClient, live: LiveConfig) -> dict[int, str]:
    """The living members of the group as all nameservers together know them: one that has just started may
    know only some. Raises EpochMQError if no nameserver responds."""
    config = live.current
    outcomes = await asyncio.gather(
        *(poll_members(client, nameserver, config) for nameserver in live.nameservers),
        return_exceptions=True,
    )
    members: dict[int, str] = {}
    failures: list[EpochMQError] = []
    for outcome in outcomes:
        if isinstance(outcome, EpochMQError):
            failures.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            members = {**outcome, **members}
    if len(failures) == len(outcomes):
        why = "; ".join(map(str, failures)) or "none is configured"
        raise EpochMQError(f"no nameserver responded: {why}")
    return members
