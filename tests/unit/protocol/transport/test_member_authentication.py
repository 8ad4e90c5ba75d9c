"""Who cannot prove that it holds the secret of a group is no member of it, and changes nothing there."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConfigError, ConnectError
from epochmq_protocol.frame import Command, decode, encode, request, response
from epochmq_protocol.member_proofs import Handshake, RecordSealer, parse_secrets
from epochmq_protocol.member_requests import MemberCode
from epochmq_protocol.transport import RemotingClient, RemotingConnection, RemotingServer, port_counts
from epochmq_protocol.transport.member_authentication import PURPOSE, MemberAuthentication, load_secrets
from tests.support.member_secrets import secret_file
from tests.unit.protocol.transport.peers import DEADLINE_S, ECHO, Peer, address_of, echo, peer_of, serving

OLD, NEW, OTHER = "old-" * 10, "new-" * 10, "other-" * 10
REGISTER = int(RequestCode.CONTROLLER_REGISTER_BROKER)
HANDLERS = {ECHO: echo, REGISTER: echo}
GUARDED = frozenset({REGISTER})


def membership(path: Path, *secrets: str, required: bool = True) -> MemberAuthentication:
    return MemberAuthentication(secret_file(path, *secrets), required=required)


@asynccontextmanager
async def group_server(members: MemberAuthentication) -> AsyncIterator[RemotingServer]:
    async with serving(members.guard(HANDLERS, GUARDED)) as server:
        yield server


async def register(client: RemotingClient, server: RemotingServer, body: bytes = b"2") -> Command:
    return await client.call(address_of(server), request(REGISTER, body=body), DEADLINE_S * 1000)


async def test_a_stranger_cannot_make_a_members_request_and_may_make_others(tmp_path: Path) -> None:
    rejected = port_counts.strangers_rejected
    async with group_server(membership(tmp_path / "a", OLD)) as server, RemotingClient() as stranger:
        answer = await register(stranger, server)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "memberSecretPath" in (answer.remark or "")
        assert (await stranger.call(address_of(server), request(ECHO, body=b"x"))).body == b"x"
    assert port_counts.strangers_rejected == rejected + 1


async def test_a_member_with_the_secret_is_served_and_bodies_of_any_length_arrive(tmp_path: Path) -> None:
    members = membership(tmp_path / "a", OLD)
    async with group_server(members) as server, RemotingClient(members=members) as member:
        for size in (0, 1, 65_536, 65_537, 3_000_000):
            body = os.urandom(size)
            assert (await register(member, server, body)).body == body
        (connection,) = server.connections
        assert connection.member == members.secrets[0].key_id.hex()


async def test_many_requests_at_once_keep_their_order_of_records(tmp_path: Path) -> None:
    members = membership(tmp_path / "a", OLD)
    async with group_server(members) as server, RemotingClient(members=members) as member:
        bodies = [os.urandom(n * 977) for n in range(100)]
        answers = await asyncio.gather(*(register(member, server, body) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert len(server.connections) == 1


async def test_another_secret_proves_nothing(tmp_path: Path) -> None:
    foreign = membership(tmp_path / "b", OTHER)
    async with (
        group_server(membership(tmp_path / "a", OLD)) as server,
        RemotingClient(members=foreign) as stranger,
    ):
        with pytest.raises(ConnectError, match="which has no proof of membership"):
            await register(stranger, server)
        assert (await stranger.call(address_of(server), request(ECHO))).code == 0


async def test_members_ask_only_members_for_a_master_or_a_vote(tmp_path: Path) -> None:
    """Who takes over a member's address cannot grant leases, votes or masters."""
    taken: list[Command] = []

    def fake(_connection: RemotingConnection, command: Command) -> Command:
        taken.append(command)
        return response(command, 0)

    members = membership(tmp_path / "a", OLD)
    async with serving({REGISTER: fake}) as impostor, RemotingClient(members=members) as member:
        with pytest.raises(ConnectError, match="which has no proof of membership"):
            await register(member, impostor)
    assert not taken


