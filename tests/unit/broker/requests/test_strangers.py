"""What only members send to a broker it serves to members only, whatever the access control permits."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_protocol.bodies import KVTable, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import request
from epochmq_protocol.member_requests import BROKER_REQUESTS
from epochmq_protocol.transport import port_counts
from tests.support.member_secrets import secret_file
from tests.unit.broker.kit import Bench, running, send_command


@pytest.mark.parametrize("code", sorted(BROKER_REQUESTS))
async def test_a_stranger_cannot_make_a_members_request(tmp_path: Path, code: int) -> None:
    async with running(tmp_path / "store") as open_broker:
        answer = await _code(open_broker, code)
        assert answer != ResponseCode.NO_PERMISSION, "a broker without a secret is as before"
    rejected = port_counts.strangers_rejected
    async with running(tmp_path / "own", {"memberSecretPath": secret_file(tmp_path / "secret")}) as broker:
        assert await _code(broker, code) == ResponseCode.NO_PERMISSION
        assert port_counts.strangers_rejected == rejected + 1


async def _code(bench: Bench, code: int) -> int | None:
    """The code of the response; None for none."""
    peer = bench.peer()
    opaque = peer.send(request(code))
    peer.collect()
    answer = peer.answers.get(opaque) or await peer.answer(opaque)
    return int(answer.code)


async def test_clients_and_administrators_need_no_proof(tmp_path: Path) -> None:
    secret = secret_file(tmp_path / "secret")
    async with running(tmp_path / "store", {"memberSecretPath": secret}) as bench:
        peer = bench.peer()
        assert peer.call(send_command("orders")).code == ResponseCode.SUCCESS
        config = peer.call(request(RequestCode.GET_BROKER_CONFIG))
        assert config.code == ResponseCode.SUCCESS
        assert b"a-secret-of" not in config.body, "the path, not the secret"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, "required"), ({"allowUnauthenticatedMembers": "true"}, "unauthenticatedAllowed")],
)
async def test_the_runtime_information_says_who_counts_as_a_member(
    tmp_path: Path, settings: dict[str, str], expected: str
) -> None:
    async def entry(more: dict[str, str]) -> str | None:
        async with running(tmp_path / str(len(more)), more) as bench:
            answer = bench.peer().call(request(RequestCode.GET_BROKER_RUNTIME_INFO))
            return from_json(KVTable, answer.body).table.get("memberAuthentication")

    assert await entry({}) is None
    assert await entry({"memberSecretPath": secret_file(tmp_path / "secret"), **settings}) == expected
