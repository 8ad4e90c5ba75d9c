"""Which settings of the access control keep a broker from starting, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.auth.access_settings import AccessSettings
from epochmq_broker.config.broker_config import LiveConfig, from_properties, load_broker_config
from epochmq_broker.config.port_settings import port_settings
from epochmq_protocol.errors import ConfigError
from tests.unit.broker.auth.kit import AUTH, ENABLED, PROVIDERS
from tests.unit.broker.kit import SMALL


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"authenticationMetadataProvider": ""}, "authenticationMetadataProvider"),
        ({"authorizationMetadataProvider": ""}, "authorizationMetadataProvider"),
        ({"authenticationStrategy": "com.example.Mine"}, "authenticationStrategy"),
        ({"authorizationProvider": "com.example.Mine"}, "authorizationProvider"),
        ({"initAuthenticationUser": "{"}, "initAuthenticationUser"),
        ({"initAuthenticationUser": '{"username":"root","password":" "}'}, "initAuthenticationUser"),
        ({"innerClientAuthenticationCredentials": '"s3cret"'}, "innerClientAuthenticationCredentials"),
        ({"innerClientAuthenticationCredentials": '{"accessKey":"s3cret"}'}, "innerClientAuthentication"),
        ({"authenticationEnabled": "false", "aclEnable": "true"}, "aclEnable"),
    ],
)
def test_settings_that_cannot_work_are_rejected_without_their_secrets(
    changes: dict[str, str], key: str
) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        from_properties(SMALL | ENABLED | changes)
    assert "s3cret" not in str(caught.value)


def test_the_settings_of_rocketmq_are_understood() -> None:
    config = from_properties(SMALL | ENABLED | {"authorizationWhitelist": "10, 11,x,,012"}).config
    settings = AccessSettings.of(config)
    assert (settings.authentication, settings.authorization, settings.cluster) == (True, True, "TestCluster")
    assert settings.unauthorized_codes == {10, 11}
    assert (settings.authentication_lifetime_ms, settings.authorization_lifetime_ms) == (0, 0)
    stateful = f"{AUTH}.authorization.strategy.StatefulAuthorizationStrategy"
    more = from_properties(SMALL | ENABLED | {"authorizationStrategy": stateful, "aclEnable": "true"}).config
    assert AccessSettings.of(more).authorization_lifetime_ms == 60_000
    assert not AccessSettings.of(from_properties(SMALL | PROVIDERS).config).enabled


def test_passwords_come_from_a_file_of_their_own(tmp_path: Path) -> None:
    secrets, conf = tmp_path / "auth.properties", tmp_path / "broker.conf"
    secrets.write_text(f"initAuthenticationUser={ENABLED['initAuthenticationUser']}\n")
    rest = {key: value for key, value in (SMALL | ENABLED).items() if key != "initAuthenticationUser"}
    rest["authSecretsPath"] = str(secrets)
    conf.write_text("".join(f"{key}={value}\n" for key, value in rest.items()))
    assert load_broker_config(conf).config.init_authentication_user == ENABLED["initAuthenticationUser"]
    secrets.write_text("brokerName=other\n")
    with pytest.raises(ConfigError, match="not brokerName"):
        load_broker_config(conf)
    secrets.unlink()
    with pytest.raises(ConfigError, match="authSecretsPath"):
        load_broker_config(conf)


def test_a_running_broker_does_not_change_them(tmp_path: Path) -> None:
    live = LiveConfig(from_properties(SMALL | ENABLED | {"storePathRootDir": str(tmp_path)}).config)
    with pytest.raises(ConfigError, match="authenticationEnabled=false: expected true, because the key"):
        live.update({"authenticationEnabled": "false"})
    with pytest.raises(ConfigError) as caught:
        live.update({"initAuthenticationUser": '{"username":"eve","password":"s3cret"}'})
    assert "s3cret" not in str(caught.value)
    assert live.current.authentication_enabled


@pytest.mark.parametrize(
    ("changes", "trusted"),
    [
        ({}, False),
        ({"aclStrict": "false"}, True),
        ({"authenticationEnabled": "false", "authorizationEnabled": "false"}, True),
        ({"proxyProtocolFrom": "10.0.0.0/8"}, True),
        ({"proxyProtocolFrom": "10.0.0.0/16"}, False),
        ({"proxyProtocolFrom": "*"}, True),
    ],
)
def test_a_proxy_header_proves_no_address_to_access_control_unless_its_sender_is_listed(
    changes: dict[str, str], trusted: bool
) -> None:
    config = from_properties(SMALL | ENABLED | changes).config
    assert port_settings(config).trusted_proxies.includes("10.1.2.3") is trusted
