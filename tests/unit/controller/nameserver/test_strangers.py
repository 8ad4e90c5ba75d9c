"""A stranger changes no route of a nameserver whose members have a secret."""

from __future__ import annotations

from pathlib import Path

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from tests.support.member_secrets import secret_file
from tests.unit.controller.nameserver.asking_nameserver import MASTER, Asker, Code, asking, plain

ELSEWHERE = "10.9.9.9:10911"
WHO = {"clusterName": "c", "brokerName": "broker-a", "brokerId": "0"}


async def master_of(nameserver: Asker) -> str:
    """The address at which clients look for the master."""
    route = plain(await nameserver.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))
    return str(route["brokerDatas"][0]["brokerAddrs"]["0"])


async def test_a_stranger_takes_no_route_over(tmp_path: Path) -> None:
    """It registers the same broker at another address, keeps it alive, and takes the real one out."""
    secret = secret_file(tmp_path / "secret")
    async with asking(tmp_path, f"memberSecretPath={secret}\n") as stranger:
        members = MemberAuthentication(secret, required=True)
        async with RemotingClient(members=members) as client:
            member = Asker(stranger.nameserver, client)
            assert (await member.register()).code == 0
            assert await master_of(stranger) == MASTER
            assert (await stranger.register(address=ELSEWHERE)).code == ResponseCode.NO_PERMISSION
            for code in (Code.UNREGISTER_BROKER, Code.BROKER_HEARTBEAT):
                answer = await stranger.ask(code, brokerAddr=MASTER, **WHO)
                assert answer.code == ResponseCode.NO_PERMISSION
            assert await master_of(stranger) == MASTER


async def test_without_a_secret_whoever_registers_last_has_the_route(tmp_path: Path) -> None:
    """So the test above tests something, and a nameserver without a secret is as RocketMQ's."""
    async with asking(tmp_path) as stranger:
        await stranger.register()
        await stranger.register(address=ELSEWHERE)
        assert await master_of(stranger) == ELSEWHERE