async def test_a_peer_with_a_wrong_proof_gets_no_request(tmp_path: Path) -> None:
    members = membership(tmp_path / "a", OLD)

    def hello(_: RemotingConnection, command: Command) -> Command:
        ids = members.secrets[0].key_id.hex()  # anybody may learn the ids of secrets
        return response(command, 0, ext={"nonce": "00" * 32, "keyIds": ids})

    def prove(_: RemotingConnection, command: Command) -> Command:
        return response(command, 0, ext={"proof": (command.ext or {})["proof"]})  # reflects it

    impostor = {MemberCode.HELLO: hello, MemberCode.PROVE: prove, ECHO: echo}
    async with serving(impostor) as server, RemotingClient(members=members) as member:
        with pytest.raises(ConnectError, match="has no proof of membership"):
            await member.call(address_of(server), request(ECHO))


async def test_peers_without_a_proof_are_served_and_counted_while_that_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = port_counts.unproven_requests
    members = membership(tmp_path / "a", OLD, required=False)
    with caplog.at_level(logging.WARNING):
        async with group_server(members) as server, RemotingClient() as stranger:
            assert (await register(stranger, server)).code == 0
        async with serving(HANDLERS) as server, RemotingClient(members=members) as member:
            assert (await register(member, server)).code == 0
    assert port_counts.unproven_requests == accepted + 1
    assert "allowUnauthenticatedMembers=true: accepted" in caplog.text


async def proven_peer(peer: Peer, secret: str, change: Callable[[bytes], bytes] = bytes) -> RecordSealer:
    """Proves the membership over a raw connection, and returns what seals its records."""
    nonce = bytes(32)
    await peer.send(encode(Command(MemberCode.HELLO, 1, ext={"nonce": nonce.hex()})))
    hello = (await peer.receive()).ext or {}
    handshake = Handshake(PURPOSE, parse_secrets(secret)[0], nonce, bytes.fromhex(hello["nonce"]))
    ext = {"keyId": handshake.secret.key_id.hex(), "proof": change(handshake.client_proof()).hex()}
    await peer.send(encode(Command(MemberCode.PROVE, 2, ext=ext)))
    return RecordSealer(handshake.client_key())


async def test_a_wrong_proof_is_rejected_and_cannot_be_tried_twice(tmp_path: Path) -> None:
    async with group_server(membership(tmp_path / "a", OLD)) as server, peer_of(server) as peer:
        await proven_peer(peer, OLD, lambda proof: proof[:-1] + bytes([proof[-1] ^ 1]))
        assert (await peer.receive()).code == ResponseCode.NO_PERMISSION
        await peer.send(encode(Command(MemberCode.PROVE, 3, ext={"keyId": "00" * 8, "proof": "00" * 32})))
        assert (await peer.receive()).code == ResponseCode.ILLEGAL_OPERATION
        await peer.send(encode(Command(REGISTER, 4)))
        assert (await peer.receive()).code == ResponseCode.NO_PERMISSION


async def test_a_proof_is_worth_nothing_on_another_connection(tmp_path: Path) -> None:
    """Each connection has a nonce of its own."""
    proofs: list[bytes] = []
    async with group_server(membership(tmp_path / "a", OLD)) as server:
        async with peer_of(server) as member:
            await proven_peer(member, OLD, lambda proof: proofs.append(proof) or proof)
            assert (await member.receive()).code == 0
        async with peer_of(server) as thief:
            await proven_peer(thief, OLD, lambda _: proofs[0])
            assert (await thief.receive()).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("how", ["changed", "repeated", "left out", "plain"])
async def test_a_record_that_is_not_the_members_closes_the_connection(tmp_path: Path, how: str) -> None:
    taken: list[bytes] = []

    def record(_: RemotingConnection, command: Command) -> Command:
        taken.append(command.body)
        return response(command, 0)

    members = membership(tmp_path / "a", OLD)
    async with serving(members.guard({REGISTER: record}, GUARDED)) as server, peer_of(server) as peer:
        sealer = await proven_peer(peer, OLD)
        assert (await peer.receive()).code == 0
        first = sealer.seal(encode(Command(REGISTER, 3, body=b"1")))
        second = sealer.seal(encode(Command(REGISTER, 4, body=b"2")))
        forged = {
            "changed": first + second[:-1] + b"3",
            "repeated": first + first,
            "left out": second,
            "plain": first + encode(Command(REGISTER, 4, body=bytes(1000))) * 9,
        }[how]
        await peer.send(forged)
        await peer.receive_all()  # until the server closes
    assert taken in ([], [b"1"])


