"""The sidecar of a nameserver, alone and with a controller in its process."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import our_process, properties
from tests.support.net import free_port, loopback
from tests.support.process import wait_until
from tests.support.sidecar import Sidecar

OCTET = 74


def test_a_nameserver_with_a_controller_reports_both(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path / "admin", octet=OCTET)
    host = loopback(OCTET)
    port, peer = free_port(host), f"{host}:{free_port(host)}"
    config = tmp_path / "namesrv.conf"
    settings: dict[str, str | int] = {
        "bindAddress": host,
        "listenPort": port,
        "kvConfigPath": str(tmp_path / "kv.json"),
        "adminSocketPath": str(sidecar.socket),
    }
    config.write_text(properties(settings))
    nameserver = our_process("nameserver", config)
    try:
        sidecar.start()
        nameserver.start()
        wait_until(lambda: sidecar.ready()[0] == 200, what="the nameserver is ready")
        state = sidecar.state()
        assert (state["component"], state["address"]) == ("nameserver", f"{host}:{port}")
        assert nameserver.stop() == 0
        assert not sidecar.socket.exists()
        inside: dict[str, str | int] = {
            "enableControllerInNamesrv": True,
            "controllerDLegerGroup": "c",
            "controllerDLegerPeers": f"n0-{peer}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(tmp_path / "store"),
            "mappedFileSize": 1 << 20,
        }
        config.write_text(properties({**settings, **inside}))
        nameserver.start()
        wait_until(lambda: sidecar.ready()[0] == 200, what="the controller leads")
        state = sidecar.state()
        assert (state["component"], state["role"], state["leads"]) == ("controller", "leader", True)
        assert state["nameserver"]["address"] == f"{host}:{port}"
        changed = sidecar.ask(
            "PATCH", "/v1/config", {"orderMessageEnable": True, "electMasterMaxRetryCount": 5}
        )
        assert changed.status_code == 200, changed.text
        found = sidecar.get("/v1/config").json()["config"]
        assert (found["orderMessageEnable"], found["electMasterMaxRetryCount"]) == ("true", "5")
    finally:
        nameserver.kill()
        sidecar.kill()
