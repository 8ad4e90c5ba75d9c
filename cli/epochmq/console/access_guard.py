"""Decides which requests the console serves: by the name of the host that they ask for, or by their token."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

QUERY_MAX: Final = 2000
"""Characters of a request's query."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def given_token(header: str) -> str:
    """The token of an `Authorization` header: that of `Bearer`, or the password of `Basic`, for which
    browsers ask. Empty if there is none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def rejection(request: Request, accepts: Callable[[str], bool] | None) -> Response | None:
    """The response to a request that is not served; None if it is."""
    if len(request.url.query) > QUERY_MAX:
        return PlainTextResponse("the query is too long\n", 414)
    if accepts is None:
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        except ValueError:
            host = ""
        if not is_loopback(host):
            return PlainTextResponse(
                "this console serves its own machine: use http://127.0.0.1 or http://localhost\n", 421
            )
    elif not accepts(given_token(request.headers.get("authorization", ""))):
        return PlainTextResponse(
            "this console needs a token: give it as the password, with any user name\n",
            401,
            {"WWW-Authenticate": 'Basic realm="EpochMQ console", charset="UTF-8"'},
        )
    return None
