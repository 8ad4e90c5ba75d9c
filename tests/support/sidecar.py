"""An admin sidecar beside a real process, and what it is asked over HTTP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.cluster import Settings, our_process, properties
from tests.support.group_processes import Member
from tests.support.net import free_port, loopback

TOKEN = "a-token-of-good-length"
ANSWER_S = 120


class Sidecar:
    """One sidecar. `settings_of` returns the settings by which its process opens the socket."""

    def __init__(self, directory: Path, *, octet: int, **settings: str | int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.socket = directory / "admin.sock"
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN)
        self.host = loopback(octet)
        self.port = free_port(self.host)
        config = directory / "admin.conf"
        made: Settings = {
            "bindAddress": self.host,
            "listenPort": self.port,
            "adminSocketPath": str(self.socket),
            "adminTokenFile": str(self.token_file),
            "credentialsPeriodMs": 100,
            "socketTimeoutMs": 5000,  # a busy machine must not look like a process that hangs
            **settings,
        }
        config.write_text(properties(made))
        self.process = our_process("admin", config)
        # A connection that is kept may be closed in the moment in which it is used again.
        none_kept = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(timeout=ANSWER_S, verify=False, limits=none_kept)

    @classmethod
    def beside(cls, member: Member, *, octet: int, **settings: str | int) -> Sidecar:
        """Tells a member of a group, before it is started, where the socket is."""
        made = cls(member.config.parent / "admin", octet=octet, **settings)
        with member.config.open("a") as config:
            config.write(f"adminSocketPath={made.socket}\n")
        return made

    def start(self) -> None:
        """Returns when it listens."""
        self.process.start()
        self.process.wait_until(self._listens, what="listening")

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self._client.close()

    def _listens(self) -> bool:
        try:
            return self.get("/openapi.json").status_code == 200
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return True  # it speaks TLS
        except httpx.TransportError:
            return False

    def get(self, path: str) -> httpx.Response:
        """Without a token."""
        return self._client.get(f"http://{self.host}:{self.port}{path}")

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN) -> httpx.Response:
        """With a token."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        url = f"http://{self.host}:{self.port}{path}"
        return self._client.request(method, url, json=body, headers=headers)

    def state(self) -> dict[str, Any]:
        """`/v1/state`; nothing while the process does not answer."""
        response = self.get("/v1/state")
        found: dict[str, Any] = response.json() if response.status_code == 200 else {}
        return found

    def ready(self) -> tuple[int, list[str]]:
        """(status, reasons)."""
        response = self.get("/ready")
        return response.status_code, response.json()["notReady"]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`epochmq admin-call`, which asks the process itself."""
        command = [sys.executable, "-m", "epochmq", "admin-call", "--socket", str(self.socket), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
