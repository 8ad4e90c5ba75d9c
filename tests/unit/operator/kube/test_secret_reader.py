"""Tests how the operator reads Secrets."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from epochmq_operator.kube.api import ApiError
from epochmq_operator.kube.secret_reader import SecretError, SecretReader


class Secrets:
    """An API server with one Secret, or an error."""

    def __init__(self, data: dict[str, str] | ApiError) -> None:
        self.data = data
        self.requests = 0

    async def get(self, path: str) -> dict[str, Any]:
        self.requests += 1
        assert path == "/api/v1/namespaces/trade/secrets/shop"
        if isinstance(self.data, ApiError):
            raise self.data
        return {"metadata": {"resourceVersion": "7"}, "data": self.data}


def reader(server: Any) -> SecretReader:
    return SecretReader(server)


async def test_a_key_is_read_once_for_a_while_and_its_text_is_not_shown() -> None:
    server = Secrets({"password": base64.b64encode(b"hidden").decode()})
    secrets = reader(server)
    for _ in range(3):
        found = await secrets.text("trade", "shop", "password")
        assert (found.text, found.version) == ("hidden", "7")
    assert server.requests == 1
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ApiError(404, "not found"), "Secret shop does not exist: create it"),
        (
            ApiError(403, "forbidden"),
            "the operator may not read Secret shop: add it to the chart's value readSecrets",
        ),
        (ApiError(0, "no route"), "cannot read Secret shop: no route"),
        ({}, "Secret shop has no key password: add it"),
        ({"password": "!"}, "the key password of Secret shop is no text in UTF-8"),
        ({"password": base64.b64encode(bytes([255])).decode()}, "no text in UTF-8"),
    ],
)
async def test_an_unusable_secret_says_what_to_do(data: Any, message: str) -> None:
    with pytest.raises(SecretError, match=message):
        await reader(Secrets(data)).text("trade", "shop", "password")


async def test_a_secret_is_as_before_while_the_api_server_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epochmq_operator.kube.secret_reader.CACHED_S", 0.0)
    server = Secrets({"password": base64.b64encode(b"hidden").decode()})
    secrets = reader(server)
    await secrets.text("trade", "shop", "password")
    server.data = ApiError(500, "etcdserver: request timed out")
    assert (await secrets.text("trade", "shop", "password")).text == "hidden"
    server.data = ApiError(404, "not found")
    with pytest.raises(SecretError, match="does not exist"):
        await secrets.text("trade", "shop", "password")
