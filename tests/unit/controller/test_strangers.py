"""A stranger that reaches the controllers' port changes nothing there; members elect and serve as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from epochmq_controller.controller import config as configs
from epochmq_controller.controller.orders_command import parse as parse_order
from epochmq_controller.controller.processor import ControllerProcessor
from epochmq_controller.controller.server import ControllerServer
from epochmq_dledger.core.types import RaftRole
from epochmq_dledger.processor import DLedgerProcessor
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import LEASE_MS_FIELD
from epochmq_protocol.member_requests import CONTROLLER_REQUESTS
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.member_authentication import MemberAuthentication, members_of_environment
from tests.support.attacks import Cluster, at_controllers
from tests.support.member_secrets import OTHER_SECRET, SECRET, secret_file
from tests.support.net import free_port, loopback

TIMEOUT_S = 60


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - the condition has no event to wait for
            await asyncio.sleep(0.02)


class Controllers:
    """A quorum of controllers in this process."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.addresses: list[str] = []
        for _ in range(count):
            host = loopback(61)
            self.addresses.append(f"{host}:{free_port(host)}")
        self.servers: list[ControllerServer] = []

    def start(self, number: int, settings: str) -> ControllerServer:
        peers = ";".join(f"n{n}-{address}" for n, address in enumerate(self.addresses))
        text = (
            f"controllerDLegerGroup=g\ncontrollerDLegerPeers={peers}\ncontrollerDLegerSelfId=n{number}\n"
            f"controllerStorePath={self.folder}/store\nconfigStorePath={self.folder}/c{number}.conf\n"
            f"mappedFileSize=65536\n{settings}"
        )
        server = ControllerServer(configs.load(text), on_fatal=lambda _: None)
        self.servers.append(server)
        return server

    async def leader(self) -> ControllerServer:
        await eventually(lambda: any(one.controller.leads for one in self.servers))
        return next(one for one in self.servers if one.controller.leads)


@asynccontextmanager
async def running(folder: Path, *settings: str) -> AsyncIterator[Controllers]:
    """One controller for each of these settings."""
    controllers = Controllers(folder, len(settings))
    async with AsyncExitStack() as stack:
        for number, text in enumerate(settings):
            server = controllers.start(number, text)
            stack.push_async_callback(server.stop)
            await server.start()
        yield controllers


ATTACKS = at_controllers(Cluster("c", "orders", "g"))
JOINING = ("take a broker id", "register as a replica", "send heartbeats", "become the master")
"""What a broker sends until it is a master."""


def of_members(tmp_path: Path, *, allow: bool = False) -> str:
    text = f"memberSecretPath={secret_file(tmp_path / 'secret')}\n"
    return text + "allowUnauthenticatedMembers=true\n" if allow else text


def state_of(server: ControllerServer) -> tuple[object, ...]:
    """What a stranger must not change."""
    controller = server.controller
    return (
        dict(controller.groups.groups),
        controller.peer.log.end_index,
        controller.peer.term,
        controller.peer.members,
        controller.config.enable_elect_unclean_master,
        controller.alive("c", "orders", 1),
    )


