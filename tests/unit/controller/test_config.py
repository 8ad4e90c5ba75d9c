"""A Java `controller.conf` works. The error of an invalid setting names key, value and expectation."""

from __future__ import annotations

import pytest

from epochmq_controller import settings_file
from epochmq_controller.controller import config
from epochmq_controller.nameserver import config as namesrv
from epochmq_protocol import properties, typed_config
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import ConfigError, RequestError
from tests.unit.controller.peer_settings import WHO


def test_defaults_are_javas_unless_a_comment_says_otherwise() -> None:
    found = config.load(WHO).config
    assert found.mapped_file_size == 1 << 30
    assert not found.enable_elect_unclean_master
    assert found.notify_broker_role_changed
    assert found.elect_master_max_retry_count == 3
    assert found.metrics_prom_exporter_port == 5557
    assert (found.scan_not_active_broker_interval, found.scan_inactive_master_interval) == (500, 1000)
    assert found.server_settings().idle_timeout_ms == 120_000
    assert found.server_settings().max_in_flight == 50_000


def test_the_limits_of_the_port_come_from_the_configuration() -> None:
    limits = (
        "maxHeaderSize=70000\nmaxReceivedBytes=1\nframeTimeoutMillis=2\nmaxConnectionsPerAddress=3\n"
        "maxNewConnectionsPerAddress=4\n"
    )
    found = config.load(WHO + limits).config.server_settings()
    assert (found.max_header_bytes, found.max_received_bytes, found.frame_timeout_ms) == (70_000, 1, 2)
    assert (found.max_connections_per_address, found.max_new_connections_per_address) == (3, 4)


def test_peers_are_parsed_as_java_writes_them() -> None:
    found = config.load(WHO).config
    assert found.addresses() == {"n0": "h0:9878", "n1": "h-1:9878", "n2": "127.0.0.1:9878"}
    raft = found.raft_settings()
    assert (raft.group, raft.self_id, raft.peers) == ("g", "n1", ("n0", "n1", "n2"))


def test_a_controller_listens_on_its_own_or_a_configured_address_and_always_on_its_own_port() -> None:
    found = config.load(WHO).config
    assert (found.bind_address, found.listen_port) == ("h-1", 9878)
    found = config.load(WHO + "bindAddress=0.0.0.0\nlistenPort=19876\n").config
    assert (found.bind_address, found.listen_port) == ("0.0.0.0", 9878)


def test_a_controller_inside_a_nameserver_has_its_own_bind_address() -> None:
    text = WHO + "bindAddress=127.0.0.9\ncontrollerBindAddress=0.0.0.0\n"
    assert config.load(text).config.bind_address == "127.0.0.9"
    assert config.load(text, without=("bindAddress",)).config.bind_address == "0.0.0.0"


def test_each_controller_has_a_directory_in_the_store_path() -> None:
    assert config.load(WHO + "controllerStorePath=/data").config.store_path().as_posix() == "/data/dledger-n1"
    assert config.load(WHO).config.store_path().parts[-2:] == ("DLedgerController", "dledger-n1")


def test_every_key_of_a_java_file_is_accepted_without_a_warning() -> None:
    java = (
        "controllerType=DLedger\nmetricsExporterType=PROM\nmetricsLabel=a:b\nserverWorkerThreads=4\n"
        "jRaftInitConf=localhost:9880\nclientWorkerThreads=2\nlistenPort=19876\nrocketmqHome=/r\n"
    )
    loaded = config.load(WHO + java)
    assert loaded.warnings == []
    shown = properties.parse(settings_file.to_text(loaded.config, loaded.extra))
    assert shown["jRaftInitConf"] == "localhost:9880"
    assert shown["metricsExporterType"] == "PROM"
    assert list(shown) == sorted(shown)


