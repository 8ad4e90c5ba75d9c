"""Exchanges HA addresses with another broker of the group (906)."""

from __future__ import annotations

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import ExchangeHAInfoRequestHeader, ExchangeHAInfoResponseHeader
from epochmq_protocol.transport.request_client import RequestClient


async def exchange_ha_info(
    client: RequestClient,
    address: str,
    timeout_ms: float,
    header: ExchangeHAInfoRequestHeader | None = None,
) -> ExchangeHAInfoResponseHeader:
    """What the broker at `address` says of itself. Without `header` it is asked only; with one it is told
    what a returning master is. Raises EpochMQError if it does not respond, or not with success. A broker that
    does not know that it is the master leaves the HA address empty."""
    command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, header or ExchangeHAInfoRequestHeader())
    response = await client.call(address, command, timeout_ms)
    if response.code != ResponseCode.SUCCESS:
        raise EpochMQError(f"{address} responded with code {response.code}: {response.remark}")
    return ExchangeHAInfoResponseHeader.decode(response.ext)