async def test_a_stranger_changes_nothing_at_a_controller(tmp_path: Path) -> None:
    async with running(tmp_path, of_members(tmp_path)) as controllers, RemotingClient() as stranger:
        leader = await controllers.leader()
        before = state_of(leader)
        for what, attack in ATTACKS.items():
            answer = await stranger.call(leader.address, attack())
            assert answer.code == ResponseCode.NO_PERMISSION, what
        assert state_of(leader) == before
        metadata = await stranger.call(leader.address, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
        assert metadata.code == ResponseCode.SUCCESS, "mqadmin still reads"


@pytest.mark.parametrize("what", ATTACKS)
async def test_without_a_secret_every_attack_reaches_the_controller(tmp_path: Path, what: str) -> None:
    """So the test above tests something, and a controller without a secret is as RocketMQ's."""
    async with running(tmp_path, "") as controllers, RemotingClient() as stranger:
        leader = await controllers.leader()
        answer = await stranger.call(leader.address, ATTACKS[what](), TIMEOUT_S * 1000)
        assert answer.code != ResponseCode.NO_PERMISSION


async def test_a_stranger_cannot_take_a_group_over(tmp_path: Path) -> None:
    """Registers as a replica of a group without a living master, and has itself elected."""

    async def masters(settings: str) -> int | None:
        async with running(tmp_path / f"{len(settings)}", settings) as controllers:
            leader = await controllers.leader()
            async with RemotingClient() as stranger:
                for attack in JOINING:
                    await stranger.call(leader.address, ATTACKS[attack](), TIMEOUT_S * 1000)
            group = leader.controller.groups.get("orders")
            return group.master_id if group is not None else None

    (tmp_path / "0").mkdir()
    assert await masters("") == 1, "the attack works where nobody proves anything"
    settings = of_members(tmp_path)
    assert await masters(settings) is None


async def test_a_member_registers_leads_and_renews_its_lease_on_the_fast_path(tmp_path: Path) -> None:
    settings = of_members(tmp_path)
    members = MemberAuthentication(str(tmp_path / "secret"), required=True)
    async with running(tmp_path, settings) as controllers, RemotingClient(members=members) as member:
        leader = await controllers.leader()
        for step in JOINING:
            answer = await member.call(leader.address, ATTACKS[step](), TIMEOUT_S * 1000)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        granted: str | None = None
        async with asyncio.timeout(TIMEOUT_S):
            while not granted:  # a new leader waits until leases of an earlier one have ended
                answer = await member.call(
                    leader.address, ATTACKS["send heartbeats for a lease"](), TIMEOUT_S * 1000
                )
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                granted = (answer.ext or {}).get(LEASE_MS_FIELD)


async def test_controllers_with_the_secret_form_a_quorum_and_one_without_it_does_not_join(
    tmp_path: Path,
) -> None:
    mine = of_members(tmp_path)
    foreign = f"memberSecretPath={secret_file(tmp_path / 'foreign', OTHER_SECRET)}\n"
    async with running(tmp_path, mine, mine, mine) as controllers:
        first = await (await controllers.leader()).controller.peer.propose(b"")
        await eventually(
            lambda: all(one.controller.peer.committed_index >= first.index for one in controllers.servers)
        )
    async with running(tmp_path, mine, mine, foreign) as controllers:
        leader = await controllers.leader()
        outsider = controllers.servers[2]
        assert leader is not outsider
        index = (await leader.controller.peer.propose(b"")).index
        follower = next(one for one in controllers.servers[:2] if one is not leader)
        await eventually(lambda: follower.controller.peer.log.end_index >= index)
        assert outsider.controller.peer.log.end_index < index
        assert outsider.controller.peer.role is not RaftRole.LEADER


async def test_a_quorum_gets_its_secret_by_one_restart_after_the_other(tmp_path: Path) -> None:
    """At each step one of three controllers has other settings, and the group has a leader that commits."""
    off, accept, require = "", of_members(tmp_path, allow=True), of_members(tmp_path)
    steps = [
        (accept, off, off),
        (accept, accept, off),
        (accept, accept, accept),
        (require, accept, accept),
        (require, require, accept),
        (require, require, require),
    ]
    for number, settings in enumerate(steps):
        async with running(tmp_path / str(number), *settings) as controllers:
            leader = await controllers.leader()
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    try:
                        await (await controllers.leader()).controller.confirm_leadership()
                        index = (await leader.controller.peer.propose(b"")).index
                        break
                    except EpochMQError:
                        leader = await controllers.leader()
            await eventually(
                lambda index=index, controllers=controllers: all(
                    one.controller.peer.committed_index >= index for one in controllers.servers
                )
            )


@pytest.mark.parametrize("secret", [SECRET[:20]])
async def test_a_controller_with_a_weak_secret_does_not_start(tmp_path: Path, secret: str) -> None:
    path = secret_file(tmp_path / "secret", secret)
    controllers = Controllers(tmp_path, 1)
    with pytest.raises(EpochMQError, match="a secret has 20 characters"):
        controllers.start(0, f"memberSecretPath={path}\n")


async def test_each_request_of_a_controller_is_for_members_or_reads(tmp_path: Path) -> None:
    """A new request is decided upon."""
    reads = {
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.GET_CONTROLLER_CONFIG,
    }
    async with running(tmp_path, of_members(tmp_path)) as controllers:
        served = {
            *ControllerProcessor(controllers.servers[0].controller, {}).handlers(),
            *DLedgerProcessor(controllers.servers[0].controller.peer).handlers(),
        }
    assert served - CONTROLLER_REQUESTS == reads


async def test_orders_of_a_person_with_the_secret_are_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What mqadmin cannot order without a proof."""
    settings = of_members(tmp_path)
    monkeypatch.setenv("EPOCHMQ_MEMBER_SECRET", str(tmp_path / "secret"))
    members = members_of_environment()
    async with running(tmp_path, settings) as controllers, RemotingClient(members=members) as client:
        leader = await controllers.leader()
        for step in JOINING[:3]:
            answer = await client.call(leader.address, ATTACKS[step](), TIMEOUT_S * 1000)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        elected = await parse_order(["elect", leader.address, "c", "orders", "1"])(client)
        assert elected.startswith("orders: broker 1 is the master")
        await parse_order(["configure", leader.address, "enableElectUncleanMaster=true"])(client)
        assert leader.controller.config.enable_elect_unclean_master
        with pytest.raises(EpochMQError):
            await parse_order(["forget", leader.address, "c", "orders", "1"])(client)  # it is alive
    for wrong in (["elect", "h:1", "c", "g"], ["elect", "h:1", "c", "g", "x"], ["configure", "h:1", "key"]):
        with pytest.raises(ValueError, match="invalid arguments"):
            parse_order(wrong)