def test_a_misspelt_key_causes_a_warning_and_is_kept() -> None:
    loaded = config.load(WHO + "enableElectUncleanMastr=true")
    assert loaded.extra == {"enableElectUncleanMastr": "true"}
    (warning,) = loaded.warnings
    assert warning == (
        "enableElectUncleanMastr: unknown key, ignored (did you mean enableElectUncleanMaster?)"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("controllerType=jRaft", "DLedger"),
        ("controllerDLegerGroup=", "the name of the controllers' Raft group"),
        ("controllerDLegerPeers=", "id-host:port;id-host:port;…"),
        ("controllerDLegerPeers=n1", "id-host:port;id-host:port;… ('n1', expected id-host:port)"),
        ("controllerDLegerPeers=n1-h:0", "a port from 1 to 65535 for n1"),
        ("controllerDLegerPeers=n1-h:99999", "a port from 1 to 65535 for n1"),
        ("controllerDLegerPeers=n1-h:²", "id-host:port;id-host:port;…"),
        ("controllerDLegerPeers=n1-h:1;n1-h:2", "id-host:port;id-host:port;… ('n1-h:2': the id n1 appears"),
        ("controllerDLegerPeers=n1-h:1;n2-h:1", "an address of its own for every peer"),
        ("controllerDLegerSelfId=n7", "one of the ids in controllerDLegerPeers: n0, n1, n2"),
        ("controllerDLegerSelfId=", "one of the ids in controllerDLegerPeers: n0, n1, n2"),
        ("mappedFileSize=1g", "a whole number from 4096 to 2147483647"),
        ("mappedFileSize=100", "a whole number from 4096 to 2147483647"),
        ("enableElectUncleanMaster=yes", "true or false"),
        ("writeLeaseMs=0", "a whole number of at least 1"),
        ("scanInactiveMasterInterval=-1", "a whole number of at least 1"),
        ("writeBufferHighWaterMark=10\nwriteBufferLowWaterMark=20", "at most writeBufferHighWaterMark (10)"),
        ("tls.server.mode=strict", "one of disabled, permissive, enforcing"),
    ],
)
def test_the_error_of_an_invalid_value_names_key_value_and_expectation(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(f"{WHO}{text}\n")
    assert str(caught.value).startswith(f"{text.splitlines()[-1]}: expected {expected}")


def change(
    text: str, loaded: config.LoadedControllerConfig
) -> tuple[config.ControllerConfig, dict[str, str]]:
    """Applies UPDATE_CONTROLLER_CONFIG with this body to the settings."""
    return settings_file.change(
        loaded.config,
        loaded.extra,
        text.encode(),
        black_list=loaded.config.black_list(),
        changeable=config.CHANGEABLE_KEYS,
        check=config.check,
    )


def test_a_change_takes_effect_at_once_and_only_changed_keys_are_reported() -> None:
    loaded = config.load(WHO + "mine=1\n")
    text = "enableElectUncleanMaster = TRUE\nmine=2\nnew=3\nwriteLeaseMs=300\nscanInactiveMasterInterval=1000"
    found, changes = change(text, loaded)
    assert found.enable_elect_unclean_master
    assert changes == {"enableElectUncleanMaster": "true", "mine": "2"}
    assert loaded.extra == {"mine": "2"}


@pytest.mark.parametrize("key", ["configStorePath", "configBlackList", "rocketmqHome", "mine"])
def test_black_listed_keys_do_not_change(key: str) -> None:
    with pytest.raises(RequestError) as caught:
        change(f"{key}=x", config.load(WHO + "mine=1\nconfigBlackList=mine"))
    assert caught.value.code == ResponseCode.NO_PERMISSION
    assert caught.value.remark == "Can not update config in black list."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("notifyBrokerRoleChanged=1", "true or false"),
        (
            "writeLeaseMs=900",
            "300, for it is fixed while the process runs; change it in the file and restart",
        ),
        ("controllerDLegerPeers=n1-h:1", "n0-h0:9878;n1-h-1:9878;n2-127.0.0.1:9878, for it is fixed while"),
    ],
)
def test_a_change_with_an_invalid_value_changes_nothing(text: str, expected: str) -> None:
    loaded = config.load(WHO + "yours=1\n")
    with pytest.raises(RequestError) as caught:
        change(f"{text}\nyours=2\nenableElectUncleanMaster=true", loaded)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert caught.value.remark.startswith(f"{text}: expected {expected}")
    assert loaded.extra == {"yours": "1"}


def test_every_key_either_may_change_or_is_fixed() -> None:
    """Of the controller and of the nameserver."""
    for module, keys in ((config, typed_config.keys(config.ControllerConfig)), (namesrv, namesrv.KEYS)):
        parts = (module.CHANGEABLE_KEYS, module.IMMUTABLE_KEYS, module.BLACK_LIST)
        assert sum(map(len, parts)) == len(keys)
        assert frozenset[str]().union(*parts) == keys
        assert {"bindAddress", "listenPort", "adminSocketPath"} <= module.IMMUTABLE_KEYS


@pytest.mark.parametrize("key", ["\\ configBlackList", "configBlackList\\ ", "\\tmine"])
def test_a_blank_in_a_key_does_not_pass_the_black_list(key: str) -> None:
    with pytest.raises(RequestError) as caught:
        change(f"{key}=x", config.load(WHO + "mine=1\nconfigBlackList=other; mine"))
    assert caught.value.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("text", ["bindAddress=127.0.0.9", "listenPort=1", "\\ bindAddress=127.0.0.9"])
def test_a_nameserver_does_not_change_where_it_listens(text: str) -> None:
    loaded = namesrv.load("")
    with pytest.raises(RequestError, match="fixed while the process runs") as caught:
        settings_file.change(
            loaded.config,
            loaded.extra,
            text.encode(),
            black_list=loaded.config.black_list(),
            changeable=namesrv.CHANGEABLE_KEYS,
            check=namesrv.check,
        )
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
