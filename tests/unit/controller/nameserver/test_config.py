"""A Java `namesrv.conf` works. The error of an invalid setting names key, value and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_controller import settings_file, text_files
from epochmq_controller.nameserver import config
from epochmq_controller.nameserver.kv_config import KVConfig
from epochmq_protocol import properties
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport import ClientAuth, TlsMode, TlsSettings


def test_the_defaults_are_javas() -> None:
    loaded = config.load("")
    found = loaded.config
    assert (found.listen_port, found.bind_address) == (9876, "0.0.0.0")
    assert (found.scan_not_active_broker_interval, found.un_register_broker_queue_capacity) == (5000, 3000)
    assert found.return_order_topic_config_to_broker
    assert not found.support_acting_master
    assert found.server_settings().idle_timeout_ms == 120_000
    assert loaded.warnings == []


def test_keys_of_java_are_read_and_unknown_ones_warned_about_and_kept() -> None:
    text = "listenPort = 9877\nsupportActingMaster=TRUE\nserverWorkerThreads=4\n"
    text += "supportActingMastr=true\nmine=1\n"
    loaded = config.load(text, {"listenPort": "9878"})
    assert loaded.config.listen_port == 9878
    assert loaded.config.support_acting_master
    assert loaded.extra == {"supportActingMastr": "true", "mine": "1"}
    assert any(
        "supportActingMastr" in warning and "supportActingMaster" in warning for warning in loaded.warnings
    )
    shown = properties.parse(settings_file.to_text(loaded.config, loaded.extra))
    assert shown["mine"] == "1"
    assert shown["serverWorkerThreads"] == "4"
    assert list(shown) == sorted(shown)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("listenPort=abc", "listenPort=abc: expected a whole number from 0 to 65535"),
        ("supportActingMaster=yes", "supportActingMaster=yes: expected true or false"),
        ("scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval=0: expected"),
        ("clusterTest=true", "clusterTest=true: expected false"),
        ("writeBufferHighWaterMark=10\nwriteBufferLowWaterMark=20", "writeBufferLowWaterMark=20: expected"),
        ("tls.server.mode=strict", "tls.server.mode=strict: expected one of disabled, permissive, enforcing"),
        ("tls.server.need.client.auth=x", "tls.server.need.client.auth=x: expected one of none"),
    ],
)
def test_bad_values_are_refused_by_name(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(text)
    assert str(caught.value).startswith(error)


def test_tls_keys_are_javas_and_not_shown_among_the_settings() -> None:
    loaded = config.load(
        "tls.server.mode=enforcing\ntls.server.certPath=/c\ntls.server.keyPath=/k\ntls.server.keyPassword=p\n"
        "tls.server.trustCertPath=/t\ntls.server.need.client.auth=require\n"
    )
    tls = loaded.tls
    assert (tls.mode, tls.cert_path, tls.key_path) == (TlsMode.ENFORCING, "/c", "/k")
    assert (tls.key_password, tls.trust_path, tls.client_auth) == ("p", "/t", ClientAuth.REQUIRE)
    assert "tls" not in settings_file.to_text(loaded.config, loaded.extra)


def test_connections_to_other_members_use_tls_by_javas_keys(tmp_path: Path) -> None:
    assert config.load("tls.client.certPath=/c\ntls.client.keyPath=/k\n").outgoing_tls is None
    (tmp_path / "tls.properties").write_text(
        "tls.client.certPath=/c\ntls.client.keyPath=/k\ntls.client.trustCertPath=/t\ntls.server.certPath=/s\n"
    )
    loaded = config.load(
        f"tls.config.file={tmp_path}/tls.properties\ntls.enable=true\ntls.server.certPath=/o"
    )
    assert loaded.outgoing_tls == TlsSettings(
        cert_path="/c", key_path="/k", trust_path="/t", auth_server=True
    )
    assert loaded.tls.cert_path == "/s"
    assert "tls" not in settings_file.to_text(loaded.config, loaded.extra).lower()
    assert loaded.warnings == []


def test_write_buffer_marks_reach_the_transport() -> None:
    found = config.load("writeBufferHighWaterMark=1000").config.server_settings()
    assert (found.write_high_water_bytes, found.write_low_water_bytes) == (1000, 250)


async def test_kv_config_is_kept_in_javas_file_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KVConfig(path)
    kv.load()
    await kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    assert path.read_text() == '{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}'
    await kv.put("n", "k", "v")
    await kv.delete("n", "k")
    await kv.delete("n", "never there")
    await kv.delete("nowhere", "k")
    again = KVConfig(path)
    again.load()
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"
    assert again.namespace("n") == {}
    assert again.namespace("nowhere") is None
    assert again.get("n", "k") is None


async def test_the_former_kv_file_is_used_when_the_present_one_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(path)
    await kv.put("n", "k", "1")
    await kv.put("n", "k", "2")
    path.write_text("")
    again = KVConfig(path)
    again.load()
    assert again.get("n", "k") == "1"


def test_a_broken_kv_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":[1]}')
    with pytest.raises(ConfigError, match=r"kvConfigPath=.*kvConfig\.json"):
        KVConfig(path).load()
    assert path.read_text() == '{"configTable":[1]}'


async def test_a_kv_file_that_cannot_be_written_costs_no_request(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    kv = KVConfig(blocked / "kvConfig.json")
    await kv.put("n", "k", "v")
    assert kv.get("n", "k") == "v"


def test_a_file_is_replaced_whole_and_the_former_text_kept(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert text_files.read_text(path) is None
    text_files.write_text(path, "one")
    text_files.write_text(path, "two")
    assert path.read_text() == "two"
    assert (tmp_path / "f.bak").read_text() == "one"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["f", "f.bak"]
