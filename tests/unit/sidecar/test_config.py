"""An invalid setting is named with its value and the expected values."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epochmq_protocol.errors import ConfigError
from epochmq_sidecar.config import SidecarConfig, load
from epochmq_sidecar.credentials import Tokens, server_context
from epochmq_sidecar.main import EXIT_CONFIG, run

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_without_a_file_the_defaults_apply() -> None:
    config, warnings = load(None)
    assert (config.bind_address, config.listen_port) == ("0.0.0.0", 9880)
    assert config.admin_socket_path == "/run/epochmq/admin.sock"
    assert warnings == []
    assert server_context(config) is None
    assert not Tokens(config).exist


def test_overrides_take_precedence_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "admin.conf"
    path.write_text("listenPort = 9900\nreadyMaxLagBytes=7\nadminTokenFiel=x\n")
    config, warnings = load(str(path), {"listenPort": "9901"})
    assert (config.listen_port, config.limits.max_lag_bytes) == (9901, 7)
    assert warnings == ["adminTokenFiel: unknown key, ignored (did you mean adminTokenFile?)"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listenPort": "0"}, "listenPort=0: expected a whole number from 1 to 65535"),
        ({"adminSocketPath": "run.sock"}, "adminSocketPath=run.sock: expected an absolute path"),
        ({"adminTlsCertFile": "a"}, "adminTlsKeyFile=: expected set together with adminTlsCertFile"),
        ({"adminTlsCaFile": "a"}, "adminTlsCaFile=a: expected set together with adminTlsCertFile"),
        (
            {"adminTlsClientAuth": "require"},
            "adminTlsClientAuth=require: expected set together with adminTlsCaFile",
        ),
        ({"adminTlsClientAuth": "maybe"}, "adminTlsClientAuth=maybe: expected one of optional, require"),
        ({"adminReads": "guarded"}, "adminReads=guarded: expected adminTokenFile or adminTlsCaFile"),
        ({"readyMaxLagMs": "-1"}, "readyMaxLagMs=-1: expected a whole number of at least 0"),
    ],
)
def test_an_invalid_setting_is_rejected(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, values)
    assert message in str(caught.value)


def test_a_missing_file_and_a_file_that_is_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a readable file"):
        load(str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="expected a readable file"):
        load(str(tmp_path / "binary"))


def test_the_process_exits_with_2_for_an_invalid_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(None, {"adminTokenFile": str(tmp_path / "none")}) == EXIT_CONFIG
    message = capfd.readouterr().err
    assert "adminTokenFile" in message
    assert "expected a readable file" in message


def test_every_key_is_in_the_documents() -> None:
    text = (DOCS / "admin.md").read_text()
    keys = [field.encode_name for field in msgspec.structs.fields(SidecarConfig)]
    assert [key for key in keys if f"`{key}`" not in text] == []
