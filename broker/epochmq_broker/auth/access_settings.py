# pure: values
"""Holds the settings of the access control (RocketMQ's AuthConfig), and parses the keys that are JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from epochmq_broker.auth.users import User, UserStatus, UserType, parse_user_status
from epochmq_protocol.bodies import UserInfo, from_json
from epochmq_protocol.errors import BodyError, ConfigError
from epochmq_protocol.signatures import SessionCredentials

_PACKAGE: Final = "org.apache.rocketmq.auth"
CLASSES: Final[dict[str, tuple[str, ...]]] = {
    "authenticationProvider": (f"{_PACKAGE}.authentication.provider.DefaultAuthenticationProvider",),
    "authenticationMetadataProvider": (
        f"{_PACKAGE}.authentication.provider.LocalAuthenticationMetadataProvider",
    ),
    "authenticationStrategy": (
        f"{_PACKAGE}.authentication.strategy.StatelessAuthenticationStrategy",
        f"{_PACKAGE}.authentication.strategy.StatefulAuthenticationStrategy",
    ),
    "authorizationProvider": (f"{_PACKAGE}.authorization.provider.DefaultAuthorizationProvider",),
    "authorizationMetadataProvider": (
        f"{_PACKAGE}.authorization.provider.LocalAuthorizationMetadataProvider",
    ),
    "authorizationStrategy": (
        f"{_PACKAGE}.authorization.strategy.StatelessAuthorizationStrategy",
        f"{_PACKAGE}.authorization.strategy.StatefulAuthorizationStrategy",
    ),
}
"""RocketMQ's classes that each key may name; the first one of a strategy is the default."""


class AccessKeys(Protocol):
    """The part of the broker's configuration that belongs to access control."""

    @property
    def broker_cluster_name(self) -> str:
        """brokerClusterName."""
        ...

    @property
    def authentication_enabled(self) -> bool:
        """authenticationEnabled."""
        ...

    @property
    def authentication_metadata_provider(self) -> str:
        """authenticationMetadataProvider."""
        ...

    @property
    def authentication_strategy(self) -> str:
        """authenticationStrategy."""
        ...

    @property
    def authentication_whitelist(self) -> str:
        """authenticationWhitelist."""
        ...

    @property
    def init_authentication_user(self) -> str:
        """initAuthenticationUser."""
        ...

    @property
    def inner_client_authentication_credentials(self) -> str:
        """innerClientAuthenticationCredentials."""
        ...

    @property
    def authorization_enabled(self) -> bool:
        """authorizationEnabled."""
        ...

    @property
    def authorization_metadata_provider(self) -> str:
        """authorizationMetadataProvider."""
        ...

    @property
    def authorization_strategy(self) -> str:
        """authorizationStrategy."""
        ...

    @property
    def authorization_whitelist(self) -> str:
        """authorizationWhitelist."""
        ...

    @property
    def acl_strict(self) -> bool:
        """aclStrict."""
        ...

    @property
    def migrate_auth_from_v1_enabled(self) -> bool:
        """migrateAuthFromV1Enabled."""
        ...

    @property
    def stateful_authentication_cache_expired_second(self) -> int:
        """statefulAuthenticationCacheExpiredSecond."""
        ...

    @property
    def stateful_authorization_cache_expired_second(self) -> int:
        """statefulAuthorizationCacheExpiredSecond."""
        ...

    @property
    def acl_enable(self) -> bool:
        """aclEnable."""
        ...


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What access control checks. Whitelists hold request codes that need no check. A lifetime of 0 ms: every
    request is checked (the stateless strategy)."""

    cluster: str
    authentication: bool
    authorization: bool
    strict: bool
    """Whether every request code has a rule, and messages that a request names are checked (aclStrict)."""
    unauthenticated_codes: frozenset[int]
    unauthorized_codes: frozenset[int]
    authentication_lifetime_ms: int
    authorization_lifetime_ms: int

    @classmethod
    def of(cls, config: AccessKeys) -> AccessSettings:
        """The settings in the broker's configuration."""
        return cls(
            cluster=config.broker_cluster_name,
            authentication=config.authentication_enabled,
            authorization=config.authorization_enabled,
            strict=config.acl_strict,
            unauthenticated_codes=_codes(config.authentication_whitelist),
            unauthorized_codes=_codes(config.authorization_whitelist),
            authentication_lifetime_ms=(
                config.stateful_authentication_cache_expired_second * 1000
                if config.authentication_strategy.endswith("StatefulAuthenticationStrategy")
                else 0
            ),
            authorization_lifetime_ms=(
                config.stateful_authorization_cache_expired_second * 1000
                if config.authorization_strategy.endswith("StatefulAuthorizationStrategy")
                else 0
            ),
        )

    @property
    def enabled(self) -> bool:
        """Whether any request is checked."""
        return self.authentication or self.authorization


