"""Runs `epochmq console`: checks the address and the token, and serves until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from epochmq.console.access_guard import is_loopback
from epochmq.console.cluster_facts import LiveClusterFacts
from epochmq.console.rate_samples import SampleRing
from epochmq.console.sampler import sample_forever
from epochmq.console.web_app import make_console
from epochmq.exits import ExitCode, UsageError
from epochmq.verbs.target import NameserverTarget
from epochmq_protocol.errors import ConfigError
from epochmq_sidecar.config import SidecarConfig
from epochmq_sidecar.credentials import Tokens
from epochmq_sidecar.main import serve_until_signal

LISTEN_DEFAULT: Final = "127.0.0.1:9888"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the console listens. Port 0 is any free one."""

    host: str
    port: int

    def url(self, port: int) -> str:
        """The address to open in a browser."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"


def parse_listen(text: str) -> ListenAddress:
    """The address of `--listen HOST:PORT`; IPv6 in brackets. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port[:6]) > 65535:
        raise UsageError(f"--listen {text}: expected HOST:PORT, for example {LISTEN_DEFAULT}")
    return ListenAddress(host, int(port))


def run(
    target: NameserverTarget, listen: str, token_file: Path | None, timeout_s: float, *, allows_changes: bool
) -> int:
    """Serves the console of a cluster. Raises UsageError for options that cannot be used."""
    address = parse_listen(listen)
    if token_file is None and not is_loopback(address.host):
        raise UsageError(
            f"--listen {listen}: whoever reaches this address could read every message; give --token-file "
            f"FILE with a token, or a loopback address such as {LISTEN_DEFAULT}"
        )
    if allows_changes and token_file is None:
        raise UsageError(
            "--allow-changes needs --token-file FILE: without a token every user of this machine, and every "
            "program of yours, could change the cluster"
        )
    if target.run_directory() is None:
        target.nameservers()  # a run may start later, but what the options say does not change
    target.credentials()
    tokens = _tokens(token_file)
    return asyncio.run(
        _serve(LiveClusterFacts(target, timeout_s), address, tokens, allows_changes=allows_changes)
    )


def _tokens(path: Path | None) -> Tokens | None:
    if path is None:
        return None
    try:
        return Tokens(SidecarConfig(admin_token_file=str(path)))
    except ConfigError as error:
        raise UsageError(f"--token-file {path}: expected {error.expected}") from None


async def _serve(
    facts: LiveClusterFacts, address: ListenAddress, tokens: Tokens | None, *, allows_changes: bool
) -> int:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise UsageError(
            f"--listen {address.host}:{address.port}: {error.strerror or error}; give another address"
        ) from None

    def started() -> None:
        print(f"console: {address.url(listener.getsockname()[1])} (Ctrl-C ends it)", flush=True)

    ring = SampleRing()
    app = make_console(
        facts, None if tokens is None else tokens.accepts, allows_changes=allows_changes, ring=ring
    )
    sampling = asyncio.create_task(sample_forever(facts.sample, ring))
    try:
        await serve_until_signal(app, listener, started)
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
    return ExitCode.OK
