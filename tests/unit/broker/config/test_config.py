"""The broker's settings: RocketMQ's keys, Java's defaults, and actionable errors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epochmq_broker.config.broker_config import (
    BrokerConfig,
    LiveConfig,
    from_properties,
    load_broker_config,
    rocketmq_key,
)
from epochmq_broker.config.port_settings import port_settings
from epochmq_protocol import typed_config
from epochmq_protocol.broker_keys import CHANGEABLE_BROKER_KEYS, REJECTED_UNLESS, WITHOUT_EFFECT, is_fixed
from epochmq_protocol.errors import ConfigError
from tests.unit.broker.auth.kit import PROVIDERS


def test_a_broker_conf_written_for_java_is_read(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerClusterName = DefaultCluster\n# a comment\nbrokerName=broker-a\nbrokerId = 0\n"
        "deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = SYNC_FLUSH\n"
        "namesrvAddr=127.53.9.1:9876;127.53.9.2:9876\nlistenPort=20911\nbrokerIP1=127.53.9.3\n"
        "sendMessageThreadPoolNums=16\n"
    )
    loaded = load_broker_config(conf)
    config = loaded.config
    assert loaded.warnings == ()
    assert config.broker_name == "broker-a"
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.file_reserved_time == 48
    assert config.nameservers == ("127.53.9.1:9876", "127.53.9.2:9876")
    assert (config.listen_port, config.vip_port, config.ha_listen_port) == (20911, 20909, 20912)
    assert config.broker_addr == "127.53.9.3:20911"
    assert loaded.without_effect["sendMessageThreadPoolNums"] == "16"


def test_the_limits_of_ports_come_from_the_configuration() -> None:
    config = from_properties(
        {"maxHeaderSize": "70000", "maxReceivedBytes": "1", "frameTimeoutMillis": "2"}
        | {"maxConnectionsPerAddress": "3", "maxNewConnectionsPerAddress": "4"}
    ).config
    found = port_settings(config)
    assert (found.max_header_bytes, found.max_received_bytes, found.frame_timeout_ms) == (70_000, 1, 2)
    assert (found.max_connections_per_address, found.max_new_connections_per_address) == (3, 4)


def test_overrides_take_precedence_over_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=from-the-file\nlistenPort=20911\n")
    assert load_broker_config(conf, {"brokerName": "given"}).config.broker_name == "given"


def test_settings_that_override_the_file_still_do_after_a_reload(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("externalListenPort=10921\n")
    loaded = load_broker_config(conf, {"externalIP": "10.0.0.7"})
    live = LiveConfig(loaded.config, loaded.without_effect, loaded.overrides)
    live.reload({"externalListenPort": "10921", "fileReservedTime": "48"}, "v2")
    assert (live.current.external_addr, live.current.file_reserved_time) == ("10.0.0.7:10921", 48)


def test_defaults_are_those_of_java() -> None:
    config = from_properties({}).config
    assert config.listen_port == 10911
    assert config.ha_listen_port == 10912
    assert config.mapped_file_size_commit_log == 1 << 30
    assert config.delays_ms[:3] == (1000, 5000, 10_000)
    assert len(config.delays_ms) == 18
    assert config.delays_ms[-1] == 7_200_000
    assert config.broker_name


def test_the_defaults_of_groups_with_an_acting_master_are_those_of_java() -> None:
    config = from_properties({}).config
    shown = {field.encode_name: getattr(config, field.name) for field in msgspec.structs.fields(config)}
    expected = {
        "enableSlaveActingMaster": False,
        "enableRemoteEscape": False,
        "skipPreOnline": False,
        "slaveReadEnable": False,
        "lockInStrictMode": False,
        "compatibleWithOldNameSrv": True,
        "brokerHeartbeatInterval": 1000,
        "sendHeartbeatTimeoutMillis": 1000,
        "brokerNotActiveTimeoutMillis": 10_000,
        "syncBrokerMemberGroupPeriod": 1000,
        "registerNameServerPeriod": 30_000,
        "totalReplicas": 1,
        "consumerOffsetUpdateVersionStep": 500,
        "delayOffsetUpdateVersionStep": 200,
        "syncMasterFlushOffsetWhenStartup": False,
    }
    assert {key: shown[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ({"listenPort": "many"}, "listenPort", "whole number"),
        ({"listenPort": "70000"}, "listenPort", "65535"),
        ({"listenPort": "2"}, "listenPort", "VIP port"),
        ({"haListenPort": "10911"}, "haListenPort", "listenPort"),
        ({"flushDiskType": "SOMETIMES"}, "flushDiskType", "SYNC_FLUSH"),
        ({"namesrvAddr": "nowhere"}, "namesrvAddr", "host:port"),
        ({"namesrvAddr": "a:9876,b:9876"}, "namesrvAddr", "';'"),
        ({"messageDelayLevel": "1s 5x"}, "messageDelayLevel", "1s"),
        ({"deleteWhen": "25"}, "deleteWhen", "00 to 23"),
        ({"maxMessageSize": "2147000000"}, "maxMessageSize", "mappedFileSizeCommitLog"),
        ({"brokerId": "3"}, "brokerId", "0"),
        ({"autoCreateTopicEnable": "perhaps"}, "autoCreateTopicEnable", "true or false"),
        ({"tlsServerCertPath": "/cert.pem"}, "tlsServerKeyPath", "together"),
        ({"tls.server.mode": "enforcing"}, "tlsServerMode", "certificate"),
        ({"tls.enable": "yes"}, "useTLS", "true"),
        ({"haTlsMode": "on"}, "haTlsMode", "permissive"),
        ({"haTlsMode": "permissive"}, "haTlsMode", "tls.client.trustCertPath"),
        ({"tls.client.certPath": "/c.pem"}, "tls.client.keyPath", "together"),
        ({"useTLS": "true", "tls.client.authServer": "true"}, "tlsClientTrustCertPath", "authServer"),
        ({"externalListenPort": "10911"}, "externalListenPort", "neither"),
        ({"externalIP": "a.example.com"}, "externalIP", "externalListenPort"),
        ({"externalPort": "30911"}, "externalPort", "externalListenPort"),
        ({"externalTlsMode": "permissive"}, "externalTlsMode", "externalListenPort"),
        ({"externalListenPort": "10921", "externalIP": "a b"}, "externalIP", "name"),
        ({"externalListenPort": "10921", "externalTlsMode": "enforcing"}, "externalTlsMode", "certificate"),
    ],
)
def test_an_invalid_value_is_rejected_with_key_value_and_expected_values(
    text: dict[str, str], key: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_properties(text)
    assert caught.value.key == key
    assert expected in caught.value.expected
    assert f"{key}=" in str(caught.value)


@pytest.mark.parametrize("key", sorted(REJECTED_UNLESS))
def test_a_key_that_would_break_a_promise_accepts_only_values_without_effect(key: str) -> None:
    harmless, _ = REJECTED_UNLESS[key]
    for value in harmless:
        assert from_properties({key: value}).warnings == ()
    with pytest.raises(ConfigError) as caught:
        from_properties({key: "something else"})
    assert caught.value.key == key


def test_an_unknown_key_is_warned_about_by_name_and_a_key_of_java_is_not() -> None:
    loaded = from_properties({"flushDiskTyp": "ASYNC_FLUSH", "useEpollNativeSelector": "true"})
    assert len(loaded.warnings) == 1
    assert "flushDiskTyp" in loaded.warnings[0]
    assert loaded.without_effect == {"useEpollNativeSelector": "true"}


def test_every_key_is_of_exactly_one_kind() -> None:
    fields = typed_config.keys(BrokerConfig)
    assert not fields & WITHOUT_EFFECT
    assert not fields & REJECTED_UNLESS.keys()
    assert not WITHOUT_EFFECT & REJECTED_UNLESS.keys()


def test_field_names_become_the_keys_of_rocketmq() -> None:
    assert rocketmq_key("flush_disk_type") == "flushDiskType"
    assert rocketmq_key("broker_ip1") == "brokerIP1"
    assert "checkCRCOnRecover" in typed_config.keys(BrokerConfig)


def test_java_spells_tls_keys_with_dots() -> None:
    assert from_properties({"tls.server.mode": "disabled"}).config.tls_server_mode == "disabled"
    loaded = from_properties({"tls.server.certPath": "/c.pem", "tls.server.keyPath": "/k.pem"})
    assert loaded.config.tls_server_cert_path == "/c.pem"


SERVER = {"tls.server.certPath": "/c", "tls.server.keyPath": "/k"}


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ({}, False),
        ({"tls.enable": "true"}, True),
        ({"tls.enable": "true", "useTLS": "false"}, False),
        ({"tls.server.mode": "enforcing", **SERVER}, True),
        ({"tls.server.mode": "enforcing", "tls.enable": "false", **SERVER}, False),
    ],
)
def test_a_broker_connects_by_tls_as_a_broker_of_java_does(text: dict[str, str], uses: bool) -> None:
    loaded = from_properties(text)
    assert (loaded.config.use_tls, loaded.warnings) == (uses, ())
    assert loaded.config.as_properties()["useTLS"] == str(uses).lower()


def test_the_keys_of_a_tls_file_win_and_a_reload_keeps_them(tmp_path: Path) -> None:
    tls, conf = tmp_path / "tls.properties", tmp_path / "broker.conf"
    tls.write_text("tls.client.certPath=/c\ntls.client.keyPath=/k\ntls.client.trustCertPath=/t\n")
    text = {"tls.config.file": str(tls), "tls.client.certPath": "/other", "tls.enable": "true"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in text.items()))
    loaded = load_broker_config(conf)
    config = loaded.config
    assert (config.tls_client_cert_path, config.tls_client_key_path) == ("/c", "/k")
    assert config.tls_client_auth_server
    live = LiveConfig(config, loaded.without_effect, loaded.overrides)
    assert live.reload(text, "2") == []
    assert live.current == config


@pytest.mark.parametrize(
    ("content", "error"), [("listenPort=1\n", "not listenPort"), (None, "readable file")]
)
def test_an_unusable_tls_file_is_named(tmp_path: Path, content: str | None, error: str) -> None:
    path = tmp_path / "tls.properties"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"tls\.config\.file=.*tls\.properties: expected .*{error}"):
        load_broker_config(None, {"tls.config.file": str(path)})


def test_consume_queue_files_hold_whole_units() -> None:
    assert (
        from_properties({"mappedFileSizeConsumeQueue": "4001"}).config.mapped_file_size_consume_queue == 4020
    )


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"brokerConfigPath=/nowhere/broker\.conf"):
        load_broker_config("/nowhere/broker.conf")


class TestLiveConfig:
    """Settings change while the broker runs."""

    def test_listeners_get_the_settings_before_and_after_a_change(self) -> None:
        live = LiveConfig(from_properties({"brokerName": "b"}).config)
        seen: list[tuple[str, str]] = []
        live.on_change.append(lambda old, new: seen.append((old.flush_disk_type, new.flush_disk_type)))
        assert live.update({"flushDiskType": "SYNC_FLUSH"}) == []
        assert seen == [("ASYNC_FLUSH", "SYNC_FLUSH")]
        assert live.current.broker_name == "b"

    def test_one_invalid_value_prevents_the_whole_change(self) -> None:
        live = LiveConfig(from_properties({}).config)
        before = live.current
        with pytest.raises(ConfigError):
            live.update({"brokerPermission": "4", "flushDiskType": "NEVER"})
        assert live.current is before

    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"brokerRole": "ASYNC_MASTER"}, "brokerRole"),
            ({"brokerId": "7"}, "brokerId"),
            ({"enableControllerMode": "false"}, "enableControllerMode"),
        ],
    )
    def test_under_controllers_an_administrator_cannot_change_the_role(
        self, changes: dict[str, str], key: str
    ) -> None:
        settings = {"enableControllerMode": "true", "controllerAddr": "a:1"}
        live = LiveConfig(from_properties(settings).config)
        live.set_role(2, "SLAVE")
        before = live.current
        with pytest.raises(ConfigError) as caught:
            live.update(changes)
        assert (caught.value.key, live.current) == (key, before)
        live.update({"controllerAddr": "a:1;b:1", "brokerId": "2"})
        assert live.current.controllers == ("a:1", "b:1")

    def test_every_key_either_may_change_or_is_fixed(self) -> None:
        keys = BrokerConfig().as_properties().keys()
        assert keys >= CHANGEABLE_BROKER_KEYS
        assert {key for key in keys if is_fixed(key)} == keys - CHANGEABLE_BROKER_KEYS
        assert not [key for key in CHANGEABLE_BROKER_KEYS if "Path" in key]

    def test_a_key_that_is_read_at_the_start_keeps_its_value(self) -> None:
        live = LiveConfig(from_properties({}).config)
        with pytest.raises(
            ConfigError, match="enableLmq=true: expected false, because the key cannot change"
        ):
            live.update({"enableLmq": "true"})
        # The parts of an acting master are made at the start: a change would start the heartbeats only.
        with pytest.raises(ConfigError, match="enableSlaveActingMaster=true: expected false"):
            live.update({"enableSlaveActingMaster": "true"})
        assert not live.current.enable_slave_acting_master
        secret = '{"accessKey":"name","secretKey":"password"}'
        with pytest.raises(ConfigError) as caught:
            live.update({"innerClientAuthenticationCredentials": secret})
        assert "password" not in str(caught.value)

    def test_a_reloaded_file_is_in_force_as_if_the_broker_had_started_with_it(self) -> None:
        first = {"brokerName": "b", "brokerConfigPath": "/etc/b.conf", "fileReservedTime": "48"}
        loaded = from_properties({**first, "sendMessageThreadPoolNums": "4"})
        live = LiveConfig(loaded.config, loaded.without_effect)
        seen: list[int] = []
        live.on_change.append(lambda before, after: seen.append(after.delete_file_batch_max))
        live.update({"diskMaxUsedSpaceRatio": "80"})
        assert live.reload({"brokerName": "b", "deleteFileBatchMax": "7"}, "v1") == []
        assert (live.current.file_reserved_time, live.current.disk_max_used_space_ratio) == (72, 75)
        assert (live.version, seen[-1]) == ("v1", 7)
        wanted = from_properties({"brokerConfigPath": "/etc/b.conf", "deleteFileBatchMax": "7"} | first)
        assert live.without_effect == wanted.without_effect

    @pytest.mark.parametrize("wrong", [{"fileReservedTime": "soon"}, {"enableLmq": "true"}])
    def test_a_file_with_an_invalid_or_fixed_key_is_rejected_as_a_whole(self, wrong: dict[str, str]) -> None:
        live = LiveConfig(from_properties({"brokerName": "b"}).config)
        before = live.current
        with pytest.raises(ConfigError) as caught:
            live.reload({"brokerName": "b", "deleteFileBatchMax": "7", **wrong}, "v1")
        assert (caught.value.key, live.current, live.version) == (next(iter(wrong)), before, "")

    def test_a_reload_keeps_the_role_and_the_secrets(self) -> None:
        secret = '{"accessKey":"name","secretKey":"password"}'
        text = {**PROVIDERS, "enableControllerMode": "true", "controllerAddr": "a:1"}
        live = LiveConfig(from_properties({**text, "innerClientAuthenticationCredentials": secret}).config)
        live.set_role(2, "SLAVE")
        live.reload({**text, "controllerAddr": "a:1;b:1"}, "v1")
        assert (live.current.broker_id, live.current.broker_role) == (2, "SLAVE")
        assert live.current.inner_client_authentication_credentials == secret
        assert live.current.controllers == ("a:1", "b:1")

    def test_a_reload_keeps_the_members_that_the_broker_started_with(self) -> None:
        """The log of the group names them by now."""
        peers = "n0-a:40911;n1-b:40911;n2-c:40911"
        text = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerSelfId": "n0"}
        live = LiveConfig(from_properties({**text, "dLegerPeers": peers}).config)
        others = {"dLegerPeers": "n0-a:40911", "joinDLedgerGroup": "true", "deleteFileBatchMax": "7"}
        live.reload({**text, **others}, "v1")
        shown = live.as_properties()
        assert (shown["dLegerPeers"], shown["joinDLedgerGroup"]) == (peers, "false")
        assert (live.current.delete_file_batch_max, live.version) == (7, "v1")
        with pytest.raises(ConfigError):
            live.update({"dLegerPeers": "n0-a:40911"})

    def test_all_keys_are_shown_those_without_effect_included(self) -> None:
        loaded = from_properties({"brokerName": "b", "sendMessageThreadPoolNums": "4"})
        live = LiveConfig(loaded.config, loaded.without_effect)
        shown = live.as_properties()
        assert shown["brokerName"] == "b"
        assert shown["sendMessageThreadPoolNums"] == "4"
        assert shown["autoCreateTopicEnable"] == "true"
        assert from_properties(shown).config == loaded.config


@pytest.mark.parametrize(
    "wrong",
    [
        {"brokerId": "1"},
        {"brokerRole": "SLAVE"},
        {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "nowhere"},
        {"inSyncReplicas": "0"},
    ],
)
def test_a_role_that_contradicts_the_broker_id_is_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        from_properties(wrong)


def test_a_replica_is_configured_as_in_java() -> None:
    text = {"brokerRole": "SLAVE", "brokerId": "2", "haMasterAddress": "127.0.0.1:10912"}
    config = from_properties(text).config
    assert (config.broker_id, config.ha_master_address) == (2, "127.0.0.1:10912")


@pytest.mark.parametrize("mode", ["enableControllerMode", "enableDLegerCommitLog"])
def test_the_broker_id_that_rocketmq_prints_for_members_of_a_group_is_accepted(mode: str) -> None:
    text = {
        mode: "true",
        "brokerId": "-1",
        "controllerAddr": "127.0.0.1:9878",
        "dLegerGroup": "g",
        "dLegerPeers": "n0-127.0.0.1:40911",
        "dLegerSelfId": "n0",
    }
    if mode == "enableControllerMode":
        text = {key: value for key, value in text.items() if not key.startswith("dLeger")}
    else:
        del text["controllerAddr"]
    assert from_properties(text).config.broker_id == 0
