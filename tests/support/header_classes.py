"""The classes of all headers, by the request that they belong to."""

from __future__ import annotations

from types import ModuleType

from epochmq_protocol import headers_admin, headers_client, headers_controller, headers_namesrv
from epochmq_protocol.headers_base import REQUEST_HEADERS, RESPONSE_HEADERS, Header

DECLARING_MODULES: tuple[ModuleType, ...] = (
    headers_admin,
    headers_client,
    headers_controller,
    headers_namesrv,
)
HEADERS: dict[str, type[Header]] = {
    header.__name__: header
    for header in sorted(
        {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda header: header.__name__
    )
}
"""Every header of a request or response by the name of its class, which is RocketMQ's."""


def request_header(code: int) -> type[Header] | None:
    """The class of a request's header; None if it has no fields."""
    return REQUEST_HEADERS.get(code)