def _codes(whitelist: str) -> frozenset[int]:
    """The request codes of a whitelist `10,11`. Other words never equal a code."""
    words = (word.strip() for word in whitelist.split(","))
    return frozenset(
        int(word) for word in words if word.isascii() and word.isdigit() and str(int(word)) == word
    )


def parse_credentials(text: str) -> SessionCredentials | None:
    """The credentials of innerClientAuthenticationCredentials; None for an empty text. ValueError."""
    if not text.strip():
        return None
    try:
        found = msgspec.json.decode(text, type=SessionCredentials)
    except msgspec.DecodeError:
        raise ValueError("it is no such JSON object") from None
    if not found.complete:
        raise ValueError("accessKey or secretKey is missing")
    return found


def parse_init_user(text: str) -> User | None:
    """The super user of initAuthenticationUser; None for an empty text. ValueError."""
    if not text.strip():
        return None
    try:
        info = from_json(UserInfo, text)
    except BodyError:
        raise ValueError("it is no such JSON object") from None
    if not (info.username or "").strip() or not (info.password or "").strip():
        raise ValueError("username or password is missing")
    status = parse_user_status(info.user_status) or UserStatus.ENABLE
    return User(info.username or "", info.password or "", UserType.SUPER, status)


ACCESS_KEYS: Final = frozenset(
    [
        "authenticationEnabled",
        "authorizationEnabled",
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
        "authenticationWhitelist",
        "authorizationWhitelist",
        *CLASSES,
        "aclStrict",
        "authSecretsPath",
        "migrateAuthFromV1Enabled",
        "statefulAuthenticationCacheExpiredSecond",
        "statefulAuthorizationCacheExpiredSecond",
    ]
)
"""The keys of access control (RocketMQ's AuthConfig), and EpochMQ's own ones."""


def check_access_keys(config: AccessKeys) -> None:
    """Raises ConfigError for values with which no request, or every request, would be accepted."""
    for key, classes in CLASSES.items():
        value = _value(config, key)
        if value and value not in classes:
            raise ConfigError(key, value, f"nothing or {' or '.join(classes)}")
    for key, parse in SECRET_KEYS.items():
        try:
            parse(str(_value(config, key)))
        except ValueError as error:
            raise ConfigError(key, HIDDEN, f"{_EXAMPLES[key]}: {error}") from None
    for key in ("authenticationEnabled", "authorizationEnabled", "migrateAuthFromV1Enabled", *SECRET_KEYS):
        if _value(config, key):
            _require_providers(config, key)
    if config.acl_enable and not config.authentication_enabled:
        raise ConfigError(
            "aclEnable",
            "true",
            "authenticationEnabled=true beside it, because RocketMQ 5.3 has no access control of version 4; "
            "migrateAuthFromV1Enabled=true takes over the accounts of plain_acl.yml",
        )


def _require_providers(config: AccessKeys, key: str) -> None:
    for provider in ("authenticationMetadataProvider", "authorizationMetadataProvider"):
        if not _value(config, provider):
            raise ConfigError(provider, "", f"{CLASSES[provider][0]}, because {key} is set")


def _value(config: AccessKeys, key: str) -> object:
    return getattr(config, re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", key))


HIDDEN: Final = "(hidden)"
"""Stands for a value with a password in messages."""
SECRET_KEYS: Final[dict[str, Callable[[str], object]]] = {
    "initAuthenticationUser": parse_init_user,
    "innerClientAuthenticationCredentials": parse_credentials,
}
"""Keys whose value contains a password, and what parses them."""
_EXAMPLES: Final = {
    "initAuthenticationUser": '{"username":"NAME","password":"PASSWORD"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"NAME","secretKey":"PASSWORD"}',
}