async def test_bytes_that_arrive_together_with_a_proof_are_not_a_members(tmp_path: Path) -> None:
    """Somebody on the way could have added them."""
    taken: list[Command] = []

    def record(_: RemotingConnection, command: Command) -> Command:
        taken.append(command)
        return response(command, 0)

    members = membership(tmp_path / "a", OLD)
    async with serving(members.guard({REGISTER: record}, GUARDED)) as server, peer_of(server) as peer:
        nonce = bytes(32)
        await peer.send(encode(Command(MemberCode.HELLO, 1, ext={"nonce": nonce.hex()})))
        hello = (await peer.receive()).ext or {}
        handshake = Handshake(PURPOSE, members.secrets[0], nonce, bytes.fromhex(hello["nonce"]))
        ext = {"keyId": members.secrets[0].key_id.hex(), "proof": handshake.client_proof().hex()}
        await peer.send(encode(Command(MemberCode.PROVE, 2, ext=ext)) + encode(Command(REGISTER, 3)))
        assert (await peer.receive()).code == 0
        async with asyncio.timeout(DEADLINE_S):
            size = int.from_bytes(await peer.reader.readexactly(4), "big")
            answer = (await peer.reader.readexactly(16 + size))[16:]
        assert decode(answer[4:]).code == ResponseCode.NO_PERMISSION
    assert not taken


async def test_secrets_rotate_without_a_restart_and_without_a_failed_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new secret before the old one, at one process after the other; then the old one is removed."""
    monkeypatch.setattr("epochmq_protocol.transport.member_authentication.RELOAD_MS", 0)
    one, two = membership(tmp_path / "a", OLD), membership(tmp_path / "b", OLD)
    old, new = (parse_secrets(value)[0].key_id.hex() for value in (OLD, NEW))
    async with group_server(one) as server, RemotingClient(members=two) as member:

        async def proven_by() -> str | None:
            """The secret by which a new connection, and one that lives on, are a member's."""
            assert (await register(member, server)).code == 0
            member.disconnect(address_of(server))
            assert (await register(member, server)).code == 0
            return next(one.member for one in server.connections if not one.closed)

        assert await proven_by() == old
        secret_file(tmp_path / "a", NEW, OLD)
        assert await proven_by() == old
        secret_file(tmp_path / "b", NEW, OLD)
        assert await proven_by() == new
        secret_file(tmp_path / "a", NEW)
        assert await proven_by() == new
        secret_file(tmp_path / "b", NEW)
        assert await proven_by() == new


async def test_a_member_without_a_common_secret_gets_in_once_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochmq_protocol.transport.member_authentication.RELOAD_MS", 0)
    members = membership(tmp_path / "b", OTHER)
    async with (
        group_server(membership(tmp_path / "a", OLD)) as server,
        RemotingClient(members=members) as member,
    ):
        with pytest.raises(ConnectError):
            await register(member, server)
        secret_file(tmp_path / "b", OLD)
        assert (await register(member, server)).code == 0


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        ("x" * 31, 0o600, "a secret has 31 characters, expected at least 32"),
        ("", 0o600, "it has 0 secrets"),
        ("\n".join(f"{n}" * 40 for n in range(5)), 0o600, "it has 5 secrets, expected 1 to 4"),
        (OLD + "\n" + OLD, 0o600, "the same secret twice"),
        ("é" * 40, 0o600, "printable ASCII"),
        (OLD, 0o644, "a file with the rights 0600, not 0644: run chmod 0600"),
        (OLD, 0o620, "a file with the rights 0600, not 0620"),
    ],
)
def test_a_file_that_protects_nothing_is_refused(
    tmp_path: Path, content: str, mode: int, expected: str
) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        load_secrets(str(path))
    assert expected in str(refused.value)
    assert not content or content not in str(refused.value)


def test_a_missing_file_is_refused_and_a_group_may_read_a_mounted_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"memberSecretPath=.*: expected a readable file"):
        load_secrets(str(tmp_path / "none"))
    assert load_secrets(secret_file(tmp_path / "a", OLD, mode=0o440))


def test_no_secret_is_in_a_text_form(tmp_path: Path) -> None:
    members = membership(tmp_path / "a", OLD)
    assert OLD not in repr(members.secrets) + str(members.secrets) + repr(vars(members))
